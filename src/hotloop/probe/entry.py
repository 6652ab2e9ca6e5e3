"""The one owner of each entry point of torch, and of others, that is watched in a foreign process.

An *around* is `around(original, *args, **kwargs)`: it calls `original` with the rest and returns what
that returned. Several may watch one entry point; the newest is outermost.

- `around_method`: methods of tensors. A plain function there would break the graphs of compiled
  models; a descriptor that hands out the original while a compiler traces does not.
- `around_call`: functions of modules and methods of classes. A plain function: whoever patches them
  for a while (`torch.fx` does it to `Module.__call__`) reads it and puts the same back.
- `before_step`, `after_step`: of every optimizer; `after_called_step`: after `hotloop.step()`.

When the interpreter ends, all of them let go: what a hook refers to may be gone by the time that an object's
`__del__` prints something.

Needs the standard library and torch alone.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import os
from collections.abc import Callable
from types import BuiltinFunctionType
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

import hotloop
from hotloop.probe.foreign_process import keep_code_untraced, keep_untraced

Around = Callable[..., Any]
OptimizerHook = Callable[[torch.optim.Optimizer], object]

_at_end: list[Callable[[], Any]] = []


def at_end(release: Callable[[], Any]) -> None:
    """Do it after the exit handlers of the script, before Python takes its modules apart."""
    _at_end.append(release)


def let_go() -> None:
    """Have every entry point call what it stands for, and nothing else, from here on."""
    while _at_end:
        _at_end.pop()()


atexit.register(let_go)


def put_back(owner: Any, name: str, ours: Any, original: Any) -> None:
    """At the end, `original` stands there again, where nobody has put another one over ours since."""

    def release() -> None:
        if vars(owner).get(name) is ours:
            setattr(owner, name, original)

    at_end(release)


def always(*_: Any) -> bool:
    """Takes the place of `torch.compiler.is_compiling` at the end."""
    return True


class WatchedMethod:
    """Stands in for a method; hands out the original while a compiler is tracing."""

    def __init__(
        self, original: Any, around: Around, applies: Callable[[Any], bool] | None = None
    ) -> None:
        self.original = original
        self._around = around
        self._applies = applies
        at_end(lambda: setattr(self, "__class__", _LetGoMethod))

    def __get__(self, holder: Any, owner: type | None = None) -> Any:
        if holder is None or torch.compiler.is_compiling():
            return self.original.__get__(holder, owner)
        if self._applies is not None and not self._applies(holder):
            return self.original.__get__(holder, owner)
        return functools.partial(self._around, self.original, holder)

    def add(self, around: Around) -> None:
        """Watch it with another one, outside those before it, wherever any of them applies."""
        inner = self._around

        def both(original: Any, *args: Any, **kwargs: Any) -> Any:
            return around(functools.partial(inner, original), *args, **kwargs)

        keep_untraced(both, around)
        self._around = both


class _LetGoMethod(WatchedMethod):
    def __get__(self, holder: Any, owner: type | None = None) -> Any:
        return self.original.__get__(holder, owner)


class WatchedBuiltin:
    """Stands in for a function written in C: no descriptor, so that as an attribute of a class it binds nobody."""

    def __init__(self, original: Any, around: Around) -> None:
        keep_untraced(WatchedBuiltin.__call__, around)
        self._original = original
        self._around = around
        self.__name__ = original.__name__
        self.__qualname__ = original.__qualname__
        self.__module__ = original.__module__
        self.__doc__ = original.__doc__
        for kept in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
            if original in kept:
                kept.add(self)  # programs ask whether a function is in there
                at_end(functools.partial(kept.discard, self))
        at_end(lambda: setattr(self, "__class__", _LetGoBuiltin))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return self._original(*args, **kwargs)
        return self._around(self._original, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __repr__(self) -> str:
        return repr(self._original)

    def __reduce__(self) -> str:
        return str(self.__name__)


class _LetGoBuiltin(WatchedBuiltin):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._original(*args, **kwargs)


def around_method(
    owner: type, name: str, around: Around, *, applies: Callable[[Any], bool] | None = None
) -> None:
    """Watch a method of `owner`, where `applies(holder)`; the rest costs no frame."""
    # A whole training step that is compiled breaks its graph at `loss.backward()` and calls it from
    # within: dynamo would start over on these frames, and never come to an end.
    keep_untraced(WatchedMethod.__get__, around, *([applies] if applies else []))
    found = vars(owner).get(name)
    if type(found) is WatchedMethod:  # not one that has let go
        found.add(around)
    else:
        # As it stands in the class: what `getattr` gives of a method written in C++ would bind nobody there.
        original = inspect.getattr_static(owner, name)
        ours = WatchedMethod(original, around, applies)
        setattr(owner, name, ours)
        put_back(owner, name, ours, original)


def around_call(owner: Any, name: str, around: Around) -> None:
    """Watch a function of a module, or a method of a class; what is traced calls the original."""
    original = getattr(owner, name)
    if isinstance(original, (BuiltinFunctionType, WatchedBuiltin)):
        ours = WatchedBuiltin(original, around)
        setattr(owner, name, ours)
        put_back(owner, name, ours, original)
        return

    is_compiling: Callable[[], bool] = torch.compiler.is_compiling

    @functools.wraps(original)
    def watched(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(*args, **kwargs)
        return around(original, *args, **kwargs)

    def release() -> None:
        nonlocal is_compiling
        is_compiling = always

    at_end(release)
    keep_untraced(watched, around)
    setattr(owner, name, watched)
    put_back(owner, name, watched, original)


def before_step(hook: OptimizerHook) -> None:
    """Call `hook` before every update by any optimizer."""
    at_end(register_optimizer_step_pre_hook(step_hook(hook)).remove)


def after_step(hook: OptimizerHook) -> None:
    """Call `hook` after every update by any optimizer."""
    at_end(register_optimizer_step_post_hook(step_hook(hook)).remove)


def after_called_step(hook: Callable[[], object]) -> None:
    """Call `hook` whenever the script calls `hotloop.step()`."""
    before = hotloop._step_ended

    def ended() -> None:
        if before is not None:
            before()
        hook()

    hotloop._step_ended = ended
    at_end(lambda: setattr(hotloop, "_step_ended", None))


def step_hook(hook: OptimizerHook) -> Any:
    """`hook`, as torch calls its global ones."""

    def stepped(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        hook(optimizer)

    # Not traced: inside a compiled `optimizer.step`, which has a graph break of its own here, a clock would be read
    # once, while tracing. `torch.compiler.disable` would do the same, at six times the cost of the call.
    stepped._torchdynamo_disable = True  # type: ignore[attr-defined]
    keep_code_untraced(stepped.__code__, called=True)
    return stepped
