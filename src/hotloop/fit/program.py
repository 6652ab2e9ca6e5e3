"""Does a training fit: its peak predicted, calibrated and measured, the largest microbatch, and ways to make it fit.

```
rehearsed  the config, by processes that compute nothing (`train/rehearsal.py`); of a GPU a trace (`train/memory.py`)
calibrated a real run of a few steps at a microbatch of 1 (of half the context where that is the config's): how much more
           it takes than its rehearsal is what libraries take once they compute; of a compiled model on a GPU two runs,
           of a quarter and half of the microbatch, which also say what part of the traced activations is kept
measured   a real run of the config itself, which the prediction never saw
searched   a line through two rehearsals says which microbatch fills the memory; that one is rehearsed, too
```
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hotloop.core.errors import CommandFailed
from hotloop.core.memory_use import Fit, Rehearsed, Way, is_for_memory, ways_left
from hotloop.fit.processes import (
    ACCUMULATED,
    MICROBATCH,
    Processes,
    peak_bytes,
    words,
)
from hotloop.optimizations.compiling import WITH_GRAPHS
from hotloop.train.rehearsal import MEASURED_STEPS

MOST_SEQUENCES = 1 << 16
NOT_EVEN_ADDRESSES = 1 << 62
"""The peak of what a rehearsal cannot allocate, which writes to none of it."""
LOOKS = 4
"""Rehearsals with which the largest microbatch is looked for."""
CONTEXT = "model.context"
OF_A_GPU = "the CUDA context, and what the GPU's allocator keeps beyond its tensors"
LEFT_OUT = "what a compiler leaves out: the uncompiled model was traced, which takes more"


@dataclass(frozen=True, slots=True)
class Limit:
    """The memory that is to be enough."""

    num_bytes: int
    told_by: str
    here_bytes: int
    """Memory that this machine can give now, to the runs that are made here."""


def fit(processes: Processes, limit: Limit, *, device: str, runs: bool, most_sequences: int) -> Fit:
    """runs: real ones are made. most_sequences: of a step that the text has.

    Raises what processes raise; of a real run that is ended for its memory it is told among what is unknown.
    """
    config = processes.settings.config
    size, accumulated = config.train.microbatch, config.train.grad_accum_steps
    asked = processes.rehearse(short({MICROBATCH: size}, accumulated))
    calibration, offset, unknown = None, 0, []
    is_ended = False  # a real run, for its memory
    if runs:
        # The settings of the run that calibrates: never those of the config.
        smaller = {MICROBATCH: 1}
        if size == 1:
            smaller[CONTEXT] = max(config.model.context // 2, 1)
        changes = short(smaller, accumulated)
        try:
            if processes.machine.device_type != "cpu" and processes.compiles and size >= 4:
                changes = _see_what_is_kept(processes, size, accumulated, limit) or changes
                asked = processes.rehearse(short({MICROBATCH: size}, accumulated))
            offset = _more_than_rehearsed(processes, changes, limit)
            calibration = words(changes)
        except CommandFailed as error:
            if not is_for_memory(error):
                raise
            is_ended = True
            unknown.append("the calibrating run was ended for its memory")
    else:
        unknown.append("what libraries take once they compute: no real run was made")
    if processes.machine.device_type != "cpu":
        unknown.append(OF_A_GPU)
        if processes.compiles and processes.kept_fraction is None:
            unknown.append(LEFT_OUT)
        if processes.compiles in WITH_GRAPHS:
            unknown.append("the memory that CUDA graphs keep for themselves")
    predicted, whole = asked.steps_bytes + offset, asked.whole_bytes + offset
    measured = None
    if calibration is not None:
        if predicted > limit.here_bytes:
            unknown.append("the measured peak: this machine has less memory free than predicted")
        else:
            try:
                changes = short({MICROBATCH: size}, accumulated)
                measured = peak_bytes(processes.run(changes, steps=MEASURED_STEPS))
            except CommandFailed as error:
                if not is_for_memory(error):
                    raise
                is_ended = True
                unknown.append("the measured peak: the run was ended for its memory")
    fits = max(whole, measured or 0) <= limit.num_bytes
    # What this machine was too small for does not fit in less.
    fits = fits and not (is_ended and limit.num_bytes <= limit.here_bytes)
    most = max(most_sequences // accumulated, 1)
    largest, peaks = _largest(processes, asked, offset, limit.num_bytes, most)
    return Fit(
        device=device,
        microbatch=size,
        grad_accum_steps=accumulated,
        parts=_parts(asked, offset),
        steps_bytes=predicted,
        whole_bytes=whole,
        calibrated_by=calibration,
        measured_bytes=measured,
        error_fraction=None if measured is None else predicted / measured - 1,
        limit_bytes=limit.num_bytes,
        limit_from=limit.told_by,
        fits=fits,
        largest_microbatch=largest,
        least_bytes=peaks[1],
        ways=() if fits else _ways(processes, offset, limit.num_bytes, largest),
        unknown=tuple(unknown),
        measured=dict(processes.peaks),
        by_microbatch=_by_microbatch(peaks, size, most),
    )


def short(changes: Mapping[str, Any], accumulated: int) -> dict[str, Any]:
    """A step of at most two microbatches: the third takes what the second did."""
    return {**changes, ACCUMULATED: min(accumulated, 2)}


def splits(size: int, accumulated: int) -> list[int]:
    """Microbatches that divide a step of `size` x `accumulated` sequences, the largest first."""
    whole = size * accumulated
    return [each for each in range(whole, 0, -1) if whole % each == 0]


def _more_than_rehearsed(processes: Processes, changes: Mapping[str, Any], limit: Limit) -> int:
    """Bytes that a real run took beyond its rehearsal."""
    rehearsed = processes.rehearse(changes).steps_bytes
    if rehearsed > limit.here_bytes:
        raise CommandFailed("out of memory", returncode=-9)
    known = None if CONTEXT in changes else processes.peaks.get(changes[MICROBATCH])
    return (known or peak_bytes(processes.run(changes, steps=MEASURED_STEPS))) - rehearsed


def _see_what_is_kept(
    processes: Processes, size: int, accumulated: int, limit: Limit
) -> dict[str, Any] | None:
    """Of the activations of a trace, the part that the compiled steps keep: by how two real runs differ. Returns the larger one's changes.

    Not of a microbatch of 1, whose peak may be where the optimizer works.
    """
    pair = [short({MICROBATCH: size // part}, accumulated) for part in (4, 2)]
    few, many = map(processes.rehearse, pair)
    if many.steps_bytes > limit.here_bytes:
        return None
    less, more = (peak_bytes(processes.run(each, steps=MEASURED_STEPS)) for each in pair)
    left_out = many.steps_bytes - few.steps_bytes - (more - less)
    kept = 1 - left_out / (many.activations_bytes - few.activations_bytes)
    processes.kept_fraction = max(kept, 0.0)
    return pair[1]


def _parts(asked: Rehearsed, offset: int) -> dict[str, int]:
    """The predicted peak of a whole training, in parts that add up to it."""
    known = {
        "weights": asked.weights_bytes,
        "gradients": asked.gradients_bytes,
        "optimizer": asked.optimizer_bytes,
        "averaged weights": asked.averaged_bytes,
        "activations": asked.activations_bytes - asked.logits_bytes,
        "logits": asked.logits_bytes,
    }
    known["passing by"] = max(asked.live_bytes - sum(known.values()), 0)
    process = asked.start_bytes + offset
    # What is in use at the peak can be less than the sum of these, which do not all have their most at once.
    freed = asked.steps_bytes - asked.start_bytes - sum(known.values())
    if freed < 0:
        known["activations"] += freed
        freed = 0
    known["freed and kept"] = freed
    known["a save, and later steps"] = asked.whole_bytes - asked.steps_bytes
    known["process"] = process
    return known


def _largest(
    processes: Processes, asked: Rehearsed, offset: int, limit_bytes: int, most: int
) -> tuple[int, dict[int, int]]:
    """The largest microbatch predicted to fit, 0 where one sequence does not; and the peaks that were looked at, by microbatch."""
    config = processes.settings.config
    size, accumulated = config.train.microbatch, config.train.grad_accum_steps

    def whole(microbatch: int) -> int:
        changes = short({MICROBATCH: microbatch}, accumulated)
        try:
            return processes.rehearse(changes).whole_bytes + offset
        except CommandFailed as error:
            if not is_for_memory(error):
                raise
            return NOT_EVEN_ADDRESSES

    peaks = {size: asked.whole_bytes + offset, 1: whole(1)}
    if peaks[1] > limit_bytes:
        return 0, peaks
    if size == 1:
        if most == 1:
            return 1, peaks
        peaks[2] = whole(2)
    most = min(most, MOST_SEQUENCES)
    compiles = processes.compiles and processes.machine.device_type == "cpu"
    for _ in range(LOOKS):
        low, *_, high = sorted(n for n, peak in peaks.items() if peak < NOT_EVEN_ADDRESSES)
        fit_so_far = max(each for each, peak in peaks.items() if peak <= limit_bytes)
        too_large = min((n for n, peak in peaks.items() if peak > limit_bytes), default=most + 1)
        # Where the optimizer or a save needs the most, a peak tells nothing of a sequence, but activations do.
        each_bytes = max((peaks[high] - peaks[low]) / (high - low), asked.activations_bytes / size)
        guess = int(fit_so_far + (limit_bytes - peaks[fit_so_far]) / each_bytes)
        if peaks.get(too_large) == NOT_EVEN_ADDRESSES:
            guess = min(guess, (fit_so_far + too_large) // 2)
        guess = max(min(guess, too_large - 1, most), fit_so_far)
        if compiles:  # the line alone tells: each look would compile for a minute
            return guess, peaks
        if guess in peaks:
            break
        peaks[guess] = whole(guess)
    return max(each for each, peak in peaks.items() if peak <= limit_bytes), peaks


def _by_microbatch(peaks: Mapping[int, int], size: int, most: int) -> dict[int, int]:
    """Those rehearsed, and others on the line through two of these. Up to `most`."""
    known = sorted(n for n, peak in peaks.items() if peak < NOT_EVEN_ADDRESSES)
    found = {size: peaks[size]}
    for each in (max(size // 2, 1), 2 * size, 4 * size):
        if each <= most and len(known) > 1:
            low, high = next((p for p in pairwise(known) if each <= p[1]), (known[-2], known[-1]))
            slope = (peaks[high] - peaks[low]) / (high - low)
            found[each] = peaks.get(each, int(peaks[low] + slope * (each - low)))
    return {n: found[n] for n in sorted(found) if found[n] < NOT_EVEN_ADDRESSES}


def _ways(processes: Processes, offset: int, limit_bytes: int, largest: int) -> tuple[Way, ...]:
    """Settings with which it fits, the cheapest first; several together where no single one is enough."""
    config = processes.settings.config
    size, accumulated = config.train.microbatch, config.train.grad_accum_steps
    found: list[Way] = []
    if processes.rehearse(short({MICROBATCH: 1}, accumulated)).start_bytes + offset > limit_bytes:
        return ()  # the process alone is larger
    smaller = [each for each in splits(size, accumulated) if each < size]

    def tried(changes: Mapping[str, Any], split: int, effect: str) -> bool:
        now = {MICROBATCH: split, ACCUMULATED: size * accumulated // split}
        asked = {**now, **changes} if split != size else dict(changes)
        try:
            rehearsed = processes.rehearse(short({**now, **changes}, now[ACCUMULATED]))
        except (CommandFailed, ValueError):  # a setting that cannot be used here
            return False
        if rehearsed.whole_bytes + offset > limit_bytes:
            return False
        settings = tuple(words({key: value}) for key, value in asked.items())
        found.append(Way(settings, rehearsed.whole_bytes + offset, effect))
        return True

    on_cpu = processes.machine.device_type == "cpu"
    singles = ways_left(processes.with_changes({}).config.flat(), on_cpu=on_cpu)
    if not on_cpu:  # what a compiler leaves out is not in a trace
        singles = [(c, why) for c, why in singles if "train.compile" not in c]
    no_split = not any(
        tried({}, each, "the same steps in more, smaller products")
        for each in smaller
        if each <= largest
    )
    for changes, effect in singles:
        tried(changes, size, effect)
    if no_split and not found:
        together: dict[str, Any] = {}
        for changes, _ in singles:
            together |= changes
            if tried(together, splits(size, accumulated)[-1], "all of these together"):
                break
    return tuple(found)
