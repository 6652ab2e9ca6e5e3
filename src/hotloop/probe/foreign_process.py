"""A foreign process as a whole: whether it may be clocked, what it is seen to use, how it is ended."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import torch

OLDEST_TORCH = (2, 11)
"""Older ones are refused: the hooks were not tested there."""


class TorchTooOld(RuntimeError):
    """This torch is older than any the clock was tested with."""


def refuse_untested_torch() -> None:
    """Raises `TorchTooOld`."""
    release = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if release < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise TorchTooOld(
            f"torch {torch.__version__} is older than {oldest}, the oldest that was tested"
        )


def keep_untraced(*functions: Any) -> None:
    """Have dynamo run these as they are when it meets them, and go on compiling what they call; passes over
    what is not written in Python.

    `torch.compiler.disable` would also keep what they call from being compiled: a checkpointed
    block is computed again inside `backward`.
    """
    plain = (getattr(each, "__func__", each) for each in functions)
    keep_code_untraced(*(each.__code__ for each in plain if isinstance(each, FunctionType)))


def keep_code_untraced(*codes: CodeType, called: bool = False) -> None:
    """The same for what functions are made of. called: and for all that they call."""
    frames = torch._C._dynamo.eval_frame
    actions = frames._FrameAction
    skip = frames._FrameExecStrategy(actions.SKIP, actions.SKIP if called else actions.DEFAULT)
    for code in codes:
        frames.set_code_exec_strategy(code, skip)


def parameters_of(optimizer: Any) -> list[torch.Tensor]:
    """What it updates; of Keras's, which has no groups, too."""
    groups = getattr(optimizer, "param_groups", None)
    if groups is None:
        return [each.value for each in getattr(optimizer, "_trainable_variables", ())]
    return [parameter for group in groups for parameter in group["params"]]


def learns(module: torch.nn.Module) -> bool:
    """Whether it has a weight that is trained; a loss is a module too, and has none."""
    return any(each.requires_grad for each in module.parameters())


def device_of(optimizer: Any) -> torch.device:
    """The device of its first parameter."""
    return torch.device(next((p.device for p in parameters_of(optimizer)), "cpu"))


def parameter_dtypes(optimizer: Any) -> tuple[str, ...]:
    return tuple(sorted({str(p.dtype).removeprefix("torch.") for p in parameters_of(optimizer)}))


def describe_optimizer(optimizer: Any) -> str:
    """`AdamW(fused)`, `AdamW(foreach)`, `AdamW(fused=False)`, or the class alone where torch chose by itself.

    A class that is not torch's own has its module before it: `bitsandbytes.optim.AdamW`.
    """
    kind = type(optimizer)
    name = kind.__name__
    if not kind.__module__.startswith(("torch.optim.", "hotloop.")):
        name = f"{kind.__module__}.{name}"
    groups = getattr(optimizer, "param_groups", ())
    for how in ("fused", "foreach"):
        if groups and all(group.get(how) for group in groups):
            return f"{name}({how})"
    off = [
        f"{how}=False"
        for how in ("fused", "foreach")
        if groups and all(group.get(how) is False for group in groups)
    ]
    return f"{name}({', '.join(off)})" if off else name


_before_end: list[Callable[[], None]] = []


def before_end(action: Callable[[], None]) -> None:
    """Do it before `end_process` ends this process. What it raises is passed over."""
    _before_end.append(action)


def end_process() -> None:
    """End now, without the script's own ending: no saving, no uploading, no exit handlers."""
    for action in _before_end:
        try:
            action()
        except Exception:  # noqa: BLE001 - the run is over, and was measured
            pass
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    try:
        _kill_children()
    finally:
        os._exit(0)


def _kill_children() -> None:
    """A DataLoader has `SIGCHLD` raise when a worker dies: it would end this in the middle."""
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is None:
        return
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for child in multiprocessing.active_children():
        child.kill()


def write_note(directory: Path, text: str) -> None:
    """Add a line to what the sidecar directory says of this process; nothing where that cannot be written."""
    try:
        with (directory / "notes.txt").open("a", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError:
        pass


def replace_json(path: Path, values: dict[str, object]) -> None:
    """Write a sidecar file, whole or not at all."""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")  # ranks may write the same one
    temporary.write_text(json.dumps(values), encoding="utf-8")
    os.replace(temporary, path)
