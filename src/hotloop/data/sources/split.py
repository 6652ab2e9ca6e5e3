"""How a file is cut into units: by bytes, by row groups, by record batches, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from hotloop.core.errors import UsageError
from hotloop.data.sources.arrow import batch_sizes
from hotloop.data.sources.files import opened
from hotloop.data.sources.parquet import row_group_sizes
from hotloop.data.sources.unit import (
    REMOTE_UNIT_BYTES,
    UNIT_BYTES,
    WHOLE_FILE,
    ReadOptions,
    Report,
    Unit,
)


def split(whole: Unit, options: ReadOptions, report: Report, *, remote: bool) -> Iterator[Unit]:
    """The units of one file, of about `UNIT_BYTES` where it can be cut so small."""
    unit_bytes = REMOTE_UNIT_BYTES if remote else UNIT_BYTES
    counted = _COUNTED.get(whole.format)
    if counted is not None:
        sizes = _sizes(counted, whole, options, report)
        if sizes is not None:
            yield from _by_sizes(whole, sizes, unit_bytes)
    elif whole.format in _CUT_ANYWHERE and whole.compression is None and whole.num_bytes:
        if whole.format != "jsonl" and options.separator == WHOLE_FILE:
            yield whole
        else:
            yield from _by_bytes(whole, unit_bytes)
    else:
        yield whole


_CUT_ANYWHERE = frozenset({"text", "tree-text", "jsonl"})


def _by_bytes(whole: Unit, unit_bytes: int) -> Iterator[Unit]:
    size = whole.num_bytes
    for begin in range(0, size, unit_bytes):
        end = min(begin + unit_bytes, size)
        yield replace(whole, begin=begin, end=end, num_bytes=end - begin)


def _by_sizes(whole: Unit, sizes: Sequence[int], unit_bytes: int) -> Iterator[Unit]:
    """Runs of row groups or batches, none of which can be cut."""
    begin = size = 0
    for number, more in enumerate(sizes):
        if number > begin and size + more > unit_bytes:
            yield replace(whole, begin=begin, end=number, num_bytes=size)
            begin, size = number, 0
        size += more
    # A file without rows is read as well: it may lack the column.
    yield replace(whole, begin=begin, end=len(sizes), num_bytes=size)


Sizes = Callable[..., list[int]]
_COUNTED: dict[str, Sizes] = {"parquet": row_group_sizes, "arrow": batch_sizes}


def _sizes(counted: Sizes, whole: Unit, options: ReadOptions, report: Report) -> list[int] | None:
    """`None` for a damaged file that may be left out, which is counted."""
    try:
        with opened(whole, options, report) as file:
            return counted(file, whole.name, options.text_field)
    except UsageError as error:
        if not options.skip_bad or "pip install" in (error.do or ""):
            raise
        report.add("damaged file", f"{whole.name}: {error.what}")
        return None
