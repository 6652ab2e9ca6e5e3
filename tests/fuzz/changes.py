"""What may happen to a file: bytes, values in it, tensors, or the file itself become something else."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from hotloop.core.untrusted import read_bytes

RAW = (
    *("NaN", "-Infinity", "1e999", "9" * 5000, "-" + "9" * 25, "[" * 2000, '{"a":' * 2000),
    *('"\\ud800"', '"\\u0000"', "[" * 80 + "]" * 80, "", "}", "0b_", "!!int abc", "*a", "&a [*a]"),
    *(
        "!!python/name:os.system",
        "2001-13-45",
        "1:99:99",
        ".inf",
        "!!set {a}",
        "!!float x",
        "? [a]",
    ),
)
"""Text in place of a value: JSON that is none, or numbers and nesting beyond measure; some is YAML's."""

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(
        [0, 1, -1, 2, 3, 7, 64, 257, 300, 2**31, -(2**31), 2**53, 2**63, 2**64, -(2**63)]
    ),
    st.sampled_from([0.0, -0.0, 0.5, -1.5, 1e-320, 5e-324, 1e16, 1e300, 1.7e308, -1e300]),
    st.sampled_from(
        [
            "",
            "x",
            "a.b",
            "\x1b[2J",
            "é\u202e",
            "a" * 5000,
            "NaN",
            "../../etc/passwd",
            "/",
            ".",
            "\n",
        ]
    ),
    st.sampled_from([[], {}, [[]], [None], [1, "a"], {"a": 1}, {"": None}, [{}], [-1.0, 1e300]]),
    st.text(max_size=20),
    st.integers(-100, 300),
    st.floats(allow_nan=False, allow_infinity=False),
)


@dataclass(frozen=True)
class OfValue:
    """One value of JSON, of a line of JSON, of YAML or of the header of a safetensors file."""

    at: int
    how: str
    value: Any
    raw: str


@dataclass(frozen=True)
class OfBytes:
    how: str
    at: float
    value: bytes


@dataclass(frozen=True)
class OfFile:
    """The file itself: gone, or of another kind."""

    how: str


@dataclass(frozen=True)
class OfTensor:
    """One tensor of a safetensors file, which is written whole again."""

    at: int
    how: str


Change = OfValue | OfBytes | OfFile | OfTensor

VALUE_CHANGES = st.builds(
    OfValue,
    st.integers(0, 10_000),
    st.sampled_from(["replace", "replace", "replace", "remove", "rename", "repeat", "raw"]),
    VALUES,
    st.sampled_from(RAW),
)
CHANGES = st.one_of(
    VALUE_CHANGES,
    VALUE_CHANGES,
    st.builds(
        OfBytes,
        st.sampled_from(["flip", "cut", "insert", "replace", "empty"]),
        st.floats(0, 1),
        st.binary(min_size=1, max_size=20),
    ),
    st.builds(OfFile, st.sampled_from(["remove", "directory", "pipe", "device", "dangling"])),
    st.builds(
        OfTensor,
        st.integers(0, 100),
        st.sampled_from(["short", "long", "flat", "scalar", "half", "integer", "nan", "huge", "renamed", "dropped", "added", "none"]),
    ),
)  # fmt: skip


def files_of(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file() and path.stat().st_size)


def apply(change: Change, path: Path) -> None:
    """Change a file; what does not fit its kind changes its bytes."""
    content = path.read_bytes()
    match change:
        case OfFile():
            _to_another_kind(path, change.how)
            return
        case OfTensor() if path.suffix == ".safetensors":
            content = _with_tensor(content, change)
        case OfValue() if path.suffix == ".jsonl":
            lines = content.decode().splitlines() or ["{}"]
            at = change.at % len(lines)
            lines[at] = _with_value(json.loads(lines[at]), change)
            content = ("\n".join(lines) + "\n").encode()
        case OfValue() if path.suffix == ".json":
            content = _with_value(json.loads(content), change).encode()
        case OfValue() if path.suffix == ".yaml":
            content = _with_value(yaml.safe_load(content), change).encode()
        case OfValue() if path.suffix == ".safetensors":
            length = int.from_bytes(content[:8], "little")
            header = _with_value(json.loads(content[8 : 8 + length]), change).encode()
            content = len(header).to_bytes(8, "little") + header + content[8 + length :]
        case OfBytes():
            content = _with_bytes(content, change.how, change.at, change.value)
        case _:
            content = _with_bytes(content, "flip", (change.at % 97) / 97, b"\x01")
    path.write_bytes(content)


def reseal(checkpoint: Path) -> None:
    """Put what the files of a checkpoint are now into its manifest."""
    path = checkpoint / "manifest.json"
    try:
        manifest = json.loads(read_bytes(path))
        for name, entry in manifest["files"].items():
            content = read_bytes(checkpoint / name)
            entry |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        path.write_text(json.dumps(manifest))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # no manifest any more
        return


def _to_another_kind(path: Path, how: str) -> None:
    path.unlink()
    match how:
        case "directory":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "dangling":
            path.symlink_to(path.with_name("nothing-is-there"))


def _with_bytes(content: bytes, how: str, at: float, value: bytes) -> bytes:
    place = int(at * max(len(content) - 1, 0))
    match how:
        case "flip":
            byte = content[place : place + 1] or b"\0"
            return content[:place] + bytes([byte[0] ^ (value[0] or 1)]) + content[place + 1 :]
        case "cut":
            return content[:place]
        case "insert":
            return content[:place] + value + content[place:]
        case "replace":
            return value
    return b""


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every value within: its container and its key there."""
    keys = (
        list(value)
        if isinstance(value, dict)
        else range(len(value))
        if isinstance(value, list)
        else ()
    )
    for key in keys:
        yield value, key
        yield from _places(value[key])


_MARK = "in place of this"


def _with_value(whole: Any, change: OfValue) -> str:
    """As JSON, which YAML reads as well."""
    root = [whole]
    places = list(_places(root))
    container, key = places[change.at % len(places)]
    match change.how:
        case "replace":
            container[key] = change.value
        case "remove" if len(places) > 1 and container is not root:
            del container[key]
        case "rename" if isinstance(container, dict):
            container[change.raw[:20] or "other"] = container.pop(key)
        case "repeat" if isinstance(container, list) and container is not root:
            container.insert(key, container[key])
        case "raw":
            container[key] = _MARK
        case _:
            container[key] = change.value
    return json.dumps(root[0]).replace(f'"{_MARK}"', change.raw)


def _with_tensor(content: bytes, change: OfTensor) -> bytes:
    import safetensors.torch
    import torch

    try:
        tensors = safetensors.torch.load(content)
    except safetensors.SafetensorError:  # changed before
        return content[1:]
    names = sorted(tensors)
    if not names:
        return content
    name = names[change.at % len(names)]
    tensor = tensors.pop(name)
    changed = {
        "short": lambda: tensor.reshape(-1)[: tensor.numel() // 2].clone(),
        "long": lambda: torch.cat([tensor.reshape(-1)] * 3),
        "flat": lambda: tensor.reshape(-1),
        "scalar": lambda: tensor.reshape(-1)[0].clone(),
        "half": lambda: tensor.to(torch.float16),
        "integer": lambda: tensor.to(torch.int64),
        "nan": lambda: torch.full_like(tensor.float(), float("nan")),
        "huge": lambda: torch.full_like(tensor.float(), 3e38),
    }
    match change.how:
        case "dropped":
            pass
        case "none":
            tensors = {}
        case "renamed":
            tensors["x/y"] = tensor
        case "added":
            tensors |= {name: tensor, "added": torch.zeros(3)}
        case how:
            tensors[name] = changed[how]()
    return bytes(safetensors.torch.save(tensors))


def remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
