"""The cache stays within its limit, and nothing goes that somebody uses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hotloop.core import cache as core_cache
from hotloop.core.cache import cache_limit_bytes, entries, entry_in_use, make_room
from hotloop.core.errors import UsageError


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(core_cache, "_held", {})
    return tmp_path / "cache"


def entry(cache: Path, name: str, *, used_at: int, size: int = 1000) -> Path:
    path = cache / "prepared" / name
    path.mkdir(parents=True)
    (path / "shard").write_bytes(bytes(size))
    os.utime(path, (used_at, used_at))
    return path


def test_longest_unused_go_until_the_rest_fits(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [entry(own_cache, str(n), used_at=1000 * n) for n in (3, 1, 2, 4)]
    monkeypatch.setenv("HOTLOOP_CACHE_LIMIT", "2.5KB")
    assert [gone.path.name for gone in make_room()] == ["1", "2"]
    assert [path.exists() for path in paths] == [True, False, False, True]
    assert make_room() == []


def test_what_another_process_uses_stays(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used, other = entry(own_cache, "used", used_at=1), entry(own_cache, "other", used_at=2)
    program = (
        "import sys; from pathlib import Path\n"
        "from hotloop.core.cache import entry_in_use\n"
        f"entry_in_use(Path({str(used)!r})); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        os.utime(core_cache._lock_of(used), (1, 1))  # long ago: it would be the first to go
        monkeypatch.setenv("HOTLOOP_CACHE_LIMIT", "1B")
        assert [found.in_use for found in entries()] == [True, False]
        make_room()
        assert used.exists()
        assert not other.exists()
        process.kill()
    assert [found.in_use for found in entries()] == [False]
    make_room()
    assert not used.exists()


def test_use_counts_from_the_last_time(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = entry(own_cache, "old", used_at=1), entry(own_cache, "new", used_at=2)
    program = (
        "from pathlib import Path; from hotloop.core.cache import entry_in_use\n"
        f"entry_in_use(Path({str(old)!r}))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    monkeypatch.setenv("HOTLOOP_CACHE_LIMIT", "1500")
    make_room()
    assert old.exists()
    assert not new.exists()


def test_what_killed_processes_left_goes_and_what_is_being_made_stays(own_cache: Path) -> None:
    program = (
        "import os, signal\n"
        "from hotloop.data.piece_index import _kept\n"
        "_kept([], (os.kill(os.getpid(), signal.SIGKILL) for _ in '1'))"
    )
    killed = subprocess.run([sys.executable, "-c", program], check=False)
    assert killed.returncode == -signal.SIGKILL
    (killed_in,) = (own_cache / "pieces").iterdir()
    evicted = entry(own_cache, ".evicted-text-01234567", used_at=1)
    entry_in_use(own_cache / "prepared" / "0123456789abcdef")
    made = entry(own_cache, ".0123456789abcdef-01_3456z", used_at=1)
    other = entry(own_cache, ".hidden", used_at=1)
    entry_in_use(own_cache / "pieces" / killed_in.name[1:-9])
    assert [path.exists() for path in (killed_in, evicted, made, other)] == [False] * 2 + [True] * 2


def test_directories_outside_the_cache_are_nobodys_business(tmp_path: Path) -> None:
    entry_in_use(tmp_path / "elsewhere")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("", 10**11),
        ("0", None),
        ("5GB", 5 * 10**9),
        ("1.5 t", 15 * 10**11),
        ("7", 7),
        ("9" * 400, int("9" * 400)),
    ],
)
def test_limit_is_read_as_people_write_it(
    text: str, size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOTLOOP_CACHE_LIMIT", text)
    assert cache_limit_bytes() == size


@pytest.mark.parametrize("text", ["much", "-5", "5XB", "1e3", "nan"])
def test_limit_that_is_no_size_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTLOOP_CACHE_LIMIT", text)
    with pytest.raises(UsageError, match=f"no size: '{text}'"):
        cache_limit_bytes()
