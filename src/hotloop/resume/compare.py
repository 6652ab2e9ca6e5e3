"""Compares what two trainings of the same settings did, bit by bit: samples, losses, weights, optimizer, random states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hotloop.checkpoint import store
from hotloop.core.step import StepRecord, samples_name
from hotloop.core.untrusted import object_lines
from hotloop.probe.recorder import newest_steps
from hotloop.resume.result import Difference

VALUES = {"loss": "loss", "grad_norm": "gradient norm", "learning_rate": "learning rate"}


@dataclass(slots=True)
class Taken:
    """What one process of a training took."""

    first_step: int
    samples: dict[int, list[str]] = field(default_factory=dict)
    """Step to the checksums of its sequences; after going back from a spike those that count."""


def taken_by(directory: Path, rank: int = 0) -> list[Taken]:
    """What the processes of a training took, one after the other; what a kill left torn is passed over."""
    found: list[Taken] = []
    path = directory / samples_name(rank)
    for _, line in object_lines(path) if path.exists() else ():
        if isinstance(line, dict) and "from_step" in line:
            found.append(Taken(line["from_step"]))
        elif isinstance(line, dict):
            found[-1].samples[line["step"]] = line["samples"]
    return found


def steps_lost(taken: Sequence[Taken]) -> list[int]:
    """Completed steps that a later process made again, for each process that was the next to make any."""
    made = [each for each in taken if each.samples]
    return [max(0, max(one.samples) - two.first_step) for one, two in pairwise(made)]


def compare_samples(reference: Mapping[int, list[str]], taken: Sequence[Taken]) -> list[Difference]:
    """The first step that took other samples than it should, in any process."""
    wrong = [step for each in taken for step, s in each.samples.items() if s != reference.get(step)]
    wrong += reference.keys() - {step for each in taken for step in each.samples}
    detail = "other sequences, or in another order"
    return [Difference("samples", min(wrong), detail)] if wrong else []


def records_of(path: Path) -> dict[int, StepRecord]:
    return {record.step: record for record in newest_steps(path)}


def compare_steps(
    reference: Mapping[int, StepRecord], others: Sequence[Mapping[int, StepRecord]]
) -> list[Difference]:
    """The first step for each value that differs; others: what was recorded at each kill, and at the end."""
    found = []
    for name, what in VALUES.items():
        pairs = [
            (step, repr(getattr(reference.get(step), name, None)), repr(getattr(record, name)))
            for records in others
            for step, record in records.items()
        ]
        if unlike := [pair for pair in pairs if pair[1] != pair[2]]:
            step, one, other = min(unlike)
            found.append(Difference(what, step, f"{other} instead of {one}"))
    if missing := reference.keys() - others[-1].keys():
        found.append(Difference("steps", min(missing), "it is not recorded"))
    return found


State = tuple[dict[str, dict[str, Tensor]], dict[str, Any]]


def final_state(directory: Path, step: int) -> State | None:
    """All that the checkpoint of the last step holds; `None` where none is good."""
    found, _ = store.latest(directory / "checkpoints")
    if found is None or found.step != step:
        return None
    names = [name for name in sorted(found.files) if name.endswith(".safetensors")]
    return store.load(found, tuple(name.removesuffix(".safetensors") for name in names))


def compare_states(reference: State | None, other: State | None) -> list[Difference]:
    """What differs in the last checkpoints, to the bit; one difference for each file."""
    if reference is None or other is None:
        return [Difference("checkpoint", None, "there is no good one of the last step")]
    found = []
    for file in sorted(reference[0].keys() | other[0].keys()):
        one, two = reference[0].get(file, {}), other[0].get(file, {})
        unlike = [
            key for key in sorted(one.keys() | two.keys()) if _bits(one, key) != _bits(two, key)
        ]
        if unlike:
            detail = f"{len(unlike)} of {len(one)} tensors, the first {unlike[0]}"
            found.append(Difference(file, None, detail))
    keys = sorted(reference[1].keys() | other[1].keys())
    unlike = [key for key in keys if repr(reference[1].get(key)) != repr(other[1].get(key))]
    return found + [Difference("state.json", None, ", ".join(unlike))] * bool(unlike)


def _bits(tensors: Mapping[str, Tensor], key: str) -> tuple[object, ...] | None:
    if (tensor := tensors.get(key)) is None:
        return None
    bits = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return tensor.dtype, tensor.shape, bits


def weights_apart(reference: State, other: State) -> float:
    """The largest difference of a weight over the largest weight."""
    one, two = reference[0]["model"], other[0]["model"]
    largest = max(float(weight.abs().max()) for weight in one.values())
    return max(float((one[key] - two[key]).abs().max()) for key in one) / (largest or 1.0)
