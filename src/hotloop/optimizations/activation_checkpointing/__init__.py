"""Memory bought with time, for a larger batch: whether that pays only a run with that batch shows, which is another
training. So this is a what-if, and is not tried unless asked for (`--only checkpointing`).

hotloop's trainer does it block by block (Chen et al. 2016, arXiv 1604.06174), where `train.activation_checkpointing` says so.
"""

from __future__ import annotations

from hotloop.optimizations.optimization import Choice, Optimization, live_in

ACTIVATION_CHECKPOINTING = Optimization(
    name="checkpointing",
    summary="What-if: activations of a Hugging Face model, or of hotloop's own, are computed again in the pass backward "
    "instead of kept. Takes time, saves the memory that a larger batch needs.",
    parity_class="bitwise",
    key="train.activation_checkpointing",
    off="none",
    settings=("full",),
    values_for=lambda census: (True,),
    choose=lambda machine, config: Choice(
        "none", "it takes time, and pays only where memory is short"
    ),
    source_form='model.gradient_checkpointing_enable({"use_reentrant": False})',
    leaves="other models, of which nobody knows the blocks; a model that does it already",
    live_form=live_in(__name__),
    what_if=True,
    risks="Every step gets slower, by up to a third. It pays only where the larger batch does.",
)
