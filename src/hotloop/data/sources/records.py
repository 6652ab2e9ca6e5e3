"""Records that give no document: refused with an error, or left out and counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hotloop.core.errors import UsageError
from hotloop.data.sources.unit import ReadOptions, Report

NULL = "null instead of text"
MALFORMED = "malformed record"
NO_FIELD = "record without the field"
NOT_TEXT = "field that is not text"


class BadRecordError(Exception):
    """A record that gives no document. `reason` is counted, `what` is shown."""

    def __init__(self, reason: str, what: str, do: str | None = None) -> None:
        super().__init__(what)
        self.reason = reason
        self.what = what
        self.do = do or "mend it, or leave such records out with --skip-bad"


def no_field(text_field: str, have: Iterable[str], what: str = "field") -> BadRecordError:
    names = sorted(have)
    shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    do = f"choose one with --text-field; the {what}s here: {shown or 'none'}"
    return BadRecordError(NO_FIELD, f"no {what} {text_field!r}", do)


def refuse_or_count(
    error: BadRecordError, options: ReadOptions, report: Report, where: Callable[[], str]
) -> None:
    """Count a bad record, or raise `UsageError` for it."""
    if not options.skip_bad:
        raise UsageError(error.what, where=where(), do=error.do) from error
    report.add(error.reason, f"{where()}: {error.what}")
