"""What came of trying fixes: `ledger.json`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from hotloop.core.judgement import Verdict

LEDGER_SCHEMA = "hotloop.ledger/1"
LEDGER_FILE = "ledger.json"

Status = Literal["kept", "rejected", "what_if", "not_applied", "failed", "not_tried"]
"""`what_if`: measured to show what something costs, and never kept."""


@dataclass(frozen=True, slots=True)
class TriedFix:
    """One technique on one command."""

    name: str
    """In the catalogue."""
    value: Any
    status: Status
    why: str
    """Of the status, in a sentence."""
    answers: tuple[str, ...] = ()
    """Codes of the findings it was tried for."""
    predicted: float | None = None
    """`gain_at_most` of the finding, a ratio; `None` where no finding said any."""
    verdict: Verdict | None = None
    directory: str | None = None
    """Its trials, within the run directory."""
    patch: Literal["edited", "words"] | None = None
    """Of a kept one, once a patch was asked for: part of the diff, or only said in words."""
    patch_text: str | None = None
    """The places that the diff edits; or what to write where, and why it is not in the diff."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Every fix that was tried, and all that were kept together against the command as it is."""

    command: tuple[str, ...]
    fixes: tuple[TriedFix, ...]
    kept: tuple[str, ...]
    together: Verdict | None
    """Of fresh pairs: the one number to believe."""
    warmup_steps: int
    steps: int
    wall_s: float
    budget_s: float | None
    diff: str | None = None
    """The file that the patch was written to."""
    schema: str = LEDGER_SCHEMA
