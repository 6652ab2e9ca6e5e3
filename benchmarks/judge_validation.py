"""How often the judge is wrong, and how much it sees: simulation, and replay of recorded runs.

    python benchmarks/judge_validation.py benchmarks/results/judge_validation.md

Everything goes through the real `compare` with its looks, as a session would call it: judge at 4 pairs,
stop if decided, else at 6, else at 10. About 5 minutes on one core. `tests/judge` runs a small part.
Seeds are fixed; the table is reproducible to the last digit.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.random import Generator
from scipy import stats

from hotloop.core.judgement import Verdict
from hotloop.core.measurement import Environment, Measurement, Plan
from hotloop.core.step import StepRecord
from hotloop.judge.compare import Pair, compare
from hotloop.judge.looks import LOOKS, should_stop

RECORDED = Path(__file__).parent.parent / "tests" / "golden" / "aa_runs.json.gz"
WARMUP = 20
"""Steps at the start of a recorded run that are not counted."""
STEPS = 30
"""Counted steps of a simulated run."""
BAR = 0.03
"""False `improved` per comparison that is tolerated."""

ENVIRONMENT = Environment(
    device="simulated", num_devices=1, cpu_model="simulated", num_cpus=2, cpu_quota=2.0,
    memory_limit_bytes=None, platform="none", kernel=None, python="3", torch=None, cuda=None,
    driver=None, hotloop="0",
)  # fmt: skip


@dataclass(frozen=True)
class Design:
    """A machine. Numbers are standard deviations of log time."""

    run: float
    """Between processes: layout, placement."""
    drift: float
    """Over the whole comparison: half a straight line, half a wandering with a memory of 5 processes."""
    step: float
    two_states: float = 0.0
    """Half of the processes are slower by this."""
    burst: float = 0.0
    """Another tenant slows 3 processes in a row by this, at a random moment in half of the cases."""
    tail: float = 0.03
    """Share of steps that take 1.5 times as long."""


DESIGNS = {
    "quiet": Design(run=0.005, drift=0.005, step=0.02),
    "shared": Design(run=0.015, drift=0.02, step=0.04),
    "noisy": Design(run=0.03, drift=0.04, step=0.08),
    "two states": Design(run=0.002, drift=0.0, step=0.01, two_states=0.06),
    "tenant": Design(run=0.005, drift=0.01, step=0.03, burst=0.3),
    "drift only": Design(run=0.0005, drift=0.10, step=0.005),
}
"""The first three as in the field notes on this machine kind; the others are built to mislead."""

EFFECTS = (0.0, 0.02, 0.06, 0.10)
"""True gains."""


def simulated_times(design: Design, processes: int, random: Generator) -> list[np.ndarray]:
    """Step seconds of processes run one after the other; no process differs by design."""
    wander = np.zeros(processes)
    memory = math.exp(-1 / 5)
    wander[0] = random.normal()
    for i in range(1, processes):
        wander[i] = memory * wander[i - 1] + math.sqrt(1 - memory**2) * random.normal()
    line = random.normal() * np.linspace(-1, 1, processes)
    level = design.drift * (line + wander) / math.sqrt(2) + design.run * random.normal(
        size=processes
    )
    level += design.two_states * random.integers(0, 2, size=processes)
    if design.burst and random.random() < 0.5:
        start = random.integers(0, processes)
        level[start : start + 3] += design.burst
    steps = design.step * random.normal(size=(processes, STEPS))
    steps += math.log(1.5) * (random.random((processes, STEPS)) < design.tail)
    return list(0.02 * np.exp(level[:, None] + steps))


def balanced_orders(num_pairs: int, random: Generator) -> list[bool]:
    """Whether the baseline runs first, per pair: each two pairs hold both orders (ABBA or BAAB)."""
    orders: list[bool] = []
    while len(orders) < num_pairs:
        first = bool(random.integers(2))
        orders += [first, not first]
    return orders[:num_pairs]


def measurement(arm: str, seconds: Sequence[float], pair: int, position: int) -> Measurement:
    """A process as the trial would have measured it."""
    records = tuple(StepRecord(step, float(s), tokens=1000) for step, s in enumerate(seconds))
    plan = Plan(0, len(records), 60.0, pair=pair, position=position)
    return Measurement(arm, (), plan, ENVIRONMENT, records)


def as_pairs(times: Sequence[np.ndarray], gain: float, random: Generator) -> list[Pair]:
    """Consecutive processes as randomly ordered pairs; the candidate's times are divided by 1 + gain."""
    pairs = []
    for number, baseline_first in enumerate(balanced_orders(len(times) // 2, random)):
        places = (0, 1) if baseline_first else (1, 0)
        b, c = (times[2 * number + place] for place in places)
        pairs.append(
            (
                measurement("baseline", b, number, places[0]),
                measurement("candidate", c / (1 + gain), number, places[1]),
            )
        )
    return pairs


def judged(pairs: Sequence[Pair]) -> Verdict:
    """The verdict of a session that stops as soon as it may."""
    for look in LOOKS:
        verdict = compare(pairs[:look], parity_class="bitwise", looks=LOOKS)
        if should_stop(verdict, look, LOOKS):
            break
    return verdict


def recorded_sets(file: Path = RECORDED) -> dict[str, list[np.ndarray]]:
    """Counted step seconds of each recorded run, in the order in which they ran."""
    document = json.loads(gzip.decompress(file.read_bytes()))
    return {
        name: [np.array(run["step_us"][WARMUP:]) / 1e6 for run in runs]
        for name, runs in document["sets"].items()
    }


def replayed(runs: Sequence[np.ndarray], gain: float, random: Generator) -> Verdict:
    """One comparison over a random window of consecutive recorded runs, in random ABBA order."""
    size = 2 * LOOKS[-1]
    start = int(random.integers(len(runs) - size + 1))
    return judged(as_pairs(runs[start : start + size], gain, random))


@dataclass(frozen=True)
class Row:
    """What many comparisons of one kind came to."""

    name: str
    gain: float
    outcomes: Counter[str]
    mean_pairs: float
    covered: float
    """Share whose interval holds the true ratio."""

    def share(self, outcome: str) -> float:
        return self.outcomes[outcome] / self.outcomes.total()

    def upper(self, outcome: str) -> float:
        """95 % upper bound of the share (Clopper-Pearson, one-sided)."""
        hits, count = self.outcomes[outcome], self.outcomes.total()
        return float(stats.beta.ppf(0.95, hits + 1, count - hits)) if hits < count else 1.0


def many(name: str, gain: float, count: int, one: Callable[[], Verdict]) -> Row:
    verdicts = [one() for _ in range(count)]
    covered = sum((v.ratio_low or 0) <= 1 + gain <= (v.ratio_high or math.inf) for v in verdicts)
    return Row(
        name,
        gain,
        Counter(v.outcome for v in verdicts),
        sum(v.num_pairs for v in verdicts) / count,
        covered / count,
    )


def simulate(count: int, seed: int) -> list[Row]:
    rows = []
    for name, design in DESIGNS.items():
        for gain in EFFECTS:
            random = np.random.default_rng([seed, len(rows)])

            def one(design: Design = design, gain: float = gain, random: Generator = random) -> Verdict:  # fmt: skip
                times = simulated_times(design, 2 * LOOKS[-1], random)
                return judged(as_pairs(times, gain, random))

            rows.append(many(name, gain, count, one))
    return rows


def replay(count: int, seed: int) -> list[Row]:
    rows = []
    for name, runs in recorded_sets().items():
        for gain in EFFECTS:
            random = np.random.default_rng([seed, len(rows)])
            rows.append(many(name, gain, count, lambda r=runs, g=gain, x=random: replayed(r, g, x)))
    return rows


def naive_false_claims(runs: Sequence[np.ndarray]) -> float:
    """Share of neighbouring identical runs that Welch's t-test on their steps calls different at 5 %."""
    tests = [stats.ttest_ind(a, b, equal_var=False).pvalue for a, b in pairwise(runs)]
    return float(np.mean(np.array(tests) < 0.05))


def table(rows: Sequence[Row]) -> str:
    lines = [
        "| runs | true gain | improved | 95 % upper bound | regressed | unchanged | inconclusive | interval holds the truth | pairs used |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row.name} | {row.gain:.0%} | {row.share('improved'):.1%} | {row.upper('improved'):.1%} "
            f"| {row.share('regressed'):.1%} | {row.share('unchanged'):.1%} "
            f"| {row.share('inconclusive'):.1%} | {row.covered:.1%} | {row.mean_pairs:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--count", type=int, default=2000, help="comparisons per row")
    given = parser.parse_args()
    begin = time.perf_counter()
    simulated, recorded = simulate(given.count, 1), replay(given.count, 2)
    false = [row for row in simulated + recorded if row.gain == 0]
    worst = max(false, key=lambda row: row.share("improved"))
    document = json.loads(gzip.decompress(RECORDED.read_bytes()))
    sets = recorded_sets()
    spread = {
        name: float(np.std(np.log([np.median(run) for run in runs]), ddof=1))
        for name, runs in sets.items()
    }
    naive = {name: naive_false_claims(runs) for name, runs in sets.items()}
    lines = [
        "# How often the judge is wrong, and how much it sees",
        "",
        f"Worst false `improved` over all designs and recorded sets: **{worst.share('improved'):.1%}** "
        f"of {given.count} comparisons ({worst.name}; 95 % upper bound {worst.upper('improved'):.1%}). "
        f"The bar is {BAR:.0%}.",
        "",
        "No design has load that comes and goes periodically; docs/LOG.md (2026-11-22) has its rates.",
        "",
        "Rows with a true gain of 0 count errors; in the others `improved` is the power. No A/A pairs "
        "beforehand: only the comparison's own baseline runs feed the noise floor. A true gain of 2 % "
        "is hard on purpose: the least that is ever claimed is 1 %.",
        "",
        "## Simulation",
        "",
        table(simulated),
        "",
        "## Replay of recorded identical runs",
        "",
        f"`tests/golden/aa_runs.json.gz`: {', '.join(f'{len(runs)} runs {name}' for name, runs in sets.items())}, "
        f"{document['machine']['cpu']}, {document['machine']['cpus']} CPUs shared with other work, "
        f"torch {document['machine']['torch']}; run to run standard deviation of the median step "
        f"{', '.join(f'{value:.1%} {name}' for name, value in spread.items())}. Windows of 20 consecutive "
        "runs in random ABBA order; windows overlap, so the bounds understate. Gains are applied to the "
        "candidate's times.",
        "",
        table(recorded),
        "",
        "For comparison, Welch's t-test on the steps of neighbouring identical runs calls "
        f"{', '.join(f'{value:.0%} ({name})' for name, value in naive.items())} of them different.",
        "",
        "## Made with",
        "",
        f"`python benchmarks/judge_validation.py benchmarks/results/judge_validation.md --count {given.count}`, "
        f"{os.cpu_count()} CPUs, Python {platform.python_version()}, "
        f"{(time.perf_counter() - begin) / 60:.0f} minutes.",
        "",
    ]
    given.file.parent.mkdir(parents=True, exist_ok=True)
    given.file.write_text("\n".join(lines))
    print("\n".join(lines))
    if worst.share("improved") > BAR:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
