"""Convolution weights stored with the channels last, as tensor cores and CPUs with wide vectors read them.

What a convolution gives then has that order, too, and so has all that follows, until something turns it
around. What the model gives is turned back: the script's own lines see what they always saw.
"""

from __future__ import annotations

from hotloop.optimizations.optimization import Optimization, seen_as

CHANNELS_LAST = Optimization(
    name="channels_last",
    summary="Convolution weights stored with the channels last, as the hardware reads them.",
    parity_class="reduction_order",
    settings=(True,),
    values_for=lambda census: () if census.channels_last else (True,),
    observed=seen_as("channels_last"),
    answers=("HL304",),
    source_form=(
        "model = model.to(memory_format=torch.channels_last)  # before it is wrapped\n"
        "images = images.to(memory_format=torch.channels_last)"
    ),
    leaves=(
        "grouped convolutions; dropout over images, which would drop other elements; `x.view(n, -1)` after a convolution; "
        "weights that are computed, or share one block of memory; a model that DistributedDataParallel wraps already, or "
        "that is sharded"
    ),
    risks=(
        "Operations without a channels-last form turn every tensor around. `x.view(n, -1)` after a "
        "convolution fails: write `x.flatten(1)`. Dropout over images drops other elements."
    ),
)
