"""Plant delays into every phase of the real training loop and see where they are booked.

    python benchmarks/planted_delays.py [--steps 80] [--json FILE]

For each phase and each of 5, 20 and 100 ms, a small model is trained with a busy wait of that length
at the end of the phase, in every other step. The delay measures itself; `error` is how far the phase's extra
seconds are from it, relative: the median difference of a delayed step and the step before it. Phases
and wall time are held against each other over every run. Saving and evaluating do nothing here but
wait, since a disk's jitter would hide 0.1 ms, and TensorBoard is off: its writer is a thread, which runs
in the planted wait and takes that time from the interpreter's other phases. Exits 1 past the bars of 2 % and 0.5 %.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from hotloop.core.settings import load_settings
from hotloop.core.step import StepRecord, read_steps
from hotloop.data.loader import Loader
from hotloop.data.prepare import prepare_text
from hotloop.data.spec import Spec
from hotloop.models.decoder import Decoder
from hotloop.probe.recorder import StepBook
from hotloop.train import loop
from hotloop.train.start import start

DELAYS_S = {0.005: 4, 0.020: 2, 0.100: 1}
"""Seconds, and how many times `--steps` they get: jitter is a larger part of a short one."""
BAR = 0.02
SKIPPED = 5
"""Steps at the start, left out."""


class Delay:
    """A busy wait that knows how long it really took."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.taken: list[float] = []
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        if self.calls % 2:
            return
        start = time.perf_counter()
        while time.perf_counter() - start < self.seconds:
            pass
        self.taken.append(time.perf_counter() - start)


def after(
    owner: Any, name: str, delay: Callable[[], None], *, only: Callable[..., bool] | None = None
) -> Any:
    """`owner.name` with the delay behind it: in front, the work would find its caches cold."""
    real = getattr(owner, name)

    def delayed(*args: Any, **kwargs: Any) -> Any:
        result = real(*args, **kwargs)
        if only is None or only(*args, **kwargs):
            delay()
        return result

    return patch.object(owner, name, delayed)


def before(owner: Any, name: str, delay: Callable[[], None]) -> Any:
    """`owner.name` with the delay in front of it."""
    real = getattr(owner, name)

    def delayed(*args: Any, **kwargs: Any) -> Any:
        delay()
        return real(*args, **kwargs)

    return patch.object(owner, name, delayed)


def instead(owner: Any, name: str, delay: Callable[[], None]) -> Any:
    """The delay in place of `owner.name`."""
    return patch.object(owner, name, lambda *args: delay())


PLANTS: dict[str, Callable[[Callable[[], None]], Any]] = {
    "data_wait": lambda delay: after(Loader, "batch", delay, only=lambda self, at, n: n == 4),
    "host_to_device": lambda delay: after(loop, "to_device", delay),
    "forward": lambda delay: after(Decoder, "forward", delay, only=lambda self, *a: self.training),
    "backward": lambda delay: after(torch.Tensor, "backward", delay),
    "optimizer": lambda delay: after(loop, "update", delay),
    "logging": lambda delay: after(loop, "tag_compiles", delay),
    "eval": lambda delay: instead(loop, "evaluate", delay),
    "sync": lambda delay: after(StepBook, "wait", delay, only=lambda self, **last: not last),
    "checkpoint": lambda delay: instead(loop, "save", delay),
    "unattributed": lambda delay: before(StepBook, "close", delay),
}
"""`grad_sync` has no place in a single process."""


@contextmanager
def config_file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "text.txt").write_text(
            "\n\n".join(f"{i} the loop reads a batch" * 9 for i in range(400))
        )
        spec = Spec((str(directory / "text.txt"),), validation_fraction=0.1)
        prepare_text(spec, directory / "data")
        yield directory / "config.yaml"


def configure(path: Path, steps: int) -> None:
    path.write_text(
        f"data: {{prepared: {path.parent / 'data'}}}\n"
        "model: {layers: 1, width: 16, heads: 2, context: 16}\n"
        f"train: {{steps: {steps}, microbatch: 4, compile: false, precision: fp32, num_threads: 1}}\n"
        "schedule: {warmup_steps: 1}\neval: {every_steps: 1, windows: 1}\ncheckpoint: {every_steps: 1}\n"
        "logging: {tensorboard: false}\n"
    )


def run(config: Path, place: Path) -> list[StepRecord]:
    start(load_settings(config), place)
    return list(read_steps(place / "steps.jsonl"))[SKIPPED:]


def difference(records: list[StepRecord], phase: str, seconds: float) -> float:
    """Median over delayed steps of the phase's seconds beyond those of the step before."""
    return statistics.median(
        second.host[phase] - first.host.get(phase, 0.0)
        for first, second in itertools.pairwise(records)
        if first.host.get(phase, 0.0) < seconds / 2 < second.host.get(phase, 0.0)
    )


def closure_of(records: list[StepRecord]) -> float:
    """How far the phases of a run are from its wall time, relative."""
    return abs(sum(sum(r.host.values()) for r in records) / sum(r.wall_s for r in records) - 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    closure = 0.0
    with config_file() as config:
        print(f"{'phase':16}{'delay':>9}{'booked there':>14}{'error':>9}")
        for phase, plant in PLANTS.items():
            for seconds, times in DELAYS_S.items():
                configure(config, args.steps * times)
                delay = Delay(seconds)
                with plant(delay):
                    records = run(config, config.parent / f"{phase}-{seconds}")
                taken = statistics.median(delay.taken)
                there = difference(records, phase, seconds)
                error = there / taken - 1
                closure = max(closure, closure_of(records))
                assert min(min(r.host.values()) for r in records) >= 0
                rows.append({"phase": phase, "delay_s": taken, "booked_s": there, "error": error})
                print(f"{phase:16}{seconds * 1e3:6.0f} ms{there * 1e3:11.3f} ms{error:9.2%}")
    worst = max(abs(row["error"]) for row in rows)
    print(
        f"worst {worst:.2%}, bar {BAR:.0%}; phases against wall time: at most {closure:.3%} apart, bar 0.5 %"
    )
    if args.json:
        args.json.write_text(
            json.dumps({"rows": rows, "worst": worst, "closure": closure}, indent=1)
        )
    return int(worst > BAR or closure > 0.005)


if __name__ == "__main__":
    sys.exit(main())
