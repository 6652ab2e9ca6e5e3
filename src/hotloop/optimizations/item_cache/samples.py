"""What datasets hand out: copies of it, and whether two are equal to the bit. And whether a dataset itself was changed.

Standard library and torch alone: NumPy may be missing in the foreign interpreter.
"""

from __future__ import annotations

import ctypes
import hashlib
import io
import pickle
import random
from collections import deque
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch

SIMPLE = (type(None), bool, int, float, complex, str, bytes)


def encoded(value: Any) -> bytes:
    """`value` serialised. Raises whatever pickling it raises."""
    file = io.BytesIO()
    _Pickler(file, protocol=5).dump(value)
    return file.getvalue()


def decoded(content: bytes | memoryview) -> Any:
    """What was `encoded`, anew each time."""
    return pickle.loads(content)


class _Pickler(pickle.Pickler):
    """Writes of a tensor what it shows, where pickle would write all of the storage behind it."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is torch.Tensor and _is_plain(value):
            return _tensor, (value.dtype, tuple(value.shape), content_of(value))
        return NotImplemented


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )


def _tensor(dtype: torch.dtype, shape: tuple[int, ...], content: bytes) -> torch.Tensor:
    made = torch.empty(shape, dtype=dtype)  # aligned as torch does it: some kernels round by that
    if content:
        ctypes.memmove(made.data_ptr(), content, len(content))
    return made


def content_of(tensor: torch.Tensor) -> bytes:
    """The bytes of a dense tensor on the CPU."""
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return ctypes.string_at(dense.data_ptr(), dense.nbytes) if dense.nbytes else b""


def same(one: Any, other: Any) -> bool:
    """Whether both are equal to the last bit; `False` where that cannot be told."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return _same_tensor(one, other)
    if isinstance(one, (float, complex)):
        return bool(one == other) or (one != one and other != other)
    if isinstance(one, SIMPLE):
        return bool(one == other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (set, frozenset)):
        return bool(one == other)
    if type(one).__name__ == "ndarray" and one.dtype != object:
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if hasattr(one, "__dict__") and not isinstance(one, type):
        return same(vars(one), vars(other))
    try:
        return encoded(one) == encoded(other)
    except Exception:  # noqa: BLE001 - whatever its pickling raises
        return False


def _same_tensor(one: torch.Tensor, other: torch.Tensor) -> bool:
    if (one.dtype, one.shape, one.device, one.layout, one.requires_grad) != (
        (other.dtype, other.shape, other.device, other.layout, other.requires_grad)
    ):
        return False
    if one.device.type != "cpu" or one.layout != torch.strided or one.is_quantized:
        return bool(torch.equal(one, other))
    return content_of(one) == content_of(other)


MAX_PARTS = 20_000
DEPTH = 6
SMALL_BYTES = 1 << 16
MANY = 100_000


def fingerprint(dataset: Any) -> str:
    """A digest of its attributes and what those hold: small values by content, large ones by identity and version.

    Samples that are cached are true only as long as it stays the same. What is written in C, and single values inside
    of very large containers, are not looked into.
    """
    look = _Look()
    look.add(dataset, DEPTH)
    return look.digest.hexdigest()


class _Look:
    def __init__(self) -> None:
        self.digest = hashlib.blake2b(digest_size=16)
        self._left = MAX_PARTS
        self._seen: set[int] = set()

    def _say(self, *parts: Any) -> None:
        self.digest.update(repr(parts).encode("utf-8", "surrogatepass"))

    def add(self, value: Any, depth: int) -> None:
        if isinstance(value, SIMPLE):
            is_long = isinstance(value, (str, bytes)) and len(value) > 256
            self._say(type(value).__name__, hash(value), None if is_long else value)
            return
        self._say(type(value).__name__, id(value))
        if id(value) in self._seen or self._left <= 0 or depth <= 0:
            return
        self._seen.add(id(value))
        self._left -= 1
        if isinstance(value, torch.Tensor):
            self._say(value.data_ptr() if value.device.type == "cpu" else 0, value._version)
            self._say(tuple(value.shape))
        elif isinstance(value, torch.Generator):
            self.digest.update(content_of(value.get_state()))
        elif isinstance(value, random.Random):
            self._say(value.getstate())
        elif type(value).__module__.startswith("numpy"):
            self._add_numpy(value)
        elif isinstance(value, dict):
            self._add_many(value, len(value), depth)
            self._add_many(value.values(), len(value), depth)
        elif isinstance(value, (list, tuple, set, frozenset, deque)):
            self._add_many(value, len(value), depth)
        elif isinstance(value, MethodType):
            self.add(value.__self__, depth - 1)
        elif isinstance(value, FunctionType):
            for cell in value.__closure__ or ():
                self.add(_content_of_cell(cell), depth - 1)
        elif not isinstance(value, (type, ModuleType)):
            self._add_attributes(value, depth)

    def _add_numpy(self, value: Any) -> None:
        generator = getattr(value, "bit_generator", None)
        if generator is not None:
            self._say(generator.state)
        elif hasattr(value, "get_state"):
            self._say(value.get_state())
        elif hasattr(value, "nbytes"):
            self._say(getattr(value, "shape", None), str(getattr(value, "dtype", "")))
            if value.nbytes <= SMALL_BYTES:
                self.digest.update(value.tobytes())

    def _add_many(self, values: Any, length: int, depth: int) -> None:
        self._say(length)
        if length > MANY:
            return
        simple = []
        for each in values:
            if isinstance(each, SIMPLE):
                simple.append(each)
            elif self._left > 0:
                self.add(each, depth - 1)
        self._say(hash(tuple(simple)))

    def _add_attributes(self, value: Any, depth: int) -> None:
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            self.add(attributes, depth)
        for kind in type(value).__mro__:
            names = kind.__dict__.get("__slots__", ())
            for name in (names,) if isinstance(names, str) else names:
                if isinstance(kind.__dict__.get(name), _SLOT) and hasattr(value, name):
                    self.add(getattr(value, name), depth - 1)


class _Slotted:
    __slots__ = ("slot",)


_SLOT = type(_Slotted.__dict__["slot"])


def _content_of_cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None
