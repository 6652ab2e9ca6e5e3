"""What came of trying fixes: `ledger.json`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from hotloop.core.judgement import Interval, Status, Verdict

LEDGER_SCHEMA = "hotloop.ledger/1"
LEDGER_FILE = "ledger.json"

Isolation = Literal["layer", "landlock", "copy", "none"]
"""What kept trials from the user's files. `layer`: each wrote to a layer of its own, without network but what `--network` allowed; `landlock`:
the kernel refused writes outside of a copy; `copy`: a copy, and what Python opens outside of it was refused."""


@dataclass(frozen=True, slots=True)
class TriedFix:
    """One technique on one command."""

    name: str
    """In the catalogue."""
    value: Any
    status: Status
    why: str
    """The reason for the status, in a sentence."""
    answers: tuple[str, ...] = ()
    """Codes of the findings it was tried for."""
    gain_at_most: float | None = None
    """The finding's, a ratio; `None` where no finding said any."""
    predicted: Interval | None = None
    """The ratio that was expected before anything was tried; `None` where that is not known."""
    verdict: Verdict | None = None
    """It alone against the unchanged command. Chosen by it, so `together` counts, not this."""
    added: Verdict | None = None
    """It on top of the better ones, against those without it; `None` for the best, or where not tried. A kept
    one whose `verdict` is inconclusive was decided by this."""
    details: str = ""
    """The last lines of a trial that failed."""
    directory: str | None = None
    """Its trials, within the run directory."""
    warmup_steps: int | None = None
    """Warm-up steps of each timed process; a fix that shows late has more than others. `None`: it was not timed."""
    steps: int | None = None
    """Counted steps of each timed process. `None`: it was not timed."""
    start_s: float | None = None
    """Seconds by which its process takes longer to begin: compiling, starting workers. `None`: not known."""
    pays_after_steps: int | None = None
    """Steps after which these are made up for."""
    memory_bytes: int | None = None
    """By which a kept fix takes more memory after its counted steps, loader workers included; below 50 MB 0."""
    patch: Literal["edited", "words"] | None = None
    """How a kept one is handed over, once a patch was asked for: part of the diff, or only said in words."""
    patch_text: str | None = None
    """The places that the diff edits; or what to write where, and why it is not in the diff."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Every fix that was tried, and all that were kept together against the unchanged command."""

    command: tuple[str, ...]
    fixes: tuple[TriedFix, ...]
    kept: tuple[str, ...]
    """In the order in which they were put together. Empty unless fresh pairs confirm them together."""
    together: Verdict | None
    """The verdict of fresh pairs: the one number to believe."""
    warmup_steps: int
    """Warm-up steps of a process with fixes that show at once; each fix has its own."""
    steps: int
    """Counted steps of such a process."""
    wall_s: float
    """Seconds of the call that wrote this."""
    budget_s: float | None
    """Seconds that the same call was given."""
    not_comparable: str | None = None
    """Why losses of two runs cannot be compared; `None`: they can, or no fix was tried."""
    together_warmup_steps: int | None = None
    together_steps: int | None = None
    """Counted steps of each process of `together`."""
    together_patched: str | None = None
    """SHA-256 of the edited files that the confirming processes ran, and that a patch holds. `None`: no file of
    the script was edited there, so that no patch is written."""
    together_pooled: float | None = None
    """The ratio over all pairs of the only fix that is kept, those that chose it and the fresh ones. It has no interval:
    looking at pairs chose how many there are. `None`: several were kept, whose pairs alone are others, or none was."""
    together_over_epochs: float | None = None
    """The ratio over whole epochs, where each starts its loader workers again and `together` counted steps within one. `None`:
    no epoch does, it makes less than 1 %, or how long an epoch is is not known."""
    continued: bool = False
    """Trials of an earlier call were used, whose time is not part of `wall_s`."""
    asked: tuple[str, ...] = ()
    """Techniques that were asked for by name; empty: findings chose."""
    diff: str | None = None
    """The file that the patch was written to."""
    soaked: str | None = None
    """What a process of all that is kept came through: `40 steps with an evaluation and a save`. `None`: none had to, or time was out."""
    isolation: Isolation | None = None
    """`None`: no fix was tried."""
    network: bool = False
    """Trials could reach other machines."""
    network_hosts: tuple[str, ...] = ()
    """Which, as `host:port`; empty where `network`: all of them."""
    forked: bool = False
    """Timed processes were forked, two pairs at a time, from one that had imported already."""
    continue_with: str | None = None
    """The command that goes on with what the budget left out; `None`: it left out nothing."""
    run_with: str | None = None
    """The command with the values that were kept, ready to copy; `None`: fixes were tried, not values of options."""
    schema: str = LEDGER_SCHEMA
