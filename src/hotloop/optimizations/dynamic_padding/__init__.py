"""Batches no longer than their longest sequence, where the script pads to a fixed length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.census import Census
from hotloop.optimizations.optimization import Optimization
from hotloop.optimizations.source_edit import BeforeTraining, SourceEdit, WrappedArgument

NAME = "TrimPadding"
DEFINITION = f'''class {NAME}:
    """Collates a batch and cuts off the columns at its end that are padding in every row."""

    def __init__(self, collate_fn=None, mask="attention_mask"):
        self.collate_fn = collate_fn or torch.utils.data.default_collate
        self.mask = mask

    def __call__(self, samples):
        batch = self.collate_fn(samples)
        length = batch[self.mask].shape[1]
        used = batch[self.mask].any(0).nonzero()
        longest = int(used[-1]) + 1 if len(used) else length
        kept = min(-(-longest // 8) * 8, length)

        def cut(value):
            if not torch.is_tensor(value) or value.dim() < 2 or value.shape[1] != length or kept == length:
                return value
            rest = value[:, kept:]  # of other texts, as targets, it may be no padding
            same = (rest == rest.flatten()[0]).all() or (len(rest) > 1 and (rest == rest[:1]).all())
            return value[:, :kept].contiguous() if same else value

        if isinstance(batch, (list, tuple)):
            return type(batch)(map(cut, batch))
        for key in list(batch):
            batch[key] = cut(batch[key])
        return batch
'''
"""What the patch writes and the live form runs; a multiple of 8, which tensor cores multiply faster. `mask`: its key or place in a batch."""
USUAL_MASK = "attention_mask"


def _source_edit(value: Any, facts: Mapping[str, Any]) -> SourceEdit | str:
    mask = facts.get("mask", USUAL_MASK)
    more = "" if mask == USUAL_MASK else f"mask={mask!r}"
    if facts.get("trainer"):
        wrapped = ", ".join(filter(None, ("{owner}.data_collator", more)))
        line = f"{{owner}}.data_collator = {NAME}({wrapped})"
        return BeforeTraining(NAME, DEFINITION, line, note="its evaluation is cut likewise")
    return WrappedArgument(
        "torch.utils.data", ("DataLoader",), "collate_fn", 6, NAME, DEFINITION, more
    )


def _expect(evidence: Mapping[str, Any], value: Any) -> tuple[float, float] | None:
    """Amdahl, where a third to all goes of what cutting takes away; of all padding, where the longest rows were not seen."""
    padded, computing = evidence.get("padded_fraction"), evidence.get("forward_backward_fraction")
    if not isinstance(padded, float) or not isinstance(computing, float):
        return None
    at_longest = evidence.get("gain_at_longest")
    share = 1 - 1 / at_longest if isinstance(at_longest, float) else padded * computing
    share = min(share, 0.98)
    return 1 / (1 - share / 3), 1 / (1 - share)


def _values_for(census: Census) -> tuple[Any, ...]:
    padding = census.padding
    if padding is None or not census.slowest_loader():
        return ()
    # A hundredth of the tokens or more would go, as far as is known.
    cut = padding.padded_fraction - (padding.longest_padded_fraction or 0.0)
    return (8,) if cut >= 0.01 else ()


DYNAMIC_PADDING = Optimization(
    name="dynamic_padding",
    summary="Batches cut to their longest sequence, as their attention mask says, rounded up to a multiple of 8.",
    parity_class="reduction_order",
    settings=(8,),
    values_for=_values_for,
    needs="a DataLoader whose batches are longer than their longest row",
    answers=("HL111",),
    argument="pad_to_multiple_of",
    source_form="DataLoader(dataset, ..., collate_fn=DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8))",
    source_edit=_source_edit,
    reshapes=True,
    of_loader=True,
    expect=_expect,
    leaves=(
        "batches without an attention mask, padded on the left, or with the padded length in more than one dimension; "
        "loaders whose workers are not forked"
    ),
    risks=(
        "Batches have different lengths: what a model computes from the padded length itself, and a loss that counts "
        "padding, become others. Dropout draws in the new shape: other numbers, as with another seed. A compiled model "
        "that is not dynamic compiles again for each new length."
    ),
)
