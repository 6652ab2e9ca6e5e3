"""The fresh processes of one `hotloop fit`: rehearsals, which compute nothing, and real runs of a few steps."""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hotloop.core.cache import cache_directory
from hotloop.core.command_run import describe_end
from hotloop.core.errors import CommandFailed, EnvironmentFailed, ExitCode, UsageError
from hotloop.core.files import read_json
from hotloop.core.measurement import Measurement, Plan
from hotloop.core.memory_use import Rehearsed
from hotloop.core.progress import Progress
from hotloop.core.settings import Settings, store_settings
from hotloop.optimizations.catalogue import resolve
from hotloop.train.memory import predict
from hotloop.trial.arm import RUN_PLACEHOLDER, Arm
from hotloop.trial.measure import measure
from hotloop.trial.memory_group import MemoryGroup
from hotloop.trial.process import run_process, tail

PATIENCE_S = 3600.0
MICROBATCH, ACCUMULATED = "train.microbatch", "train.grad_accum_steps"
NOT_SENT = {"logging.wandb": False, "logging.mlflow": False, "checkpoint.upload": None}
"""In what is trained: nothing of it reaches a server."""


@dataclass(slots=True)
class Processes:
    """Runs what is asked of it once, in a directory of its own."""

    settings: Settings
    """As given; what is `auto` is resolved anew for each run."""
    machine: Any
    """What the settings are resolved for."""
    vocabulary: int
    directory: Path
    progress: Progress
    num_real: int = 0
    peaks: dict[int, int] = field(default_factory=dict)
    """Measured, by microbatch; of the whole context."""
    kept_fraction: float | None = None
    """Of the activations of a GPU's trace, what compiled steps keep; `None`: not known."""
    _rehearsed: dict[str, Rehearsed] = field(default_factory=dict)

    def with_changes(self, changes: Mapping[str, Any]) -> Settings:
        """Resolved for the machine. Raises `UsageError` for what cannot be used there."""
        return resolve(self.settings.with_values(changes, origin="flag"), self.machine)[0]

    def rehearse(self, changes: Mapping[str, Any]) -> Rehearsed:
        """Raises `CommandFailed` where the process fails, and what it says of settings and machine."""
        settings = self.with_changes(changes)
        digest = settings.config.digest()
        if digest not in self._rehearsed:
            self.progress(f"rehearsing {words(changes)}", 0, None, "")
            if self.machine.device_type == "cpu":
                self._rehearsed[digest] = self._in_process(settings, digest)
            else:
                self._rehearsed[digest] = predict(settings.config, self.vocabulary)
        found = self._rehearsed[digest]
        if self.kept_fraction is None or not settings.config.train.compile:
            return found
        less = int((1 - self.kept_fraction) * found.activations_bytes)
        return replace(
            found,
            activations_bytes=found.activations_bytes - less,
            logits_bytes=int(self.kept_fraction * found.logits_bytes),
            live_bytes=found.live_bytes - less,
            steps_bytes=found.steps_bytes - less,
            whole_bytes=found.whole_bytes - less,
        )

    @property
    def compiles(self) -> bool | str:
        return self.with_changes({}).config.train.compile

    def _in_process(self, settings: Settings, digest: str) -> Rehearsed:
        place = self.directory / f"rehearsal-{digest}"
        place.mkdir()
        store_settings(settings, place / "config.yaml")
        env = {
            **os.environ,
            "HOTLOOP_CACHE": str(cache_directory()),
            # Code without its kernels must never be taken from a cache.
            "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(place / "compiled"),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        command = [sys.executable, "-m", "hotloop.train.rehearsal", "config.yaml", "result.json"]
        log = place / "log.txt"
        finished = run_process(
            command, workdir=place, env=env, log=log, timeout_s=PATIENCE_S, name="rehearsal"
        )
        if finished.returncode == 0:
            return read_json(place / "result.json", Rehearsed)
        said = tail(log)
        if finished.returncode in (ExitCode.USAGE, ExitCode.ENVIRONMENT):
            kind = UsageError if finished.returncode == ExitCode.USAGE else EnvironmentFailed
            raise kind(log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1])
        raise CommandFailed(
            f"the rehearsal {describe_end(finished.returncode)}",
            do=said,
            returncode=finished.returncode,
        )

    def run(
        self,
        changes: Mapping[str, Any],
        *,
        steps: int,
        whole: bool = False,
        group: MemoryGroup | None = None,
    ) -> Measurement:
        """A real training of so many steps; with `whole` it evaluates and saves as well. Raises `CommandFailed`."""
        self.num_real += 1
        what = f"training {steps} steps with {words(changes)}"
        settings = self.with_changes({**NOT_SENT, **changes})
        place = self.directory / f"run-{self.num_real}"
        config = self.directory / f"run-{self.num_real}.yaml"
        store_settings(settings, config)
        command = [sys.executable, "-m", "hotloop", "train", str(config), "--out", RUN_PLACEHOLDER]
        if not whole:
            command += ["--stop-after", str(steps)]
        if group is not None:
            command = group.command(command)
        made = measure(
            Arm("run", tuple(command), "run", env={"HOTLOOP_CACHE": str(cache_directory())}),
            directory=place,
            plan=Plan(0, steps, PATIENCE_S),
            seed=place.name,
            cache=self.directory / "compiled",
            workdir=None,
            tick=lambda seconds: self.progress(what, seconds, None, f"{seconds:.0f} s"),
        )
        if not whole and settings.config.model.context == self.settings.config.model.context:
            size, peak = settings.config.train.microbatch, peak_bytes(made)
            self.peaks[size] = max(peak, self.peaks.get(size, 0))
        return made


def peak_bytes(measurement: Measurement) -> int:
    """The GPU's allocated memory, or the process's resident memory. Raises `EnvironmentFailed` where nothing tells."""
    peaks = [record.peak_bytes for record in measurement.records]
    census = measurement.census
    if census is not None and not (census.device or "").startswith("cuda"):
        peaks.append(census.host_peak_bytes)
    known = [each for each in peaks if each is not None]
    if not known:
        raise EnvironmentFailed("this system does not tell the peak memory of a process")
    return max(known)


def tokens_per_s(measurement: Measurement) -> float | None:
    """Of the median step, without the first two, which compile and fault pages in."""
    rates = [r.tokens / r.wall_s for r in measurement.records[2:] if r.tokens and r.wall_s]
    return statistics.median(rates) if rates else None


def words(changes: Mapping[str, Any]) -> str:
    """`KEY=VALUE` of each, as a command takes them."""
    return " ".join(
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in changes.items()
    )
