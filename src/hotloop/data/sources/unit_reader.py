"""What every reader of a unit shares: its options, bytes to text, and records that give no document."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hotloop.core.errors import UsageError
from hotloop.data.sources.unit import ReadOptions, Report, Unit

NULL = "null instead of text"
MALFORMED = "malformed record"
NO_FIELD = "record without the field"
NOT_TEXT = "field that is not text"
NOT_UTF8 = "not UTF-8"
REPLACED = "bytes that are not UTF-8 replaced by U+FFFD"

Where = Callable[[], str]


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


@dataclass(frozen=True, slots=True)
class UnitReader:
    unit: Unit
    options: ReadOptions
    report: Report
    """Filled while the unit is read."""

    def name(self) -> str:
        return self.unit.name

    def bad_record(self, error: BadRecordError, where: Where) -> None:
        """Count it, or raise `UsageError`."""
        if not self.options.skip_bad:
            raise UsageError(error.what, where=where(), do=error.do) from error
        self.report.add(error.reason, f"{where()}: {error.what}")

    def decoded(
        self,
        content: bytes,
        where: Where,
        offset: int | None = None,
        *,
        report: Report | None = None,
    ) -> str | None:
        """UTF-8 as text; `None` if it is left out, counted. Raises `UsageError` by the options.

        `offset` is that of `content` in the file, where it is known. A byte order mark at 0 is no
        text. What happens is counted in `report` instead of the unit's where one is given.
        """
        if offset == 0 and content.startswith(codecs.BOM_UTF8):
            content, offset = content[3:], 3
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            report = self.report if report is None else report
            if self.options.encoding_errors == "replace":
                report.altered[REPLACED] += 1
                return content.decode(errors="replace")
            what = f"byte 0x{content[error.start]:02x}"
            what += f" at offset {offset + error.start}" if offset is not None else ""
            if self.options.encoding_errors == "skip":
                report.add(NOT_UTF8, f"{where()}: {what}")
                return None
            raise UsageError(
                f"not UTF-8 text: {what}",
                where=where(),
                do="convert it (iconv -f ENCODING -t UTF-8), leave the file out, or choose "
                "--encoding-errors replace or skip",
            ) from error
