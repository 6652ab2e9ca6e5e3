"""What each technique brought by itself on one machine, and the whole: `hotloop bench effectiveness --json`."""

from __future__ import annotations

from dataclasses import dataclass

from hotloop.core.ledger import Ledger, TriedFix
from hotloop.core.measurement import Environment

EFFECTIVENESS_SCHEMA = "hotloop.effectiveness/1"


@dataclass(frozen=True, slots=True)
class Effectiveness:
    """A table, best first, of what helped and of what did not."""

    made_with: str
    """The command of hotloop that measures it."""
    date: str
    """Of the last pair, in UTC: 2026-11-25."""
    environment: Environment
    whole: TriedFix | None
    """All that `auto` chooses, or all that the doctor keeps together. `None`: there is none, or none was measured."""
    rows: tuple[TriedFix, ...]
    """Each alone against the start; of values of a config, `value` holds the settings."""
    not_here: tuple[TriedFix, ...]
    """Techniques that are not measured here, such as those with nothing to act on, with the reason."""
    ledger: Ledger
    """How it was measured, and the command that goes on with what the budget left out."""
    schema: str = EFFECTIVENESS_SCHEMA
