"""Uploading checkpoints beside the training: one at a time, the newest first, on a thread of its own.

What is committed while another one is uploaded waits, and gives way to the next commit. The files of an upload are open
from its beginning, so that retention may delete them meanwhile. A process that is killed leaves files
without a manifest, and the next start takes the newest checkpoint up again.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from io import BufferedRandom, BufferedReader
from pathlib import Path

from hotloop.checkpoint import store
from hotloop.checkpoint.background import give_way
from hotloop.checkpoint.entries import Manifest, retired, step_of
from hotloop.checkpoint.remote import RECORDS, Damaged, Remote
from hotloop.core.config import CheckpointConfig
from hotloop.core.errors import EnvironmentFailed, not_installed
from hotloop.core.untrusted import open_regular


class Abandoned(Exception):
    """The training ends without this upload. Never shown."""


class Uploader:
    """Takes commits from whatever thread saves; what it has to say is said by the one that trains."""

    def __init__(self, config: CheckpointConfig, name: str, warn: Callable[[str], None]) -> None:
        """Raises `UsageError` for a URL that cannot be opened, and where zstandard is asked for and missing."""
        installed = importlib.util.find_spec("zstandard") is not None
        if config.compress is True and not installed:
            raise not_installed("zstd", "`checkpoint.compress: true` needs the package zstandard")
        self.remote = Remote(f"{(config.upload or '').rstrip('/')}/{name}", wait=self._sleep)
        self.problem: str | None = None
        """Why the newest checkpoint that was taken is not there."""
        self.deadline = math.inf
        """When the process must be on its way out, by `time.monotonic`: what is not there then is left to the next start."""
        self._config, self._warn = config, warn
        self._compress = config.compress is not False and installed
        self._changed, self._ending = threading.Condition(), threading.Event()
        self._waiting: tuple[Path, Mapping[int, float], int | None] | None = None
        self._running = False
        self._untold: list[str] = []
        self._undeleted = False
        self._free_at = 0.0

    def take(self, saved: Path, losses: Mapping[int, float], good_until: int | None) -> None:
        """Upload it when the one before has ended, unless a newer one is taken until then."""
        with self._changed:
            self._waiting = saved, losses, good_until
            if not self._running:
                self._running = True
                # A daemon: a training that was interrupted twice does not wait for it.
                threading.Thread(target=self._run, name="hotloop-upload", daemon=True).start()

    def check(self) -> None:
        """Say what went wrong since the last call; never waits."""
        while self._untold:
            self._warn(self._untold.pop(0))

    def finish(self) -> None:
        """Wait until the newest one is there, or has failed. An interrupt and the deadline leave it to the next start."""
        with self._changed:
            if not self._ended(within_s=1.0):
                self._warn(f"uploading to {self.remote.url}; Ctrl-C leaves it to the next start")
                if not self._ended(within_s=threading.TIMEOUT_MAX):
                    self._ending.set()
                    self.problem = f"no time is left to upload to {self.remote.url}: the next start does it"  # fmt: skip
                    self._warn(self.problem)
        self.check()

    def _ended(self, *, within_s: float) -> bool:
        """Waits for it, up to the deadline."""
        left_s = self.deadline - time.monotonic()
        return self._changed.wait_for(lambda: not self._running, timeout=min(within_s, left_s))

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if not (self._ending.is_set() or (kind and issubclass(kind, KeyboardInterrupt))):
                self.finish()
        finally:
            self._ending.set()

    def fetch(
        self, root: Path, *, newer_than: int = -1, step: int | None = None
    ) -> store.Checkpoint | None:
        """Download the newest whole checkpoint of a later step than that, or that of `step`; `None` for none.

        Says which, and what is wrong with those that it passes over. Raises `EnvironmentFailed` where they cannot be read: to
        go on from an older one would make steps again that are there.
        """
        for entry in self.remote.entries():
            if entry.step <= newer_than or (step is not None and entry.step < step):
                return None
            problem = None if entry.state == "set aside" else entry.problem
            if entry.state == "whole" and step in (None, entry.step):
                size = f"{entry.size_bytes / 1e6:,.1f} MB"
                self._warn(f"downloading step {entry.step} ({size}) from {self.remote.url}")
                try:
                    return self.remote.fetch(entry, root)
                except Damaged as error:
                    problem = str(error)
            if problem:
                self._warn(f"{entry.name} at {self.remote.url} cannot be used: {problem}")
        return None

    def _run(self) -> None:
        give_way()
        while True:
            with self._changed:
                job, self._waiting = self._waiting, None
                if job is None:
                    self._running = False
                    self._changed.notify_all()
                    return
            saved, losses, good_until = job
            try:
                name = self._upload(saved)
                self.problem = None
            except (Abandoned, FileNotFoundError):
                continue  # its files are deleted since: then a newer one waits
            except BaseException as error:  # noqa: BLE001 - it must not end the training
                why = str(error) or type(error).__name__
                if self.problem is None:  # else it was said
                    self._untold.append(f"the upload of {saved.name} failed, training goes on: {why}")  # fmt: skip
                self.problem = f"{saved.name} is not at {self.remote.url}: {why}"
                continue
            try:
                self._retire(name, losses, good_until)
                self._undeleted = False
            except Abandoned:
                pass
            except BaseException as error:  # noqa: BLE001 - the new one is there
                if not self._undeleted:
                    self._untold.append(f"older checkpoints stay at {self.remote.url}: {error}")
                self._undeleted = True

    def _upload(self, saved: Path) -> str:
        """Its name there, which is another one where it came from there."""
        with contextlib.ExitStack() as opened:
            here = store.entry(saved)
            records = [path for each in RECORDS for path in saved.parent.parent.glob(each)]
            paths = [saved / name for name in here.files]
            files: dict[Path, BufferedReader | BufferedRandom] = {
                path: opened.enter_context(open_regular(path)) for path in paths
            }
            for path in records:  # copies: the steps that go on add to them
                files[path] = opened.enter_context(_copy_of(path))
            if here.problem or here.manifest is None:
                raise EnvironmentFailed(f"it is damaged: {here.problem}", where=str(saved))
            there = list(self.remote.entries())
            for each in there:
                if each.state == "whole" and each.content == here.content:
                    return each.name
            begun = any(each.name == saved.name for each in there)
            put = {
                path.name: self.remote.put_file(
                    f"{saved.name}/{path.name}", file, compress=self._compress, there=begun, sent=self._pace
                )
                for path, file in files.items()
            }  # fmt: skip
        for name, said in here.files.items():
            if put[name].sha256 != said.sha256:
                raise EnvironmentFailed(f"{name} was altered since it was saved", where=str(saved))
        kept = {name: put.pop(name) for name in here.files}
        manifest = Manifest(here.step, kept, put, here.saved_at, here.manifest.versions)
        self.remote.put(f"{saved.name}/{store.MANIFEST}", manifest.to_json())
        return saved.name

    def _retire(self, newest: str, losses: Mapping[int, float], good_until: int | None) -> None:
        older = [each for each in self.remote.entries() if each.step <= (step_of(newest) or 0)]
        whole = [each for each in older if each.state == "whole"]
        cut_short = [each for each in older if each.state == "half-written"]
        rules, now = self._config, time.time()
        for each in cut_short + retired(
            whole, rules, newest=newest, now=now, losses=losses, good_until=good_until
        ):
            self.remote.remove(each)

    def _pace(self, num_bytes: int) -> None:
        """Called before that many bytes are sent."""
        limit, now = self._config.upload_mb_per_s, time.monotonic()
        self._free_at = max(self._free_at, now) + (num_bytes / (limit * 1e6) if limit else 0.0)
        self._sleep(self._free_at - now)

    def _sleep(self, seconds: float) -> None:
        if self._ending.wait(seconds):
            raise Abandoned


def _copy_of(path: Path) -> BufferedRandom:
    """A file without a name that holds what this one holds now."""
    copy = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the caller
    with open_regular(path) as source:
        shutil.copyfileobj(source, copy)
    copy.flush()
    copy.seek(0)
    return copy
