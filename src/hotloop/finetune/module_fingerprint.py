"""What makes two calls of `hotloop.fit` with a module one training: the code of model, loss and `collate`, and the examples.

Code is that of the functions themselves, with what is bound in them, not of those that they call. Nothing that differs from
process to process has a part in it: no address, no order of a set, no weights, which are read back later. What torch brings
counts by its name and settings, since another version of it computes the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hotloop.finetune.work import spread

if TYPE_CHECKING:
    from hotloop.finetune.module import ModuleWork

LOOKED_AT = 64
"""Examples, of those to train on and of those held out."""
_PLAIN = (type(None), type(Ellipsis), bool, int, float, complex, str, bytes)
_DEEPEST = 12


def fingerprint(model: nn.Module, loss: Any, work: ModuleWork) -> str:
    found = hashlib.sha256()
    for name, weight in model.state_dict().items():
        found.update(f"{name} {tuple(weight.shape)} {weight.dtype};".encode())
    of_loss = (*_layers(loss, settings=True),) if isinstance(loss, nn.Module) else loss
    for word in described((*_layers(model), of_loss, work.collate)):
        found.update(f"{word};".encode())
    for examples in (work.train, work.held_out):
        num = 0 if examples is None else len(examples)
        found.update(f"{num};".encode())
        for index in spread(num, LOOKED_AT):
            for tensor in work.inputs(examples, [index])[:-1]:
                found.update(_content(tensor))
    return found.hexdigest()


def described(given: Any, depth: int = _DEEPEST) -> Iterator[str]:
    """Words that are the same for the same code and settings."""
    if isinstance(given, _PLAIN):
        yield repr(given)
        return
    yield _name(given)
    for part in _parts(given) if depth else ():
        yield from described(part, depth - 1)


def _parts(given: Any) -> tuple[Any, ...]:
    if isinstance(given, CodeType):
        return given.co_code, given.co_names, given.co_consts
    if isinstance(given, FunctionType):
        bound = [each.cell_contents for each in given.__closure__ or () if each != CellType()]
        code = given.__code__, given.__defaults__, given.__kwdefaults__, bound
        return () if _of_torch(given) else code
    if isinstance(given, MethodType):
        owner = given.__self__
        return given.__func__, None if isinstance(owner, (type, nn.Module)) else _settings(owner)
    if isinstance(given, partial):
        return given.func, given.args, given.keywords
    if isinstance(given, (tuple, list)):
        return (*given,)
    if isinstance(given, dict):
        return (*given.items(),)
    if isinstance(given, (set, frozenset)):
        return (*sorted(";".join(described(each)) for each in given),)
    if isinstance(given, nn.Module):
        return (*_layers(given),)
    if isinstance(given, (type, ModuleType)):
        return ()
    if isinstance(given, Tensor):
        return () if given.requires_grad else (_content(given),)
    called = type(given).__call__
    return called if isinstance(called, FunctionType) else None, _settings(given)


def _layers(model: nn.Module, *, settings: bool = False) -> Iterator[Any]:
    """Of each its type, and what it computes. With `settings` also those of one's own layers, which of a model may be counters."""
    for layer in model.modules():
        of_torch = _of_torch(type(layer))
        yield type(layer)
        yield None if of_torch else layer.forward
        if of_torch or settings:
            yield _settings(layer)
        if settings:
            yield from layer.buffers(recurse=False)


def _settings(given: Any) -> dict[str, Any]:
    return {
        name: value
        for name, value in getattr(given, "__dict__", {}).items()
        if name[0] != "_" and name != "training" and isinstance(value, (*_PLAIN, tuple))
    }


def _of_torch(given: Any) -> bool:
    return (given.__module__ or "").partition(".")[0] == "torch"


def _name(given: Any) -> str:
    of_python = isinstance(given, type) or type(given).__module__ == "builtins"
    named = given if of_python and hasattr(given, "__qualname__") else type(given)
    return f"{getattr(named, '__module__', None)}.{named.__qualname__}"


def _content(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
