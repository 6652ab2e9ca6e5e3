"""Nested state becomes tensors and JSON and is the same again, bit by bit; what cannot is refused by its key."""

from __future__ import annotations

import json
import math
import threading
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hotloop.checkpoint import Checkpointer
from hotloop.core.errors import UsageError


def same(a: Any, b: Any) -> bool:
    """Types, values and bits."""
    if type(a) is not type(b):
        return isinstance(a, nn.Parameter) and same(a.detach(), b)
    if isinstance(a, Tensor):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        x, y = (
            t.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
            for t in (a, b)
        )
        return torch.equal(x, y)
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return (
            list(a) == list(b) and all(map(same, a.values(), b.values())) and all(map(same, a, b))
        )
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return a.hex() == b.hex()
    return bool(a == b)


def returned(root: Path, value: Any) -> Any:
    """What comes back of `extra=value`."""
    weight = nn.Linear(1, 1)
    with Checkpointer(root) as checkpointer:
        checkpointer.save(1, model=weight, extra=value)
    found = Checkpointer(root).load_latest(model=weight)
    assert found is not None
    return found.extra


FLOATS = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-40, 3.3])
VALUES: dict[str, Any] = {
    "scalars": [None, True, False, 0, -1, 2**63, -(2**63), 2**128, 0.1, -0.0, math.inf, math.nan, 5e-324, ""],
    "text": ["é \ud800 \0", "$tensor", {"$tensor": "x", "$": 1}, {"a/b": 1, "__metadata__": 2}],
    "containers": [(), (1, (2,)), {1, 2}, frozenset({3}), [], {}, torch.Size([2, 3])],
    "keys": {1: "int", True and 2: "x", (3, "t"): 1, None: 0, 2.5: 1, "s": 3},
    "order": OrderedDict([("b", 1), ("a", {"z": 1, "y": 2})]),
    "counter": Counter({30: 2, 60: 1}),
    "numpy": [np.arange(6).reshape(2, 3), np.float64(0.1), np.uint16(3), np.array(5.0), np.array([], np.int8), np.bool_(1), np.array([1 + 2j])],
    "numpy_random": np.random.default_rng(2).bit_generator.state,
    "empty": [torch.empty(0), torch.empty(3, 0, 2, dtype=torch.int16), torch.empty(0, dtype=torch.complex128)],
    "scalar_tensor": [torch.tensor(3), torch.tensor(2.5, dtype=torch.bfloat16), torch.tensor(1j)],
    "floats": [FLOATS.to(t) for t in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2)],
    "integers": [torch.arange(-3, 3).to(t) for t in (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool)],
    "complex": [torch.randn(3, dtype=torch.complex64), torch.randn(3, dtype=torch.complex128).conj(), torch.randn(3, dtype=torch.complex64).conj().imag],
    "strided": [torch.randn(4, 6)[::2, 1:4], torch.randn(4, 6).T, torch.randn(1).expand(5), torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)],
    "parameter": nn.Parameter(torch.ones(2)),
    "names": {"a": {"b": torch.ones(1)}, "a/b": torch.zeros(1), "__metadata__": torch.ones(2), "\ud800": torch.ones(3), 1: torch.ones(4), "1": torch.ones(5)},
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_value_returns_bit_equally(tmp_path: Path, name: str) -> None:
    assert same(VALUES[name], returned(tmp_path, VALUES[name]))


def test_memory_layout_returns_where_it_is_dense(tmp_path: Path) -> None:
    images = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    found = returned(
        tmp_path, [images, images.T if images.dim() == 2 else images.permute(3, 0, 1, 2)]
    )
    assert found[0].stride() == images.stride()
    assert found[1].stride() == images.permute(3, 0, 1, 2).stride()


def test_tied_tensors_are_written_once_and_are_one_again(tmp_path: Path) -> None:
    whole = torch.randn(1000)
    a, b, part = returned(tmp_path, [whole, whole.view(1000), whole[10:20]])
    assert a is b
    assert torch.equal(part, whole[10:20])
    written = (next(tmp_path.glob("step-*")) / "extra.safetensors").stat().st_size
    assert written < 4400


class Thing:
    pass


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Thing(), r"`extra.a.0.b`: it is a test_nested.Thing|`extra.a.0.b`: it is a .*Thing"),
        (lambda: 0, "is a builtins.function"),
        (threading.Lock(), "is a _thread.lock"),
        (defaultdict(list), "is a collections.defaultdict"),
        (torch.Generator(), "is a torch.*Generator"),
        (np.array([Thing()]), "numpy array that torch cannot hold"),
        (np.array(["x"]), "numpy array that torch cannot hold"),
        (torch.eye(3).to_sparse(), "layout sparse_coo"),
        (torch.empty(2, device="meta"), "meta device"),
        (nn.UninitializedParameter(), "no plain tensor"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_cannot_be_stored_is_refused_by_its_key_and_nothing_is_written(
    tmp_path: Path, value: Any, message: str
) -> None:
    with Checkpointer(tmp_path) as checkpointer, pytest.raises(UsageError, match=message) as caught:
        checkpointer.save(1, model=nn.Linear(1, 1), extra={"a": [{"b": value}]})
    assert "`extra.a.0.b`" in str(caught.value)
    assert not list(tmp_path.glob("step-*"))


def test_quantized_and_nested_tensors_are_refused() -> None:
    from hotloop.checkpoint.nested import reason_not_plain

    with pytest.warns(UserWarning, match="quantized"):
        quantized = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    assert "quantized" in (reason_not_plain(quantized) or "")
    nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged)
    assert "no plain tensor" in (reason_not_plain(nested) or "")


def test_what_contains_itself_is_refused(tmp_path: Path) -> None:
    knot: list[Any] = []
    knot.append(knot)
    with pytest.raises(UsageError, match="nested too deeply, or contains itself"):
        Checkpointer(tmp_path).save(1, model=nn.Linear(1, 1), extra=knot)


@pytest.mark.parametrize(
    "wrap",
    [lambda v: [v], lambda v: (v,), lambda v: {1: v}, lambda v: {"k": v}],
    ids=["list", "tuple", "dict of numbers", "dict"],
)
def test_whatever_depth_is_saved_is_loaded(tmp_path: Path, wrap: Callable[[Any], Any]) -> None:
    value: Any = torch.ones(1)
    for _ in range(8):
        value = wrap(value)
    for depth in range(8, 64):
        try:
            found = returned(tmp_path / str(depth), value)
        except UsageError as error:
            assert "nested too deeply, or contains itself" in error.what  # noqa: PT017
            break
        assert same(value, found)
        value = wrap(value)
    assert 10 < depth < 63


def test_state_dict_keeps_the_versions_of_its_modules(tmp_path: Path) -> None:
    state = nn.Sequential(nn.BatchNorm1d(2)).state_dict()
    found = returned(tmp_path, state)
    assert same(state, found)
    assert found._metadata == state._metadata


def test_files_hold_no_pickle(tmp_path: Path) -> None:
    returned(tmp_path, VALUES["containers"])
    directory = next(tmp_path.glob("step-*"))
    for path in directory.iterdir():
        if path.suffix == ".json":
            json.loads(path.read_text())
        else:
            assert path.suffix == ".safetensors"
