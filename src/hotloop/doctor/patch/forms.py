"""How a kept fix is written into source: as its technique says, in one form for all of its places."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hotloop.core.ledger import TriedFix
from hotloop.doctor.patch.source import Unsafe
from hotloop.doctor.patch.taken import Taken
from hotloop.optimizations.catalogue import CATALOGUE
from hotloop.optimizations.source_edit import Keywords, SetUp, SourceEdit


def _loader_workers(value: Any, facts: Mapping[str, Any]) -> SourceEdit | str:
    """Workers that stay for all epochs, as those of the live form do."""
    if not isinstance(value, int):
        return "how many workers it had is not known"
    values = {"num_workers": str(value)}
    where_given = {}
    if value:
        values["persistent_workers"] = "True"
    else:  # torch refuses these without workers
        where_given = {"persistent_workers": "False", "prefetch_factor": "None"}
    return Keywords(
        "torch.utils.data", ("DataLoader",), values, where_given=where_given, at="loader"
    )


def _cudnn_benchmark(value: Any, facts: Mapping[str, Any]) -> SourceEdit | str:
    return SetUp((f"torch.backends.cudnn.benchmark = {value!r}",), ("cudnn.benchmark",))


def _threads(value: Any, facts: Mapping[str, Any]) -> SourceEdit | str:
    return SetUp((f"torch.set_num_threads({value!r})",), ("set_num_threads", "OMP_NUM_THREADS"))


_FORMS: dict[str, Callable[[Any, Mapping[str, Any]], SourceEdit | str]] = {
    "loader_workers": _loader_workers,
    "cudnn_benchmark": _cudnn_benchmark,
    "threads": _threads,
}
"""Of techniques whose live form says nothing that the edit would need: the value is all."""


def form_of(fix: TriedFix, taken: Sequence[Taken]) -> SourceEdit:
    """taken: where it took effect. Raises `Unsafe` where it has no form, or one for each place."""
    form = CATALOGUE[fix.name].source_edit or _FORMS.get(fix.name)
    if form is None:
        raise Unsafe("where it belongs depends on the script")
    if not taken:
        raise Unsafe("the trials did not say where it took effect")
    found = [form(fix.value, each.facts) for each in taken]
    for each in found:
        if isinstance(each, str):
            raise Unsafe(each)
    if any(each != found[0] for each in found):
        raise Unsafe("it would be written otherwise at each of its places")
    assert not isinstance(found[0], str)
    return found[0]
