"""What a session of trials was asked to do, and in which order it will do it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from hotloop.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """The same for both arms. Raises `UsageError` for numbers that make no comparison."""

    warmup_steps: int
    """Steps at the start of every process that are kept, marked and not counted."""
    steps: int
    """Steps that count."""
    timeout_s: float
    """For one process, start-up and compilation included."""
    looks: tuple[int, ...] = (4, 6, 10)
    """Numbers of pairs after which the judge is asked; planned before the first one."""
    aa_pairs: int = 1
    """Pairs of the baseline with itself, measured first: the noise floor."""
    seed: int = 0
    """Decides the order within pairs and the padding of environments."""
    block_steps: int | None = None
    """Steps of a block, for an arm with fixes that are toggled within the process."""
    in_place: bool = False
    """Run in the user's own directory; what the command writes there stays."""

    def __post_init__(self) -> None:
        if self.warmup_steps < 0 or self.steps < 1:
            raise UsageError(
                f"cannot measure {self.steps} steps after {self.warmup_steps} of warm-up",
                do="measure at least 1 step",
            )
        if not self.timeout_s > 0:
            raise UsageError(f"a time-out of {self.timeout_s} s leaves no time to run")
        if self.aa_pairs < 0:
            raise UsageError(f"{self.aa_pairs} A/A pairs cannot be run")
        if not self.looks or self.looks[0] < 2 or sorted(set(self.looks)) != list(self.looks):
            raise UsageError(f"looks must rise from at least 2 pairs, not {self.looks}")

    @property
    def num_steps(self) -> int:
        """Steps of one process, warm-up included."""
        return self.warmup_steps + self.steps


def process_seed(seed: int, place: str) -> str:
    """Seed of what is drawn for one process of a session: `place` is the name of its directory."""
    return f"{seed} {place}"


ORDERS_AT_ONCE, MOST_DRAWS = 6, 20_000


def round_orders(num_rounds: int, names: Sequence[str], seed: int) -> list[list[str]]:
    """Per round, the order in which its processes run: drawn for each, and of no two of them one order is much rarer.

    Of the first four rounds each order of any two has one at least, of each six two. Orders that follow a rule (ABBA)
    beat in time with load that comes and goes: a job every fourth process slows the same arm in pair after pair. As what
    is asked of the draw is the same for any two, no name is likelier at any place than another.
    """
    generator = random.Random(f"order {seed}")
    rounds: list[list[str]] = []
    for _ in range(MOST_DRAWS):
        if len(rounds) == num_rounds:
            return rounds
        drawn = [_shuffled(names, generator) for _ in range(ORDERS_AT_ONCE)]
        shown = drawn[: min(num_rounds - len(rounds), ORDERS_AT_ONCE)]
        least = max(len(shown) // 3, 1) if len(shown) > 1 else 0
        is_short = bool(rounds) or num_rounds < 4
        firsts = (
            [order.index(one) < order.index(other) for order in drawn]
            for one, other in combinations(names, 2)
        )
        if all(
            (is_short or 0 < sum(first[:4]) < 4)
            and least <= sum(first[: len(shown)]) <= len(shown) - least
            for first in firsts
        ):
            rounds += shown
    raise AssertionError(f"{len(names)} names have no orders of which none is rare")


def _shuffled(names: Sequence[str], generator: random.Random) -> list[str]:
    """Each order as likely; of two names by one draw."""
    order = [names[0]]
    for name in names[1:]:
        order.insert(int(generator.random() * (len(order) + 1)), name)
    return order


def candidate_first(num_pairs: int, seed: int) -> tuple[bool, ...]:
    """Per pair, whether the candidate runs first. What running second costs is taken out by the judge."""
    orders = round_orders(num_pairs, ("baseline", "candidate"), seed)
    return tuple(first == "candidate" for first, _ in orders)
