"""Nested state of anybody's objects as tensors and JSON, and back. What cannot be written so is refused by its key.

What JSON has no form for is an object of one key that begins with `$`: `{"$tuple": [...]}`. A tensor is
`{"$tensor": name}`; tensors that are one (tied weights) are written once, and are one again. Views that only
overlap are written each, so that their values return and their sharing does not.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from hotloop.core.errors import UsageError
from hotloop.core.untrusted import MAX_DEPTH

NATIVE = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64})  # fmt: skip
"""Types that every safetensors has; tensors of others are written as their bytes."""
_LISTS: dict[str, Any] = {"$tuple": tuple, "$set": set, "$frozenset": frozenset, "$size": torch.Size}  # fmt: skip
_MAPPINGS: dict[str, Any] = {"$dict": dict, "$ordered": OrderedDict, "$counter": Counter}
_TAGS = {kind: tag for tag, kind in (_LISTS | _MAPPINGS).items()}
PINNED_BYTES = 1 << 20
"""Smaller tensors are copied to ordinary memory: pinning takes longer."""
_DEEPEST = MAX_DEPTH - 6
"""Of the JSON that is written, with what stands around it."""


class Flattened:
    """The state of one part of a checkpoint: the tensors its JSON refers to, by name. Nothing is copied yet."""

    def __init__(self, part: str) -> None:
        self.part = part
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[tuple[Any, ...], str] = {}
        """Of tensors that are one. `tensors` keeps each alive: the memory of another is never at its address."""

    def encode(self, value: Any, keys: tuple[Any, ...] = (), depth: int = 0) -> Any:
        """The JSON of `value`. Raises `UsageError` with the key of what cannot be written."""
        if depth > _DEEPEST:
            raise self._refused(keys, "is nested too deeply, or contains itself")
        kind = type(value)
        if value is None or kind in (bool, float, str):
            return value
        if kind is int:
            return value if -(1 << 63) <= value < 1 << 64 else {"$int": hex(value)}
        if isinstance(value, Tensor):
            return self._tensor(value, keys)
        if kind is list:
            return [self.encode(v, (*keys, i), depth + 1) for i, v in enumerate(value)]
        if kind is dict and all(type(k) is str and k[:1] != "$" for k in value):
            return {k: self.encode(v, (*keys, k), depth + 1) for k, v in value.items()}
        if tag := _TAGS.get(kind):
            if tag in _MAPPINGS:
                keyed = [([k, v], (*keys, k)) for k, v in value.items()]
                items = [[self.encode(each, path, depth + 3) for each in pair] for pair, path in keyed]  # fmt: skip
            else:
                items = [self.encode(v, (*keys, i), depth + 2) for i, v in enumerate(value)]
            # versions of the modules, which `load_state_dict` of later ones looks at
            more = getattr(value, "_metadata", None)
            return {tag: items} | ({"more": self.encode(more, keys, depth + 1)} if more else {})
        numpy = sys.modules.get("numpy")
        if numpy is not None and (isinstance(value, numpy.generic) or kind is numpy.ndarray):
            try:
                tensor = torch.from_numpy(numpy.array(value, order="C"))
            except (TypeError, ValueError) as error:
                raise self._refused(keys, f"is a numpy array that torch cannot hold ({error})") from None  # fmt: skip
            tag = "$numpy" if kind is numpy.ndarray else "$numpy_scalar"
            return {tag: self._tensor(tensor, keys)}
        raise self._refused(keys, f"is a {kind.__module__}.{kind.__qualname__}")

    def _tensor(self, value: Tensor, keys: tuple[Any, ...]) -> dict[str, Any]:
        if reason := reason_not_plain(value):
            raise self._refused(keys, reason)
        value = value.detach()
        identity = (value.data_ptr(), value.shape, value.stride(), value.dtype, value.device, value.is_conj(), value.is_neg())  # fmt: skip
        name = self._names.get(identity) if value.numel() else None
        if name is None:
            wanted = "/".join(map(str, keys)).encode("utf-8", "backslashreplace").decode() or "value"  # fmt: skip
            name, number = wanted, 1
            while name in self.tensors or name == "__metadata__":  # safetensors has that one
                name, number = f"{wanted}#{number}", number + 1
            self.tensors[name] = value
            self._names[identity] = name
        found: dict[str, Any] = {"$tensor": name}
        if value.dtype not in NATIVE:
            found |= {"dtype": str(value.dtype), "shape": list(value.shape)}
        # Fused kernels pair weights with their moments by memory: both need the layout they had.
        order = sorted(range(value.dim()), key=value.stride().__getitem__, reverse=True)
        if not value.is_contiguous() and value.permute(order).is_contiguous():
            found["order"] = order
        return found

    def _refused(self, keys: tuple[Any, ...], reason: str) -> UsageError:
        return UsageError(
            f"cannot save `{'.'.join(map(str, (self.part, *keys)))}`: it {reason}",
            do="a checkpoint holds tensors, numpy arrays, numbers, text, and lists, tuples, sets and dicts of them: "
            "save what the object is made from, or give it `state_dict` and `load_state_dict`",
        )


def reason_not_plain(value: Tensor) -> str | None:
    """Why a tensor is none that safetensors holds."""
    if type(value) not in (Tensor, nn.Parameter, nn.Buffer):
        name = f"{type(value).__module__}.{type(value).__qualname__}"
        where = ", sharded over processes," if name.endswith(".DTensor") else ""
        return f"is a {name}{where} and no plain tensor; gather or unpack it first"
    if value.layout != torch.strided:
        return f"is a tensor of layout {str(value.layout)[6:]}; save its parts (of a sparse one `indices()` and `values()`)"
    if value.is_nested or value.is_quantized:
        kind = "nested" if value.is_nested else "quantized"
        return f"is a {kind} tensor; save its parts (of a quantized one `int_repr()`, scale and zero point)"
    return "has no data: it is on the meta device" if value.is_meta else None


def copied(tensors: dict[str, Tensor], into: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies on the CPU, as they are written. Memory of `into` is used again: new pages take most of a copy's time."""
    copies, streams = {}, set()
    for name, tensor in tensors.items():
        if tensor.dtype not in NATIVE:
            tensor = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        to = into.get(name)
        if to is None or (to.shape, to.dtype) != (tensor.shape, tensor.dtype):
            to = _memory(tensor)
        copies[name] = to.copy_(tensor, non_blocking=True)
        if tensor.is_cuda:
            streams.add(torch.cuda.current_stream(tensor.device))
    for (
        stream
    ) in streams:  # the next step may change what is being copied, and a thread reads the copies
        stream.synchronize()
    return copies


def _memory(like: Tensor) -> Tensor:
    """Room on the CPU; of large tensors of a GPU pinned, which is copied to several times as fast."""
    if like.is_cuda and like.nbytes >= PINNED_BYTES:
        try:
            return torch.empty(like.shape, dtype=like.dtype, device="cpu", pin_memory=True)
        except RuntimeError:  # as much as may be pinned is
            pass
    return torch.empty(like.shape, dtype=like.dtype, device="cpu")


def decode(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The inverse of `Flattened.encode`. Raises `KeyError`, `TypeError`, `ValueError` and the like for other JSON."""
    if isinstance(value, list):
        return [decode(each, tensors) for each in value]
    if not isinstance(value, dict):
        return value
    tag = next(iter(value), "")
    if tag[:1] != "$":
        return {k: decode(v, tensors) for k, v in value.items()}
    if tag == "$tensor":
        return _decode_tensor(value, tensors)
    content = value[tag]
    if tag in ("$numpy", "$numpy_scalar"):
        array = _decode_tensor(content, tensors).numpy()
        return array if tag == "$numpy" else array[()]
    if tag in _LISTS:
        return _LISTS[tag](decode(content, tensors))
    if tag in _MAPPINGS:
        made = _MAPPINGS[tag](dict(decode(content, tensors)))
        if "more" in value:
            made._metadata = decode(value["more"], tensors)
        return made
    if tag == "$int":
        return int(content, 16)
    raise ValueError(f"unknown kind {tag!r}")


def _decode_tensor(value: dict[str, Any], tensors: dict[str, Tensor]) -> Tensor:
    """Each name is one tensor, however often it is asked for: its layout is restored in `tensors`."""
    tensor = tensors[value["$tensor"]]
    if "dtype" in value and tensor.dtype == torch.uint8:
        tensor = tensor.view(_dtype(value["dtype"])).reshape(value["shape"])
    if "order" in value and tensor.is_contiguous():
        inverse = sorted(range(tensor.dim()), key=value["order"].__getitem__)
        tensor = tensor.permute(value["order"]).contiguous().permute(inverse)
    tensors[value["$tensor"]] = tensor
    return tensor


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name.removeprefix("torch."))
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is no type")
    return found
