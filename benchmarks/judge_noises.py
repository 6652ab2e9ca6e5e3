"""How often the judge is wrong about equal code, and how often it sees 1.05, under noises of many kinds.

    python benchmarks/judge_noises.py --json benchmarks/results/judge_noises.json
    python benchmarks/judge_noises.py --kept --json benchmarks/results/judge_kept.json

With `--kept`: by how much the gain is overstated that is reported of what was improved twice, alone and on fresh pairs.
A comparison goes through the real `compare`, `should_stop` and `candidate_first`, as the doctor makes one:
looks at 4 and 6 pairs, at 10 only where it looks faster. What is simulated are the log times of the processes, one
after the other. About 8 minutes on one core; seeds are
fixed, so the table is the same every time.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from judge_validation import ENVIRONMENT
from numpy.random import Generator
from numpy.typing import NDArray

from hotloop.core.files import write_json
from hotloop.core.judgement import Verdict
from hotloop.core.measurement import Measurement, Plan
from hotloop.core.step import StepRecord
from hotloop.doctor.fix_status import pooled_ratio
from hotloop.judge.compare import compare
from hotloop.judge.looks import LOOKS, should_stop
from hotloop.trial.plan import candidate_first

Levels = NDArray[np.float64]
Noise = Callable[[int, Generator], Levels]
"""Number of processes and a generator to the log times of the processes."""
BAR = 0.03
"""Share of comparisons of equal code that may be called improved."""
STEPS = 3
GAIN = 1.05
WORTH_MORE = 1.01
"""A ratio from which the doctor makes more than 6 pairs."""
PERIODS = (1.2, 1.33, 1.5, 2, 2.5, 3.5, 4.5, 6, 9)
"""Of a load that comes and goes, in durations of a process."""


def autoregressive(num: int, memory: float, rng: Generator) -> Levels:
    levels = np.zeros(num)
    levels[0] = rng.normal()
    for i in range(1, num):
        levels[i] = memory * levels[i - 1] + math.sqrt(1 - memory * memory) * rng.normal()
    return levels


def one_jump(num: int, rng: Generator) -> Levels:
    levels = 0.006 * rng.normal(size=num)
    levels[rng.integers(0, num) :] += 0.15 * rng.choice([-1, 1])
    return levels


def two_speeds(share: float, apart: float) -> Noise:
    return lambda num, rng: apart * (rng.random(num) < share) + 0.003 * rng.normal(size=num)


def telegraph(switches: float) -> Noise:
    """Two speeds; from one process to the next it switches with this probability."""

    def noise(num: int, rng: Generator) -> Levels:
        state = np.zeros(num)
        state[0] = rng.integers(2)
        for i in range(1, num):
            state[i] = state[i - 1] if rng.random() > switches else 1 - state[i - 1]
        return 0.08 * state + 0.003 * rng.normal(size=num)

    return noise


def load(period: float, share: float = 0.5, jitter: float = 0.02) -> Noise:
    """Another program that runs for `share` of each period; a process is as slow as it finds it halfway."""

    def noise(num: int, rng: Generator) -> Levels:
        lasts = 1 + jitter * rng.normal(size=num)
        halfway = np.cumsum(lasts) + rng.random() * period - lasts / 2
        return 0.08 * ((halfway % period) / period < share) + 0.003 * rng.normal(size=num)

    return noise


def second_slower(num: int, rng: Generator) -> Levels:
    levels = 0.003 * rng.normal(size=num)
    levels[1::2] += 0.05
    return levels


KEPT = (
    (0.01, 1.03),
    (0.02, 1.03),
    (0.02, 1.05),
    (0.03, 1.05),
    (0.03, 1.08),
    (0.05, 1.08),
    (0.05, 1.15),
)
"""How much processes scatter, and a true gain."""

NOISES: dict[str, Noise] = {
    "quiet, 0.8 %": lambda num, rng: 0.008 * rng.normal(size=num),
    "student t, 2 degrees": lambda num, rng: 0.015 * rng.standard_t(2, size=num),
    "cauchy": lambda num, rng: 0.008 * np.clip(rng.standard_cauchy(size=num), -200, 200),
    "12 % large outliers": lambda num, rng: (
        0.01 * rng.normal(size=num) + np.where(rng.random(num) < 0.12, rng.exponential(0.5, num), 0)
    ),
    "memory 0.95, 3 %": lambda num, rng: (
        0.03 * autoregressive(num, 0.95, rng) + 0.004 * rng.normal(size=num)
    ),
    "drift of 1.2 % a process": lambda num, rng: (
        0.012 * np.arange(num) * rng.choice([-1, 1]) + 0.004 * rng.normal(size=num)
    ),
    "one jump of 15 %": one_jump,
    "two speeds, half": two_speeds(0.5, 0.08),
    "two speeds, a quarter": two_speeds(0.25, 0.10),
    "telegraph, 0.25": telegraph(0.25),
    "telegraph, 0.5": telegraph(0.5),
    "telegraph, 0.75": telegraph(0.75),
    "load every 2": load(2),
    "load every 4": load(4),
    "load every 8": load(8),
    "load every 4, a quarter of it": load(4, 0.25),
    "load every 4, jitter of 10 %": load(4, jitter=0.1),
    "second of a pair 5 % slower": second_slower,
    "cold start": lambda num, rng: (
        0.25 * np.exp(-np.arange(num) / 2.0) + 0.006 * rng.normal(size=num)
    ),
    **{f"period {period}": load(period) for period in PERIODS},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--comparisons", type=int, default=1000)
    parser.add_argument("--only", action="append", choices=list(NOISES))
    parser.add_argument("--kept", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.kept:
        rows = [kept_row(*each, args.comparisons) for each in KEPT]
        for each in rows:
            print(*(f"{key} {value:.4g}" for key, value in each.items()), flush=True)
        if args.json:
            what = "gains reported of what was improved twice, on pairs of its own each time"
            write_json(args.json, {"what": what, "rows": rows})
        return 0
    found = {}
    for index, (name, noise) in enumerate(NOISES.items()):
        if args.only and name not in args.only:
            continue
        rng = np.random.default_rng([7, index])
        found[name] = row(noise, args.comparisons, rng)
        print(
            f"{name:32}", *(f"{key} {value:.4g}" for key, value in found[name].items()), flush=True
        )
    if args.json:
        what = "shares of comparisons of equal code, and of code that is 1.05 times as fast"
        write_json(args.json, {"what": what, "noises": found})
    return int(any(max(each["improved"], each["regressed"]) > BAR for each in found.values()))


def row(noise: Noise, num: int, rng: Generator) -> dict[str, float]:
    """Equal code `num` times, and code with a gain a quarter as often."""
    equal = [comparison(noise, 1.0, rng) for _ in range(num)]
    faster = [comparison(noise, GAIN, rng) for _ in range(max(num // 4, 1))]
    outcomes = Counter(verdict.outcome for verdict in equal)
    return {
        "comparisons": num,
        "improved": outcomes["improved"] / num,
        "regressed": outcomes["regressed"] / num,
        "covered": sum(map(holds_one, equal)) / num,
        "improved_at_1_05": sum(v.outcome == "improved" for v in faster) / len(faster),
    }


def kept_row(scatter: float, gain: float, num: int) -> dict[str, float]:
    """What is reported of a true gain in those of `num` cases in which it is kept."""
    rng = np.random.default_rng([8, round(1000 * scatter), round(1000 * gain)])

    def noise(processes: int, rng: Generator) -> Levels:
        return np.asarray(scatter * rng.normal(size=processes))

    fresh, pooled, covered = [], [], 0
    for _ in range(num):
        alone, again = comparison(noise, gain, rng), comparison(noise, gain, rng)
        if alone.outcome == again.outcome == "improved":
            assert again.ratio is not None
            assert again.ratio_low is not None
            assert again.ratio_high is not None
            fresh.append(again.ratio - 1)
            pooled.append((pooled_ratio(alone, again) or 0.0) - 1)
            covered += again.ratio_low <= gain <= again.ratio_high
    return {
        "scatter": scatter,
        "gain": gain,
        "cases": num,
        "kept": len(fresh) / num,
        "fresh_gain": float(np.mean(fresh)),
        "pooled_gain": float(np.mean(pooled)),
        "overstated": float(np.mean(fresh)) / (gain - 1) - 1,
        "covered": covered / len(fresh),
    }


def holds_one(verdict: Verdict) -> bool:
    low, high = verdict.ratio_low, verdict.ratio_high
    return low is not None and high is not None and low <= 1 <= high


def comparison(noise: Noise, gain: float, rng: Generator) -> Verdict:
    """As the doctor makes it."""
    levels = iter(noise(2 * LOOKS[-1], rng))
    pairs = []
    for pair, first in enumerate(candidate_first(LOOKS[-1], int(rng.integers(2**31))), 1):
        made = {}
        for position, is_candidate in enumerate((first, not first)):
            level = next(levels) - (math.log(gain) if is_candidate else 0.0)
            arm = "faster" if is_candidate else "as it is"
            made[is_candidate] = process(arm, level, pair, position)
        pairs.append((made[False], made[True]))
        if pair in LOOKS:
            verdict = compare(pairs, parity_class="bitwise", looks=LOOKS)
            given_up = pair >= LOOKS[1] and (verdict.ratio or 0.0) < WORTH_MORE
            if given_up or should_stop(verdict, pair, LOOKS):
                break
    return verdict


def process(arm: str, level: float, pair: int, position: int) -> Measurement:
    seconds = 0.02 * math.exp(level)
    records = tuple(StepRecord(step, seconds, tokens=1000) for step in range(STEPS))
    plan = Plan(0, STEPS, 60.0, pair=pair, position=position)
    return Measurement(arm, (), plan, ENVIRONMENT, records)


if __name__ == "__main__":
    raise SystemExit(main())
