"""In place of the writers of `torch.save` and safetensors: what they are given is copied, and written by `background_files`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from hotloop.checkpoint.background_files import FileSave, FileSaves


class NoRoom(Exception):
    """Memory does not hold another copy."""


def record_all(saves: FileSaves) -> None:
    """From now on, for good."""
    _record_zips(saves)
    with contextlib.suppress(ImportError):
        _record_safetensors(saves)


class _RecordedZip:
    """In place of what `torch.save` opens: takes its records, and copies what a later step may change."""

    def __init__(self, saves: FileSaves, save: FileSave, opened: Any) -> None:
        self._saves, self._save, self._opened = saves, save, opened
        self._calls: list[tuple[str, Any, int]] | None = []
        """`None`: they go to the writer."""

    def __enter__(self) -> _RecordedZip:
        return self

    def write_record(self, name: str, data: Any, num_bytes: int) -> None:
        if self._calls is not None and isinstance(data, torch.UntypedStorage):
            try:
                data = self._saves.copy(self._save, data.data_ptr(), data.nbytes())
            except NoRoom:
                self._write_through()
        if self._calls is None:
            self._opened.file_like.write_record(name, data, num_bytes)
        else:
            self._calls.append((name, data, num_bytes))

    def __getattr__(self, name: str) -> Any:
        """Anything else that torch asks of its writer, now."""
        self._write_through()
        return getattr(self._opened.file_like, name)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            with contextlib.suppress(Exception):
                self._opened.__exit__(None, None, None)
            self._saves.finish_now(self._save, discard=True)
            return
        self._save.write = self._write
        if self._calls is None:
            self._saves.observe("memory does not hold it twice")
            self._saves.finish_now(self._save)
        else:
            self._saves.submit(self._save)

    def _write_through(self) -> None:
        calls, self._calls = self._calls or [], None
        for call in calls:
            self._opened.file_like.write_record(*call)

    def _write(self) -> None:
        try:
            self._write_through()
        except BaseException:
            with contextlib.suppress(Exception):
                self._opened.__exit__(None, None, None)
            raise
        self._opened.__exit__(None, None, None)


def _record_zips(saves: FileSaves) -> None:
    serialization: Any = torch.serialization
    if not is_supported():
        return
    open_now = serialization._open_zipfile_writer

    def open_writer(given: Any, *more: Any) -> Any:
        save = saves.begin(given)
        if save is None:
            return open_now(given, *more)
        try:
            # Now: what is wrong with it is told by this call, and torch's settings are those of now.
            opened = open_now(save.file, *more)
        except Exception:  # noqa: BLE001 - of the ordinary save, then
            saves.finish_now(save, discard=True)
            saves.ordinary(save.target, "torch cannot write beside it")
            return open_now(given, *more)
        return _RecordedZip(saves, save, opened)

    serialization._open_zipfile_writer = open_writer


def is_supported() -> bool:
    """Whether this torch saves by way of what `save_in_background` takes the place of."""
    serialization = torch.serialization
    names = serialization.save.__code__.co_names
    return "_open_zipfile_writer" in names and hasattr(serialization, "_open_zipfile_writer")


def _record_safetensors(saves: FileSaves) -> None:
    """Raises `ImportError` without safetensors."""
    import safetensors.torch

    tensors: Any = safetensors.torch
    write_now = tensors.serialize_file

    def serialize_file(flat: Any, filename: Any, metadata: Any = None) -> None:
        save = saves.begin(filename)
        if save is None:
            write_now(flat, filename, metadata=metadata)
            return
        metadata = dict(metadata) if metadata is not None else None
        try:
            names = _type_names(flat)
            copied = {name: _copied(saves, save, each, names) for name, each in flat.items()}
        except (NoRoom, KeyError):
            saves.observe("memory does not hold it twice, or a type is packed")
            save.write = lambda: write_now(flat, save.file, metadata=metadata)
            saves.finish_now(save)
            return
        except BaseException:
            saves.finish_now(save, discard=True)
            raise
        save.write = lambda: write_now(copied, save.file, metadata=metadata)
        saves.submit(save)

    tensors.serialize_file = serialize_file


def _copied(saves: FileSaves, save: FileSave, spec: Any, names: Mapping[str, str]) -> Any:
    """A tensor as safetensors has it: bytes, which nobody changes, or in later versions the place where they lie.

    Raises `NoRoom`, and `KeyError` for a type without a name."""
    if isinstance(spec, dict):
        save.num_bytes += len(spec["data"])
        return spec
    memory = saves.copy(save, spec.data_ptr, spec.data_len)
    return _spec(spec, names[spec.dtype], spec.shape, memory.data_ptr(), spec.data_len)


def _spec(like: Any, dtype: str, shape: Any, pointer: int, num_bytes: int) -> Any:
    return type(like)(dtype=dtype, shape=shape, data_ptr=pointer, data_len=num_bytes)


def _type_names(flat: Mapping[str, Any]) -> dict[str, str]:
    """Types as such a tensor calls them (`F32`) -> as it is to be told (`float32`); packed ones are left out."""
    names = {}
    for each in flat.values() if not any(isinstance(each, dict) for each in flat.values()) else ():
        for dtype in {each for each in vars(torch).values() if isinstance(each, torch.dtype)}:
            name = str(dtype).removeprefix("torch.")
            with contextlib.suppress(Exception):
                made = _spec(each, name, [1], 0, dtype.itemsize)
                if made.shape == [1]:
                    names[made.dtype] = name
        break
    return names
