"""Files mapped into memory without an open file each: a corpus may have thousands of shards.

`mmap.mmap` (and `numpy.memmap` with it) keeps a descriptor for the life of the map; the usual limit is
1024 for a process. The system itself keeps none.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np

_FAILED = ctypes.c_void_p(-1).value


class _Map:
    """One read-only map of a whole file, given back with the last array that looks into it."""

    def __init__(self, address: int, size: int, dtype: np.dtype[Any]) -> None:
        self._address = address
        self._size = size
        self.__array_interface__ = {
            "data": (address, True),
            "shape": (size // dtype.itemsize,),
            "typestr": dtype.str,
            "version": 3,
        }

    def __del__(self) -> None:
        if _libc is not None:  # None while the interpreter ends, which unmaps all
            _libc.munmap(self._address, self._size)


def map_file(path: Path | str, dtype: np.dtype[Any]) -> np.ndarray:
    """The content of a file as an array that cannot be written. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        if not size:
            return np.empty(0, dtype)
        address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(descriptor)
    return np.asarray(_Map(address, size, dtype))


def _load() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,  # off_t, on every 64-bit system
    )
    libc.munmap.restype = ctypes.c_int
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return libc


_libc = _load()
