"""The phases of training in sampled stacks: shares with intervals, the user's own lines, and what they look like."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean, variance

from hotloop.core.census import LineUse
from hotloop.core.errors import UsageError
from hotloop.core.stack_profile import SampledLine, SampledPhase, StackProfile, WorthTrying
from hotloop.doctor.live_process import PER_SECOND, Frame, LiveProcess, Stack
from hotloop.judge.findings import title_of
from hotloop.judge.own_code import prepares_data
from hotloop.judge.thresholds import NOTICEABLE, WORKERS_BUSY
from hotloop.optimizations.catalogue import CATALOGUE
from hotloop.probe.attach.sites import is_installed, module_of

MAX_LINES = 3
BLOCKS = 20
FEW_CHANGES = 20
"""Changes from one phase to another; with fewer it may be only a handful of steps that was seen."""
BOOT_S = 1.0
"""When a process started is known from the second in which the machine did."""
_OPENED_BY = {
    "data_wait": r"torch/utils/data/dataloader\.py:(__next__|__iter__)",
    "forward": r"torch/nn/modules/module\.py:_(wrapped_)?call_impl",
    "backward": r"torch/(_tensor|autograd/__init__)\.py:(backward|grad)",
    "optimizer": r"torch/optim/(?!lr_scheduler)\w+\.py:(step|wrapper)",
    "grad_sync": r"torch/distributed/distributed_c10d\.py:((all_|reduce|broadcast|gather|scatter|barrier)\w*|wait)",
    "sync": r"torch/cuda/(__init__|streams)\.py:synchronize",
    "checkpoint": r"(torch/serialization|safetensors/torch|torch/distributed/checkpoint/\w+)\.py:(async_)?save(_file|_model)?",
    "logging": r"(tensorboard|tensorboardX)/writer\.py:(add_\w+|flush)|(wandb_run|tracking/fluent)\.py:log\w*"
    r"|tqdm/std\.py:(update|refresh|set_postfix|close)|python3\.\d+/logging/__init__\.py:callHandlers",
}
"""The end of a frame's file, and its function, by the phase that they open."""
_OPENS = {phase: re.compile(rf"/({pattern})$") for phase, pattern in _OPENED_BY.items()}
_WHOLE = frozenset({"data_wait", "checkpoint", "logging"})
"""All that is called in these belongs to them: a transform of images may be a module."""
_UPDATING = frozenset({"backward", "optimizer"})
_TRAINING = _UPDATING | {"data_wait", "forward"}
_READS = re.compile(r"\.(item|tolist|cpu|numpy)\(\)")
_LIBRARY = re.compile(r"/python3\.\d+/|\.zip/|/torchinductor_|^<(?!string>|stdin>)")
_DATA = "torch/utils/data/_utils/"
_CODES = {"grad_sync": "HL601", "sync": "HL204", "checkpoint": "HL701", "logging": "HL703"}


def profile_stacks(
    threads: Mapping[tuple[int, str], Sequence[Stack]], process: LiveProcess
) -> StackProfile:
    """The thread that trains, in the process or below it; else its main one.

    Raises `UsageError` for a loader worker.
    """
    workers = [inner for stacks in threads.values() for s in stacks if (inner := _of_worker(s))]
    phases = {
        key: [_phase(stack, process) for stack in stacks]
        for key, stacks in threads.items()
        if stacks and not _of_worker(stacks[-1])
    }
    if not phases:
        do = "name the one that started it"
        raise UsageError(f"PID {process.pid} makes batches for another process", do=do)
    # Other threads may load batches or play with the model. A main thread has the number of its process.
    pid, thread = max(
        phases,
        key=lambda key: (
            *(_seen(phases[key], among) for among in (_UPDATING, _TRAINING)),
            key[0] == process.pid,
            str(key[0]) == key[1],
        ),
    )
    stacks, of_stacks = threads[pid, thread], phases[pid, thread]
    making = [_has(stack, f"{_DATA}fetch.py") for stack in workers]
    codes = _Codes(stacks, of_stacks, busy=fmean(making) if making else 0.0)
    return StackProfile(
        pid=pid,
        command=process.command,
        num_samples=len(stacks),
        seconds=len(stacks) / PER_SECOND,
        trains=_seen(of_stacks, _TRAINING) > 0,
        phases=tuple(
            _sampled(phase, [each == phase for each in of_stacks], stacks, process, codes)
            for phase, _ in Counter(of_stacks).most_common()
        ),
        workers=_sampled("making batches", making, workers, process) if making else None,
        notes=(*process.notes, *_notes(of_stacks, process)),
    )


def interval(hits: Sequence[bool]) -> tuple[float, float, float]:
    """Share, low and high by Wilson at 95 %, for as many samples as explain the scatter between blocks of time.

    Samples are alike for as long as a phase lasts: of steps that take seconds a thousand are worth a few.
    """
    num, share, blocks = len(hits), fmean(hits), min(BLOCKS, len(hits))
    means = [fmean(hits[i * num // blocks : (i + 1) * num // blocks]) for i in range(blocks)]
    scatter = variance(means) / blocks if blocks > 1 else 0.0
    worth = min(num, share * (1 - share) / scatter) if scatter else num
    z = 1.96
    middle = share + z * z / (2 * worth)
    half = z * math.sqrt(share * (1 - share) / worth + (z / (2 * worth)) ** 2)
    whole = 1 + z * z / worth
    return share, max((middle - half) / whole, 0.0), min((middle + half) / whole, 1.0)


def _sampled(
    phase: str,
    hits: Sequence[bool],
    stacks: Sequence[Stack],
    process: LiveProcess,
    codes: _Codes | None = None,
) -> SampledPhase:
    share, low, high = interval(hits)
    seen = [stack for stack, hit in zip(stacks, hits) if hit]
    frames = Counter(frame for stack in seen if (frame := _own_frame(stack)))
    below = f"{process.directory.rstrip('/')}/"
    return SampledPhase(
        phase,
        share,
        low,
        high,
        lines=tuple(
            SampledLine(
                f"{frame.file.removeprefix(below)}:{frame.line}",
                frame.function,
                number / len(stacks),
                _text(frame, process.started_at),
            )
            for frame, number in frames.most_common(MAX_LINES)
        ),
        worth_trying=tuple(
            WorthTrying(
                code,
                title_of(code),
                tuple(f.name for f in CATALOGUE.values() if f.live_form and code in f.answers),
            )
            for code in (codes.of(phase, seen) if codes is not None and low >= NOTICEABLE else ())
        ),
    )


class _Codes:
    """The findings that samples look like, by what is on their stacks."""

    def __init__(self, stacks: Sequence[Stack], phases: Sequence[str], *, busy: float) -> None:
        """busy: share of their time in which loader workers make batches."""
        self._late = "HL104" if busy >= WORKERS_BUSY else "HL101"
        self._compiled = any(_has(s, "torch/_dynamo/eval_frame.py:compile_wrapper") for s in stacks)
        pairs = zip(stacks, phases)
        self._trains_at = {_own_frame(stack) for stack, phase in pairs if phase in _TRAINING}

    def of(self, phase: str, stacks: Sequence[Stack]) -> tuple[str, ...]:
        """Those that most of the samples of a phase look like."""
        return Counter(self._of(phase, stack) for stack in stacks).most_common(1)[0][0]

    def _of(self, phase: str, stack: Stack) -> tuple[str, ...]:
        if phase == "data_wait":
            if not _has(stack, f"{_DATA}fetch.py"):
                return (self._late,)
            return ("HL103",) if _has(stack, f"{_DATA}collate.py") else ("HL102",)
        if phase == "optimizer":
            return () if _has(stack, ":_fused_") else ("HL401",)
        if phase in ("forward", "backward"):  # in which precision is not seen
            return ("HL301",) if self._compiled else ("HL301", "HL302")
        if phase != "unattributed":
            return (_CODES[phase],)
        frame = _own_frame(stack)
        # A line that also calls the model or the loader, and what calls torch, is computing.
        if frame is None or frame in self._trains_at:
            return ()
        inside = None if frame is stack[-1] else f"{module_of(stack[-1].file)}.{stack[-1].function}"
        if inside is not None and re.match(r"torch\.(?!utils|serialization|hub)", inside):
            return ()
        feeds = any(re.search(r"__(next|iter|getitem)__$", f.function) for f in stack if _is_own(f))
        line = LineUse(phase, "", frame.function, 0.0, inside=inside, feeds=feeds)
        return ("HL107",) if prepares_data(line) else ("HL801",)


def _notes(phases: Sequence[str], process: LiveProcess) -> list[str]:
    changes = sum(before != after for before, after in pairwise(phases))
    notes = []
    if not _seen(phases, _TRAINING):
        notes.append("nothing of torch's training was seen: it may be starting, or train elsewhere")
    elif changes < FEW_CHANGES:
        notes.append(
            f"the phase changed {changes} times only; where steps are long, few were seen (--seconds N)"
        )
    if process.uses_gpu:
        notes.append(
            "it uses a GPU: lines stand for what the host did, and one that waits for the GPU for all that it waited for"
        )
    return notes


def _seen(phases: Sequence[str], among: Set[str]) -> int:
    return sum(phase in among for phase in phases)


def _phase(stack: Stack, process: LiveProcess) -> str:
    """The innermost phase, as a run under the doctor books it."""
    phase = "unattributed"
    for frame in stack:
        opened = _opened_by(frame)
        if opened and phase not in _WHOLE and (phase, opened) != ("backward", "forward"):
            phase = opened
    # No frame shows such a wait, so the line's own text has to; on a CPU it waits for nothing.
    if phase == "unattributed" and process.uses_gpu and stack and _is_own(stack[-1]):
        return "sync" if _READS.search(_text(stack[-1], process.started_at) or "") else phase
    return phase


@lru_cache(maxsize=100_000)
def _opened_by(frame: Frame) -> str | None:
    place = _place(frame)
    return next((phase for phase, pattern in _OPENS.items() if pattern.search(place)), None)


def _place(frame: Frame) -> str:
    return f"{frame.file}:{frame.function.rpartition('.')[2]}"


def _has(stack: Stack, part: str) -> bool:
    return any(part in _place(frame) for frame in stack)


def _of_worker(stack: Stack) -> Stack:
    """What a loader worker is doing, without what its process was forked from; empty outside of one."""
    for number, frame in enumerate(stack):
        if frame.file.endswith(f"{_DATA}worker.py"):
            return stack[number:]
    return ()


def _is_own(frame: Frame) -> bool:
    """Whether it is the user's own code: neither installed, nor Python's, nor generated."""
    return not (is_installed(frame.file) or _LIBRARY.search(frame.file))


def _own_frame(stack: Stack) -> Frame | None:
    return next((frame for frame in reversed(stack) if _is_own(frame)), None)


def _text(frame: Frame, started_at: float) -> str | None:
    """The line as it was when the process started."""
    lines = _lines(frame.file, started_at)
    return lines[frame.line - 1].strip() if 0 < frame.line <= len(lines) else None


@lru_cache(maxsize=1000)
def _lines(file: str, started_at: float) -> tuple[str, ...]:
    try:
        if Path(file).stat().st_mtime < started_at + BOOT_S:
            return tuple(Path(file).read_text(encoding="utf-8", errors="replace").splitlines())
    except OSError:
        pass
    return ()
