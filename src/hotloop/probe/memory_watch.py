"""Looks at the memory of a process that trains, and keeps a small file current: what the kernel kills says nothing more.

A thread reads one number of the kernel, or of the device's allocator, a few times a second, and writes the file every two seconds,
of a block every ten. No call waits for a device.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from hotloop.core.errors import HotloopError
from hotloop.core.memory_use import MemoryNote, memory_refusal
from hotloop.hardware.limits import (
    innermost_group,
    memory_bound,
    memory_kills,
    memory_left_bytes,
    memory_used_bytes,
)
from hotloop.probe.background import Background
from hotloop.probe.foreign_process import parameters_of
from hotloop.probe.machine import children_of, host_peak_bytes, private_bytes

EVERY_S = 0.2
WRITTEN_EVERY = 10
"""Looks."""
GREW = 1.1
"""Times what was written: from there on at once."""
COUNTED_LOOKS = 50
"""In which tensors are counted: their sizes change no more."""
LOOKS_BELOW = frozenset({10, 20, 40, 80, 160, 320})
"""At which processes below are looked at: that takes about 10 ms per GB."""
_PHASES = (
    ("torch/nn/modules/module.py", "_call_impl", "forward"),
    ("torch/_tensor.py", "backward", "backward"),
    ("torch/autograd/__init__.py", "backward", "backward"),
    ("torch/optim/optimizer.py", "wrapper", "optimizer"),
    ("torch/utils/data/dataloader.py", "__next__", "data_wait"),
    ("hotloop/train/evaluate.py", "evaluate", "eval"),
    ("hotloop/train/loop.py", "save", "checkpoint"),
    ("hotloop/finetune/conduct.py", "_kept", "export"),
)
"""File and function by which a traceback shows the phase that it came from: by then the clock has closed them all."""
_NOT_THEIRS = ("/torch/", "/site-packages/", "/hotloop/", "<", "/lib/python")


class MemoryWatch:
    """What is asked of it never raises for want of memory or disk."""

    def __init__(self, directory: Path, name: str | None = None) -> None:
        """name: of its file in `directory`; `None`: the id of the process that trains."""
        self._directory = self._path = directory
        self._name = name
        self._pid: int | None = None
        self.start = "start" if name is None else "process"
        """The owner of what is there when it begins: of a script with what it has loaded by then."""
        self.device = torch.device("cpu")
        self.step: Callable[[], int | None] = lambda: None
        self.phase: Callable[[], str] = lambda: "unattributed"
        self.optimizers: Callable[[], Iterable[Any]] = tuple
        self.is_wanted: Callable[[], bool] = lambda: True
        self.written_every = WRITTEN_EVERY
        self.beside: Callable[[], dict[str, int]] = dict
        """Other tensors that stay, by owner."""
        self.background = Background("hotloop-memory", self._turn, first_s=EVERY_S)
        self._owners: dict[str, int] = {}
        self._phases: dict[str, int] = {}
        self._now: int | None = None
        self._looks = self._length = self._below = self._written = 0
        self._group: Path | None = None
        self._bound: tuple[int, str] | None = None
        self._kills: dict[str, int] = {}
        self._before: int | None = None
        """The highest memory when the training began: a peak that is no higher later is that one."""

    @contextmanager
    def watching(self, *, thread: bool) -> Iterator[None]:
        """Around a training that begins inside. thread: it is looked at while it trains, not at its end alone."""
        if thread:
            self.background.start()
        try:
            yield
            self._last_look()
        except Exception as error:
            if memory_refusal(error) is not None and not isinstance(error, HotloopError):
                self.failed(error)
            raise
        finally:
            self.background.stop()

    def begin(self) -> None:
        """Before there is a model; or, where that is there already, as soon as an optimizer is."""
        if self._pid is not None:
            return
        self._pid = os.getpid()
        self._path = self._directory / f"memory-{self._name or self._pid}.json"
        self._group = innermost_group()
        self._bound, self._kills = memory_bound(), memory_kills(self._group)
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
        self._before = self._peak()
        self._count()
        there = sum(self._owners.values()) if self.device.type == "cpu" else 0
        self._owners[self.start] = max((statm_bytes(1) or 0) - there, 0)
        self._write()

    def finish(self, error: BaseException | None) -> None:
        """At the end of what is watched. error: what ended it."""
        if error is not None and memory_refusal(error) is not None:
            self.failed(error)
        else:
            self._last_look()

    def _last_look(self) -> None:
        if self._pid == os.getpid():  # not of a child that was forked
            self._look()
            self._count()
            self._write()

    def failed(self, error: BaseException) -> None:
        """The error that ends the training says that memory was refused."""
        self.background.stop()
        phase, line = _place(error)
        said = memory_refusal(error) or error
        text = f"{type(said).__name__}: {said}".split("\n")[0][:400]
        with suppress(Exception):  # whatever it is: the error itself is what has to be told
            self.begin()
            soft, _ = resource.getrlimit(resource.RLIMIT_AS)
            if self.device.type == "cpu" and soft != resource.RLIM_INFINITY:
                self._bound = (soft, "RLIMIT_AS, `ulimit -v`")
            self._count()
            self._write(failed=text, phase=phase, line=line)

    def _turn(self) -> float | None:
        if not self.is_wanted():
            return None
        if self._pid is None:
            return EVERY_S
        self._look()
        if self._looks in LOOKS_BELOW or self._looks % 500 == 0:
            self._look_below()
        grew = (self._now or 0) > GREW * self._written  # it may not live to the next second
        if grew or self._looks % self.written_every == 0:
            if self._looks <= COUNTED_LOOKS:
                self._count()
            self._write()
        return EVERY_S

    def _look(self) -> None:
        self._looks += 1
        phase = self.phase()
        now = self._now = self._read()
        if now is not None and now > self._phases.get(phase, 0):
            self._phases[phase] = now

    def _peak(self) -> int | None:
        """The highest memory of the process so far."""
        on_device = self.device.type == "cuda"
        return torch.cuda.max_memory_allocated(self.device) if on_device else host_peak_bytes()

    def _read(self) -> int | None:
        if self.device.type == "cuda":
            return int(torch.cuda.memory_allocated(self.device))
        return statm_bytes(1)

    def _count(self) -> None:
        """Sizes of the tensors that stay, each at its largest so far."""
        with suppress(RuntimeError):  # the thread that trains adds to what is looked through
            kept = {id(p): p for each in self.optimizers() for p in parameters_of(each)}
            stepped = bool(self.step())
            states = [getattr(each, "state", {}) for each in self.optimizers()]
            held = [each for state in states for each in list(state.values())]
            slots = [
                slot for each in held if isinstance(each, dict) for slot in list(each.values())
            ]
            graded = [
                p for p in kept.values() if p.requires_grad and (stepped or p.grad is not None)
            ]
            found = {
                "weights": self._size(kept.values()),
                "gradients": self._size(graded),
                "optimizer": self._size(slots),
                **self.beside(),
            }
            for name, value in found.items():
                self._owners[name] = max(value, self._owners.get(name, 0))

    def _size(self, tensors: Iterable[Any]) -> int:
        """On the device that trains; of a sharded tensor what lies here."""
        here = [getattr(each, "_local_tensor", each) for each in tensors]
        kind = self.device.type
        return sum(t.nbytes for t in here if isinstance(t, torch.Tensor) and t.device.type == kind)

    def _look_below(self) -> None:
        self._below = max(sum(map(private_bytes, children_of("self"))), self._below)

    def _used(self) -> int | None:
        """Bytes of what the limit counts."""
        if self._bound is None:
            return None
        limit, source = self._bound
        if source.startswith("RLIMIT"):
            return statm_bytes(0)
        if source.startswith("the control group"):
            return memory_used_bytes()
        left = memory_left_bytes()
        return None if left is None else limit - left

    def _write(
        self, *, failed: str | None = None, phase: str | None = None, line: str | None = None
    ) -> None:
        on_device = self.device.type == "cuda"
        if on_device and self._bound is not None and self._bound[1] != "the memory of the GPU":
            whole = torch.cuda.get_device_properties(self.device).total_memory
            self._bound = (whole, "the memory of the GPU")
        self._written = self._now or 0
        limit, source = self._bound or (None, None)
        peak = self._peak()
        # Of an older peak, what was given back before the training began.
        if peak is not None and self._phases:
            freed = peak - max(self._phases.values()) if peak <= (self._before or 0) else 0
            self._owners["freed"] = max(freed, 0)
        used = torch.cuda.memory_reserved(self.device) if on_device else self._used()
        if failed or not self._below:
            self._look_below()
        note = MemoryNote(
            pid=os.getpid(),
            at=time.time(),
            device=str(self.device),
            step=self.step(),
            phase=phase or (None if failed else self.phase()),
            now_bytes=self._now,
            peak_bytes=peak,
            used_bytes=used,
            owners=self._owners,
            workers_bytes=self._below,
            phases=self._phases,
            limit_bytes=limit,
            limit_from=source,
            group=None if self._group is None else str(self._group),
            kills=self._kills,
            failed=failed,
            line=line,
        )
        text = json.dumps(asdict(note))
        # In one write and never cut before: a kill leaves the old text or the new.
        self._length = max(self._length, len(text))
        with suppress(OSError):
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                os.write(descriptor, text.ljust(self._length).encode())
            finally:
                os.close(descriptor)


def statm_bytes(column: int) -> int | None:
    """Addresses (0) or resident bytes (1) of this process; `None` where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read().split()[column]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _place(error: BaseException) -> tuple[str | None, str | None]:
    """The phase that an error came from, and the innermost line of the user's own code."""
    phase = line = None
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        file = code.co_filename.replace(os.sep, "/")
        for source, function, name in _PHASES:
            # The outermost; but an optimizer's step may hold whole passes (closures).
            if file.endswith(source) and code.co_name == function and phase in (None, "optimizer"):
                phase = name
        if not any(part in file for part in _NOT_THEIRS):
            line = f"{Path(file).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return phase, line
