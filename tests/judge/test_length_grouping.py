"""The sampler on HL111's page gives each sample once, in batches with the padding that HL111 counts."""

from __future__ import annotations

import inspect
import random
import textwrap
from typing import Any

import pytest

from hotloop.judge.findings import hl111_padding
from hotloop.probe.attach.model import FIRST, Padding

torch = pytest.importorskip("torch")


def sampler(lengths: list[int], batch_size: int) -> Any:
    page = inspect.cleandoc(hl111_padding.__doc__ or "")
    _, begin, rest = page.partition("    class LengthGroupedBatches:")
    scope: dict[str, Any] = {"torch": torch}
    exec(textwrap.dedent(begin + rest.partition("\n\nEither")[0]), scope)
    return scope["LengthGroupedBatches"](lengths, batch_size)


def lengths(num: int) -> list[int]:
    draw = random.Random(0)
    return [min(int(draw.lognormvariate(3.2, 0.7)) + 3, 128) for _ in range(num)]


def test_each_sample_comes_once_an_epoch_in_another_order_the_next() -> None:
    torch.manual_seed(0)
    batches = sampler(lengths(1003), 8)
    first, second = list(batches), list(batches)
    assert sorted(i for batch in first for i in batch) == list(range(1003))
    assert len(first) == len(batches) == 126
    assert sorted(map(len, first)) == [3] + [8] * 125
    assert first != second
    loader = torch.utils.data.DataLoader(range(1003), batch_sampler=batches)
    assert len(loader) == len(list(loader)) == 126


def padded(batches: list[list[int]]) -> float:
    """Share of padding where each batch is as long as its longest row."""
    return 1 - sum(map(sum, batches)) / sum(len(batch) * max(batch) for batch in batches)


def test_padding_that_is_left_is_what_was_counted_from_the_first_batches() -> None:
    torch.manual_seed(0)
    long = lengths(4000)
    rows = [long[i : i + 8] for i in range(0, len(long), 8)]
    seen = Padding()
    for batch in rows[:FIRST]:
        mask = torch.arange(max(batch))[None] < torch.tensor(batch)[:, None]
        seen.look({"attention_mask": mask.long()}, lambda: None)
    use = seen.use()
    assert use is not None
    assert use.longest_padded_fraction == pytest.approx(padded(rows[:FIRST]))
    assert use.longest_padded_fraction == pytest.approx(padded(rows), abs=0.05)
    assert use.grouped_padded_fraction is not None
    left = padded([[long[i] for i in batch] for batch in sampler(long, 8)])
    assert left < use.grouped_padded_fraction < left + 0.1 < padded(rows) - 0.2
