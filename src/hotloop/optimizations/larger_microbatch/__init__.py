"""Gradient accumulation over fewer, larger microbatches: the same samples per optimizer step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hotloop.core.census import Census
from hotloop.hardware.limits import memory_limit_bytes
from hotloop.judge.accumulation import accumulated, fewer_that_fit
from hotloop.optimizations.loader_workers import batches_ahead
from hotloop.optimizations.optimization import BatchesAhead, Optimization
from hotloop.optimizations.source_edit import Keywords, SourceEdit


def _observed(census: Census, value: Any) -> bool | None:
    """The last step of an epoch may have fewer: not more of them are seen than that."""
    return None if census.microbatches is None else census.microbatches < value + 0.5


def _batches_ahead(census: Census, value: Any) -> BatchesAhead | None:
    """As the script has it, in its own batches: each that is ready holds several of them."""
    ahead, times = batches_ahead(census), (accumulated(census) or value) // value
    if ahead is None:
        return None
    return replace(ahead, batches=ahead.batches * times, workers=ahead.workers * times)


def _expect(evidence: Mapping[str, Any], value: Any) -> tuple[float, float] | None:
    """Amdahl, where a third to all goes of what fewer microbatches start less often."""
    number, launch = evidence.get("microbatches"), evidence.get("launch_fraction")
    if not isinstance(number, int) or not isinstance(launch, float) or value >= number:
        return None
    share = min(launch, 0.98) * (1 - value / number)
    return 1 / (1 - share / 3), 1 / (1 - share)


def _source_edit(value: Any, facts: Mapping[str, Any]) -> SourceEdit | str:
    values = {
        "per_device_train_batch_size": str(facts["batch_size"]),
        "gradient_accumulation_steps": str(value),
    }
    return Keywords("transformers", ("TrainingArguments", "Seq2SeqTrainingArguments"), values)


LARGER_MICROBATCH = Optimization(
    name="larger_microbatch",
    summary="Fewer, larger microbatches where gradients are accumulated, as far as memory allows: the same samples per optimizer step.",
    parity_class="reduction_order",
    settings=(1,),
    values_for=lambda census: fewer_that_fit(census, memory_limit_bytes()),
    needs="gradient accumulation in one process, and memory that is known to hold a larger microbatch",
    answers=("HL504",),
    argument="gradient_accumulation_steps",
    observed=_observed,
    source_form=(
        "TrainingArguments(..., per_device_train_batch_size=32, gradient_accumulation_steps=1)  # were 4 and 8\n"
        "# in a loop of your own: DataLoader(dataset, batch_size=8 * batch_size), and the loss not divided by 8"
    ),
    source_edit=_source_edit,
    trainer_arguments=lambda value, applied_to: next(iter(applied_to), None),
    leaves=(
        "loops that are not transformers' Trainer (version 5 on), whose divisor of the loss cannot be changed from outside; "
        "arguments with DeepSpeed, `auto_find_batch_size`, `dataloader_drop_last` or `accelerator_config`; several processes"
    ),
    reshapes=True,
    batches_ahead=_batches_ahead,
    expect=_expect,
    risks=(
        "What depends on the microbatch becomes another thing: BatchNorm, a loss that compares the samples of a batch, a mean "
        "over tokens where microbatches have different numbers of them. Dropout draws in the new shape: other numbers, as with another seed. "
        "Memory has to hold the longest batch of a whole training. A checkpoint of before keeps its own batch size: "
        "the Trainer that resumes from it would take fewer samples per step."
    ),
)
