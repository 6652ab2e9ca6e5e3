"""What each update of somebody's script begins from, for the proof that its resume is exact; and the kill.

`HOTLOOP_RESUME_TRACE` names a directory whose `plan.json` says when to kill this process and when to stop it, and holds the
weights of the steps before: they give the first step of a process that continues its number. `trace.jsonl` there
gets a line for each update and save, at once: this process ends with SIGKILL.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from hotloop.core.child import RESUME_TRACE
from hotloop.probe import entry
from hotloop.probe.foreign_process import (
    end_process,
    learns,
    parameters_of,
    refuse_untested_torch,
    write_note,
)
from hotloop.probe.imports import after_import
from hotloop.probe.step_rule import Ends, StepRule

MOST_WAIT_S = 60.0
"""For a save in the background, before the kill in a step."""
SAVERS = {"safetensors.torch": "serialize_file", "hotloop.checkpoint.store": "save"}


class ResumeTrace:
    """Watches forwards, passes backward, updates and saves of this process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._plan: dict[str, Any] = json.loads((directory / "plan.json").read_text("utf-8"))
        self._kill: dict[str, Any] = self._plan.get("kill", {})
        self._rule, self._optimizers = StepRule(), list[torch.optim.Optimizer]()
        self._active = os.environ.get("RANK", "0") == "0"
        self._file, self._first, self._began_at = -1, 0, 0.0
        self._batch: tuple[bool, dict[str, Any]] | None = None
        """The first since the last pass backward, and whether it was one of training."""
        self._line: dict[str, Any] = {}
        """Of the update to come."""
        self._saving, self._saved_at, self._group, self._call = 0, -1, -1, 0

    def install(self) -> None:
        """Hook this process."""
        call = torch.nn.Module.__call__

        def watched(module: Any, *args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_compiling() and torch.is_grad_enabled():
                self._guarded(self._forward, module, (args, kwargs))
            return call(module, *args, **kwargs)

        watched.__wrapped__ = call  # type: ignore[attr-defined]  # dynamo takes it for the original
        torch.nn.Module.__call__ = watched  # type: ignore[method-assign]
        entry.around_method(torch.Tensor, "backward", self._backward)
        entry.before_step(lambda optimizer: self._guarded(self._before, optimizer))
        entry.after_step(lambda optimizer: self._guarded(self._after, optimizer))
        entry.after_called_step(lambda: self._guarded(self._after, None))
        entry.around_call(torch, "save", self._save)
        for module, name in SAVERS.items():
            after_import({module: lambda found, of=name: entry.around_call(found, of, self._save)})  # type: ignore[misc]
        os.register_at_fork(after_in_child=lambda: setattr(self, "_active", False))

    def _guarded(self, action: Any, *arguments: Any) -> None:
        if self._active:
            try:
                action(*arguments)
            except Exception as error:  # noqa: BLE001 - the script must go on
                self._active = False
                write_note(self._directory, f"the trace failed: {type(error).__name__}: {error}")

    def _forward(self, module: torch.nn.Module, given: Any) -> None:
        if self._batch is not None and (self._batch[0] or not module.training):
            return
        if learns(module):  # no transform of the data
            seen = {"samples": _digest(_tensors(given)), "buffers": _digest(module.buffers())}
            self._batch = (module.training, {**seen, "random": _random_states()})

    def _backward(self, original: Any, loss: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        self._guarded(self._went_backward, loss)
        self._batch = (True, {})  # forwards from here are parts that are computed again
        try:
            return original(loss, *args, **kwargs)
        finally:
            self._batch = None

    def _went_backward(self, loss: torch.Tensor) -> None:
        seen = self._batch[1] if self._batch else {}
        for name, value in {**seen, "loss": loss.item() if loss.numel() == 1 else 0.0}.items():
            self._line.setdefault(name, []).append(value)

    def _before(self, optimizer: torch.optim.Optimizer) -> None:
        if optimizer not in self._optimizers:
            self._optimizers.append(optimizer)
        weights = parameters_of(optimizer)
        states = [optimizer.state[each] for each in weights if each in optimizer.state]
        names = sorted({name for state in states for name in state})
        settings = [{k: repr(v) for k, v in g.items() if k != "params"} for g in optimizer.param_groups]  # fmt: skip
        self._line |= {
            "by": self._optimizers.index(optimizer),
            "weights": _digest(weights),
            "optimizer": {name: _digest(state.get(name) for state in states) for name in names},
            "settings": settings,
        }
        if self._file < 0:  # the file is there where another process of this run has begun
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
            self._file = os.open(self._directory / "trace.jsonl", flags, 0o644)
            steps, newest = self._plan["known"].get(self._line["weights"]), self._plan["newest"]
            self._first = steps[-1] if steps and newest not in steps else newest
            self._began_at = time.monotonic()
            self._write(first=self._first, matched=bool(steps or not self._plan["known"]))

    def _after(self, optimizer: torch.optim.Optimizer | None) -> None:
        ends = self._rule.called() if optimizer is None else self._rule.updated(optimizer)
        line, self._line = self._line, {}
        self._write(**line, ends=ends.name)
        plan, step = self._plan, self._first + self._rule.steps
        if ends is Ends.NOTHING:
            return
        if step == self._kill.get("step"):
            until = time.monotonic() + MOST_WAIT_S
            while self._saving and time.monotonic() < until:
                time.sleep(0.001)
            self._end("step")
        late = time.monotonic() - self._began_at - plan["seconds"]
        enough = self._group + 1 >= plan["saves"] or (self._group >= 0 and late > 0)
        if (enough and step >= self._saved_at + 2) or late > plan["seconds"] or step >= plan["stop"]:  # fmt: skip
            self._write(end="stopped")
            end_process()

    def _save(self, original: Any, first: Any, place: Any, *args: Any, **kwargs: Any) -> Any:
        """A call that saves. The one to be killed in leaves its file cut, as if it had been in the middle."""
        if not self._active or self._file < 0:
            return original(first, place, *args, **kwargs)
        step = self._first + self._rule.steps
        if not self._saving and step != self._saved_at:
            self._saved_at, self._group, self._call = step, self._group + 1, 0
        self._saving, self._call = self._saving + 1, self._call + 1
        is_last = (self._kill.get("group"), self._kill.get("call")) == (self._group, self._call)
        file = place if isinstance(place, (str, os.PathLike)) else getattr(place, "name", "")
        parts: dict[str, list[str]] = {}
        with suppress(Exception):  # whatever objects do when they are printed
            for name, each in _parts(first).items():
                parts[f"`{name}` in {Path(str(file)).name}"] = each
        try:
            return original(first, place, *args, **kwargs)
        finally:
            if is_last:
                with suppress(OSError, AttributeError):  # in memory nothing was on the disk
                    if not isinstance(place, (str, os.PathLike)):
                        place.flush()
                        place = place.fileno()
                    size = os.stat(place).st_size  # noqa: PTH116
                    os.truncate(place, int(self._kill["fraction"] * size))
                self._end("save")
            self._saving -= 1
            self._write(save=self._saved_at, group=self._group, parts=parts)

    def _end(self, moment: str) -> None:
        # The step after this one was not begun: what an earlier call saved of now would be the weights of none.
        weights = _digest(parameters_of(self._optimizers[0]))
        self._write(end="killed", moment=moment, step=self._first + self._rule.steps, weights=weights)  # fmt: skip
        os.kill(os.getpid(), signal.SIGKILL)

    def _write(self, **line: Any) -> None:
        if self._file >= 0:
            os.write(self._file, json.dumps(line).encode() + b"\n")


def _parts(saved: Any) -> dict[str, list[str]]:
    """Of each entry of what is saved: digests of its tensors, and of its numbers. Text may be of this start of the script."""
    saved = saved.state_dict() if isinstance(saved, torch.nn.Module) else saved
    entries = saved if isinstance(saved, Mapping) else {"": saved}
    found = {}
    for name, value in entries.items():
        leaves = list(_leaves(value))
        numbers = [each for each in leaves if isinstance(each, (bool, int, float, complex))]
        found[str(name)] = [_digest(_tensors(leaves)), _digest(numbers)]
    return found


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    return (each for each in _leaves(value) if isinstance(each, torch.Tensor))


def _leaves(value: Any) -> Iterator[Any]:
    value = value.state_dict() if isinstance(value, torch.nn.Module) else value
    if isinstance(value, Mapping):
        for name in sorted(value, key=str):
            yield from _leaves(value[name])
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _leaves(each)
    elif not isinstance(value, (set, frozenset)):  # their order is that of the process
        yield value


def _digest(values: Any) -> str:
    """Of tensors to the bit, with type and shape; of anything else as it is printed."""
    digest = hashlib.sha256()
    for each in values:
        value = getattr(each, "_local_tensor", each)
        if not isinstance(value, torch.Tensor):
            digest.update(repr(value).encode())
            continue
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        if value.layout == torch.strided and not value.is_meta and value.numel():
            host = value.detach().cpu().contiguous()
            size = host.numel() * host.element_size()
            # Not by NumPy, which the script's environment may lack.
            digest.update((ctypes.c_char * size).from_address(host.data_ptr()))
    return digest.hexdigest()[:24]


def _random_states() -> dict[str, str]:
    states = {"torch": [torch.get_rng_state()], "Python": [random.getstate()]}
    if "numpy.random" in sys.modules:
        name, keys, *rest = sys.modules["numpy.random"].get_state()
        states["NumPy"] = [name, keys.tobytes(), rest]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["CUDA"] = torch.cuda.get_rng_state_all()
    return {kind: _digest(state) for kind, state in states.items()}


def install_from_environment() -> None:
    """Begin, if the proof asked for it."""
    if directory := os.environ.get(RESUME_TRACE):
        refuse_untested_torch()
        ResumeTrace(Path(directory)).install()
