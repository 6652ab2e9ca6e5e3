"""Locks are one process's or shared, and go with whoever holds them."""

from __future__ import annotations

import os
from pathlib import Path

from hotloop.core.file_locks import is_held, lock_file


def test_lock_is_had_by_one_or_shared(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_held(path)
    assert not path.exists()
    first = lock_file(path)
    assert first is not None
    assert is_held(path)
    assert is_held(path, shared=True)
    assert lock_file(path) is None
    os.close(first)
    assert not is_held(path)
    shared = [lock_file(path, shared=True), lock_file(path, shared=True)]
    assert None not in shared
    assert is_held(path)
    assert not is_held(path, shared=True)
    for descriptor in shared:
        os.close(descriptor or 0)
