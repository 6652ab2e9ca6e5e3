"""Which of a training's processes this one is, as torchrun tells it. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hotloop.core.errors import UsageError

_NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_NEEDED = (*_NUMBERS, "MASTER_ADDR", "MASTER_PORT")
_TELLING = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
"""Any of these means that somebody wants several processes; the others are set for other reasons, too."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """One process among those that train together."""

    rank: int = 0
    num_ranks: int = 1
    local_rank: int = 0
    """Its number among those on this machine; also that of its GPU."""
    num_local_ranks: int = 1
    launched: bool = False
    """By torchrun, be it as the only one."""

    @property
    def is_first(self) -> bool:
        """True if this is the one that writes."""
        return self.rank == 0

    def share(self, num_microbatches: int) -> range:
        """The microbatches of a step that this process takes. They must divide evenly."""
        own, left = divmod(num_microbatches, self.num_ranks)
        assert not left, "refused before training"
        return range(self.rank * own, (self.rank + 1) * own)


ALONE = Ranks()


def read_ranks(environment: Mapping[str, str]) -> Ranks:
    """`ALONE` unless a launcher set its variables. Raises `UsageError` when they contradict each other."""
    given = {name: environment[name] for name in _NEEDED if environment.get(name)}
    started = [name for name in _TELLING if name in given]
    if not started:
        return ALONE
    missing = [name for name in _NEEDED if name not in given]
    if missing:
        raise _contradiction(f"`{started[0]}` is set and `{missing[0]}` is not", started)
    numbers = {}
    for name in (*_NUMBERS, "MASTER_PORT"):
        text = given[name]
        if not (text.isascii() and text.isdigit()):
            raise _contradiction(f"`{name}` is {text!r}, not a number", started)
        numbers[name] = int(text)
    rank, num_ranks, local_rank, num_local_ranks = (numbers[name] for name in _NUMBERS)
    for one, how, other, is_wrong in (
        ("RANK", "is not below", "WORLD_SIZE", rank >= num_ranks),
        ("LOCAL_RANK", "is not below", "LOCAL_WORLD_SIZE", local_rank >= num_local_ranks),
        ("LOCAL_WORLD_SIZE", "is above", "WORLD_SIZE", num_local_ranks > num_ranks),
        ("LOCAL_RANK", "is above", "RANK", local_rank > rank),
    ):
        if is_wrong:
            what = f"`{one}` {numbers[one]} {how} `{other}` {numbers[other]}"
            raise _contradiction(what, started)
    if not 0 < numbers["MASTER_PORT"] < 1 << 16:
        raise _contradiction(f"`MASTER_PORT` {numbers['MASTER_PORT']} is not a port", started)
    return Ranks(rank, num_ranks, local_rank, num_local_ranks, launched=True)


def _contradiction(what: str, started: list[str]) -> UsageError:
    do = f"start several processes by torchrun, which sets them all; for one process unset {', '.join(started)}"
    return UsageError(what, where="the environment variables of this process", do=do)
