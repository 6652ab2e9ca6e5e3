"""Checkpoints written beside the next steps, where the script waits until they are in the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.census import Census
from hotloop.optimizations.optimization import Optimization, leaving
from hotloop.optimizations.source_edit import SetUp, SourceEdit

LINES = ("import hotloop.checkpoint", "hotloop.checkpoint.save_in_background()")
SAVES = ("torch.save", "safetensors.torch.save_file", "safetensors.torch.save_model")


def _values_for(census: Census) -> tuple[Any, ...]:
    saves = any(each.what in SAVES for each in census.saves)
    return (True,) if saves and (census.num_ranks or 1) == 1 else ()


def _observed(census: Census, value: Any) -> bool | None:
    found = census.num_background_saves
    return None if found is None else bool(found) == bool(value)


def _source_edit(value: Any, facts: Mapping[str, Any]) -> SourceEdit | str:
    note = "hotloop has to be installed where the script runs"
    return SetUp(LINES, ("save_in_background",), note, needs_torch=False)


BACKGROUND_SAVES = Optimization(
    name="background_saves",
    summary="Files of `torch.save` and safetensors written beside the next steps: the same bytes, whole or not there.",
    parity_class="bitwise",
    settings=(True,),
    values_for=_values_for,
    needs="one process that saves with `torch.save` or safetensors",
    observed=_observed,
    unobserved="no file of 1 MiB or more was saved to a path",
    answers=("HL701",),
    source_form="\n".join(LINES),
    source_edit=_source_edit,
    leaves=(
        "several processes, distributed checkpoints, file objects, the format before zip, links to one file by several names, files of "
        "another user, files below 1 MiB, and what memory does not hold twice: they are saved as before"
    ),
    expect=leaving("checkpoint_fraction", 0.05, 0.95),
    over="all",
    acts_every="steps_between",
    risks=(
        "A save needs memory for a copy of what it saves, which stays taken for the next one. Other programs that look for the file "
        "find the one before until the new one is whole. SIGKILL, or SIGTERM without a handler, loses the save that is being written, "
        "and the file before it stays. A full disk is told at the next save, or at the end with exit code 4. What writes takes CPU "
        "time from the steps, which may cost more than it saves where they keep all CPUs busy: it is measured."
    ),
)
