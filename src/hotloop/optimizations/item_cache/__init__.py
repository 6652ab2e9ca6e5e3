"""Items of a deterministic dataset kept in memory: read, decoded and tokenized in the first epoch alone."""

from __future__ import annotations

import math
from typing import Any

from hotloop.core.census import Census
from hotloop.optimizations.optimization import Optimization, leaving

LIMITS_MB = (4096, 1024)


def _values_for(census: Census) -> tuple[Any, ...]:
    """None where an item is not made twice: the run ends within its first epoch, as far as is known."""
    loader = census.slowest_loader()
    if loader is None or loader.iterable or loader.draws_random:
        return ()
    if loader.per_epoch is None:
        return ()
    planned = census.planned_steps or 0
    if loader.num_epochs < 2 and planned <= _steps_of_epoch(census):
        return ()
    return LIMITS_MB


def _steps_of_epoch(census: Census) -> int:
    """Updates until every item was made once; 0 where that is not known."""
    loader = census.slowest_loader()
    if loader is None or loader.per_epoch is None:
        return 0
    return math.ceil(loader.per_epoch / census.batches_per_step())


ITEM_CACHE = Optimization(
    name="item_cache",
    summary="What the dataset made of an item kept in memory, from the second epoch on.",
    parity_class="bitwise",
    settings=LIMITS_MB,
    values_for=_values_for,
    needs="a dataset by index that draws no random numbers, and more than one epoch",
    warmup_for=_steps_of_epoch,
    answers=("HL102", "HL105", "HL106"),
    source_form=(
        "class Kept(torch.utils.data.Dataset):  # and DataLoader(Kept(dataset), ...)\n"
        "    def __init__(self, dataset):\n"
        "        self.dataset, self.kept = dataset, {}\n"
        "    def __len__(self):\n"
        "        return len(self.dataset)\n"
        "    def __getitem__(self, index):\n"
        "        if index not in self.kept:\n"
        "            self.kept[index] = self.dataset[index]\n"
        "        return copy.deepcopy(self.kept[index])"
    ),
    leaves="items that draw random numbers or differ when they are made twice; what there is no room for",
    expect=leaving("data_wait_fraction", 0.02, 0.2),
    over="all",
    risks=(
        "It takes the memory of all items, and as above in each worker anew (which has to be persistent). Random "
        "augmentation done before it is frozen. It brings nothing in the first epoch. An item that is made "
        "from something outside of the dataset (a file that changes, the time) stays what it was."
    ),
)
