"""Forecast a training on machines that vanish: how long, how much, and how often to save.

    python examples/spot_machines.py --hours 40 --per-day 8 --restart 180 --save 4 --spot 1.2 --on-demand 3.9

Give what `hotloop report` of a short run shows: what a save costs, and how long a process takes from its start to its
first step. Many trainings are drawn at random; the answer is their median with the range of nine in ten.
Needs the standard library alone, but for the interval that hotloop's `checkpoint.every_steps: auto` would choose.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass

HOUR_S = 3600.0
DAY_S = 86_400.0
MAX_INTERRUPTIONS = 20_000
"""Of a training that hardly gets on; it counts as one that does not end."""
Gap = Callable[[], float]
"""Draws the seconds that the next machine lives."""


@dataclass(frozen=True)
class Plan:
    """A training and its machines, in seconds and prices per hour."""

    work_s: float
    """Steps, without saves."""
    interval_s: float
    """Of training between two saves."""
    save_s: float = 0.0
    """What a save costs the steps."""
    durable_s: float = 0.0
    """From the begin of a save until a killed run continues from it; at least `save_s`."""
    restart_s: float = 0.0
    """From the start of a machine to the first step."""
    wait_s: float = 0.0
    """Until another machine comes; nothing is paid for it."""
    notice_s: float = 0.0
    """Warning before a machine vanishes; one of `durable_s` or more saves everything."""
    price: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """One training that was drawn."""

    wall_s: float
    machine_s: float
    lost_s: float
    """Of work made again."""
    interruptions: int
    goodput: float
    """Work over wall time."""
    cost: float


def train_once(plan: Plan, gap: Gap) -> Outcome:
    """Machine after machine, until the work is done."""
    wall_s = machine_s = lost_s = done_s = 0.0
    interruptions = 0
    period_s = plan.interval_s + plan.save_s
    durable_s = max(plan.durable_s, plan.save_s)
    while True:
        left_s = plan.work_s - done_s
        # The last save is waited for.
        needed_s = plan.restart_s + left_s + (left_s // plan.interval_s) * plan.save_s + durable_s
        lives_s = gap()
        machine_s += min(lives_s, needed_s)
        wall_s += min(lives_s, needed_s)
        if needed_s <= lives_s:
            price = plan.price * machine_s / HOUR_S
            return Outcome(wall_s, machine_s, lost_s, interruptions, plan.work_s / wall_s, price)
        interruptions += 1
        if interruptions > MAX_INTERRUPTIONS:
            return Outcome(math.inf, math.inf, lost_s, interruptions, 0.0, math.inf)
        trained_s = max(lives_s - plan.restart_s, 0.0)
        periods, rest_s = divmod(trained_s, period_s)
        made_s = min(periods * plan.interval_s + min(rest_s, plan.interval_s), left_s)
        # A save begins at the end of each interval.
        kept_s = max((trained_s - plan.interval_s - durable_s) // period_s + 1, 0) * plan.interval_s
        if 0 < durable_s <= plan.notice_s:
            kept_s = max(made_s - plan.notice_s, kept_s)
        kept_s = min(kept_s, made_s)
        lost_s += made_s - kept_s
        done_s += kept_s
        wall_s += plan.wait_s


def gaps(kind: str, between_s: float, generator: random.Random) -> Gap:
    """How long machines live, with this mean: `poisson`, `bursts` (many short lives) or `regular` (few)."""
    if kind == "poisson":
        return lambda: generator.expovariate(1 / between_s)
    shape, scale = {"bursts": (0.5, 0.5), "regular": (3.0, 1.1198)}[kind]
    return lambda: generator.weibullvariate(between_s * scale, shape)


def simulate(plan: Plan, between_s: float, *, kind: str, runs: int, seed: int) -> list[Outcome]:
    """Trainings that are drawn independently; the same seed gives the same machines to every plan."""
    return [
        train_once(plan, gaps(kind, between_s, random.Random(f"{seed} {number}")))
        for number in range(runs)
    ]


def quantiles(outcomes: list[Outcome], what: str) -> tuple[float, float, float]:
    """The range of nine in ten with the median between."""
    values = sorted(getattr(each, what) for each in outcomes)
    low, middle, high = (values[round(q * (len(values) - 1))] for q in (0.05, 0.5, 0.95))
    return low, middle, high


def best_interval(plan: Plan, between_s: float, *, kind: str, runs: int, seed: int) -> float:
    """The interval of the least mean time, among those a fifth apart."""
    tried = [max(plan.save_s, between_s / 1000) * 1.2**n for n in range(60)]
    tried = [each for each in tried if each <= 3 * between_s]

    def mean_s(interval_s: float) -> float:
        changed = Plan(**{**asdict(plan), "interval_s": interval_s})
        return sum(o.wall_s for o in simulate(changed, between_s, kind=kind, runs=runs, seed=seed))

    return min(tried, key=mean_s)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--hours", type=float, required=True, help="of steps, without saves")
    parser.add_argument("--per-day", type=float, required=True, help="interruptions of a machine")
    parser.add_argument(
        "--restart", type=float, default=120, help="s, start of a machine to the first step"
    )
    parser.add_argument("--wait", type=float, default=60, help="s until another machine comes")
    parser.add_argument(
        "--notice", type=float, default=0, help="s of warning; spot machines: 120 or 30"
    )
    parser.add_argument("--save", type=float, default=1, help="s that a save costs the steps")
    parser.add_argument("--durable", type=float, help="s until a save counts [default: --save]")
    parser.add_argument("--interval", type=float, help="s between saves [default: the best]")
    parser.add_argument("--spot", type=float, default=0, help="price of an hour")
    parser.add_argument(
        "--on-demand", type=float, default=0, help="the same of a machine that stays"
    )
    parser.add_argument("--kind", choices=("poisson", "bursts", "regular"), default="poisson")
    parser.add_argument("--runs", type=int, default=1000, help="trainings to draw")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="as one object")
    given = parser.parse_args()
    for name in ("hours", "per_day", "runs"):
        if not getattr(given, name) > 0:
            parser.error(f"--{name.replace('_', '-')} must be above 0")
    if min(given.restart, given.wait, given.notice, given.save, given.durable or 0) < 0:
        parser.error("seconds cannot be negative")
    between_s = DAY_S / given.per_day
    if given.restart >= 3 * between_s:
        parser.error(
            "machines hardly live long enough to start: few --per-day or a shorter --restart"
        )
    drawn = {"kind": given.kind, "seed": given.seed}
    plan = Plan(
        given.hours * HOUR_S,
        given.interval or DAY_S,
        given.save,
        max(given.durable or 0.0, given.save),
        given.restart,
        given.wait,
        given.notice,
        given.spot,
    )
    best_s = best_interval(plan, between_s, runs=min(given.runs, 200), **drawn)
    plan = Plan(**{**asdict(plan), "interval_s": given.interval or best_s})
    outcomes = simulate(plan, between_s, runs=given.runs, **drawn)
    if any(math.isinf(each.wall_s) for each in outcomes):
        parser.error(f"saved every {plan.interval_s:.0f} s, some of these trainings would not end")
    names = ("goodput", "wall_s", "cost", "lost_s", "interruptions")
    found = {name: quantiles(outcomes, name) for name in names}
    stays = train_once(plan, lambda: float("inf"))
    on_demand = given.on_demand * stays.machine_s / HOUR_S
    try:
        from hotloop.checkpoint.interval import best_interval_s

        daly_s = best_interval_s(plan.save_s, between_s)
    except ImportError:
        daly_s = None
    if given.json:
        json.dump(
            {
                "plan": asdict(plan),
                "best_interval_s": best_s,
                "daly_interval_s": daly_s,
                "quantiles": found,
                "on_demand_wall_s": stays.wall_s,
                "on_demand_cost": on_demand,
            },
            sys.stdout,
        )
        return
    for name, unit, scale in (
        ("goodput", "%", 0.01),
        ("wall_s", "hours", HOUR_S),
        ("lost_s", "hours made again", HOUR_S),
        ("interruptions", "interruptions", 1),
        ("cost", "cost", 1),
    ):
        low, middle, high = (value / scale for value in found[name])
        print(f"{middle:10.1f} {unit}  ({low:.1f} to {high:.1f} in nine of ten)")
    daly = f"; Young and Daly: {daly_s:.0f} s" if daly_s is not None else ""
    print(f"saved every {plan.interval_s:.0f} s; best here {best_s:.0f} s{daly}")
    if given.on_demand:
        print(f"machines that stay: {stays.wall_s / HOUR_S:.1f} hours, cost {on_demand:.1f}")


if __name__ == "__main__":
    main()
