"""Batches in pinned memory, and copies of them to the GPU that the host does not wait for.

Reviewed against torch's source; run on an H100, torch 2.11. Only from the host to the device: the other way
around, a value would be read before it has arrived.
"""

from __future__ import annotations

from typing import Any

from hotloop.core.census import Census
from hotloop.optimizations.optimization import Optimization, only_on


def _observed(census: Census, value: Any) -> bool | None:
    if "copies" not in census.seen or not census.copies:
        return None
    return any(copy.pageable is False for copy in census.copies)


PINNED_COPIES = Optimization(
    name="pinned_copies",
    summary="Batches in pinned memory, copied to the GPU while the host goes on.",
    parity_class="bitwise",
    settings=(True,),
    values_for=lambda census: (True,) if any(copy.pageable for copy in census.copies) else (),
    needs="copies to a GPU from memory that is not pinned",
    why_not=only_on("cuda", "it is about copies to a GPU; this run is on the CPU"),
    observed=_observed,
    answers=("HL202",),
    source_form=(
        "DataLoader(dataset, ..., num_workers=1, pin_memory=True)\n"
        "batch = batch.to(device, non_blocking=True)"
    ),
    leaves="a script that writes into a batch which it has copied; a CPU",
    risks=(
        "A pinned buffer that is filled again while its copy is under way changes the data. Without "
        "workers the process that trains pins by itself, which can take longer than it saves. Pinned memory "
        "is taken from the machine's."
    ),
)
