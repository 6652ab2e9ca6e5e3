"""Memory bought with time, for a larger batch: whether that pays only a run with that batch shows, which is another
training. So this is a what-if, and is not tried unless asked for (`--only checkpointing`).
"""

from __future__ import annotations

from hotloop.optimizations.optimization import Optimization, live_in

ACTIVATION_CHECKPOINTING = Optimization(
    name="checkpointing",
    summary="What-if: activations of a Hugging Face model are computed again in the pass backward instead of "
    "kept. Takes time, saves the memory that a larger batch needs.",
    parity_class="bitwise",
    settings=(True,),
    source_form='model.gradient_checkpointing_enable({"use_reentrant": False})',
    leaves="other models, of which nobody knows the blocks; a model that does it already",
    live_form=live_in(__name__),
    what_if=True,
    risks="Every step gets slower, by up to a third. It pays only where the larger batch does.",
)
