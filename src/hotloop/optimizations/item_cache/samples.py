"""What datasets and loaders hand out: whether two are equal to the bit, and copies of them.

Standard library and torch alone: NumPy may be missing in the foreign interpreter.
"""

from __future__ import annotations

import ctypes
import io
import pickle
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
