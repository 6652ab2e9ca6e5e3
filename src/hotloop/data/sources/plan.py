"""Sources to units: which files there are, and how they are cut."""

from __future__ import annotations

import stat
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hotloop.core.errors import UsageError
from hotloop.data.sources import (
    NAMES,
    PYTHON_STDLIB,
    REMOTE_UNIT_BYTES,
    STANDARD_INPUT,
    UNIT_BYTES,
    WHOLE_FILE,
    ReadOptions,
    Report,
    Unit,
    is_url,
)
from hotloop.data.sources.arrow import PREFIX, hub_units, part_sizes
from hotloop.data.sources.documents import UnitReader
from hotloop.data.sources.files import cannot_read, content_state, opened, state_of
from hotloop.data.sources.remote import remote_file, remote_names
from hotloop.data.sources.tree import (
    COMPRESSIBLE,
    RECORD_FORMATS,
    TEXT_FORMATS,
    Walk,
    format_by_content,
    format_of,
    is_left_out,
    local_names,
    standard_library_files,
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What there is to read, before it is read."""

    units: tuple[Unit, ...]
    """In source order."""
    skipped: tuple[Report, ...]
    """Files left out without being read, for each source."""


def plan(
    sources: Sequence[str], options: ReadOptions | None = None, *, exclude: Path | None = None
) -> Plan:
    """The units of the sources, the same for the same files, in the same order.

    `exclude` is a directory not to walk into (where the result is written). Raises `UsageError` for
    a source that is missing, unreadable, given twice, or in a format that cannot be read.
    """
    options = options or ReadOptions()
    walks = [Walk(options, exclude, Report()) for _ in sources]
    units: list[Unit] = []
    seen: dict[object, int] = {}
    for index, (source, walk) in enumerate(zip(sources, walks)):
        if source in sources[:index]:
            raise _twice(source, source, source)
        for identity, whole, cuttable in _files(index, source, walk):
            first = seen.setdefault(identity, index) if identity is not None else index
            if first != index:
                raise _twice(whole.name, sources[first], source)
            units.extend(split(whole, options, walk.report) if cuttable else [whole])
    if units:
        _check_effects(units, options, any(walk.walked for walk in walks))
    return Plan(tuple(units), tuple(walk.report for walk in walks))


Found = tuple[object, Unit, bool]
"""(what a file is, whatever its name; all of it; whether it can be cut)"""


def _files(index: int, source: str, walk: Walk) -> Iterator[Found]:
    if source == PYTHON_STDLIB:
        for path in standard_library_files():
            state = state_of(path.stat())
            yield None, Unit(index, str(path), "any-text", None, 0, None, state[0], state), False
    elif source == STANDARD_INPUT:
        yield None, _standard_input(index, walk.options), True
    elif source.startswith(PREFIX):
        yield from ((None, unit, False) for unit in hub_units(index, source))
    elif is_url(source) and not source.startswith("file://"):
        yield from _remote_files(index, source, walk)
    else:
        if is_url(source):
            source = urllib.request.url2pathname(urllib.parse.urlsplit(source).path)
        try:
            yield from _local_files(index, source, walk)
        except OSError as error:
            raise cannot_read(str(error.filename or source), error) from error


def _standard_input(index: int, options: ReadOptions) -> Unit:
    path = options.standard_input
    if path is None:
        raise UsageError("standard input cannot be read here", do="name a file")
    state = content_state(path)
    with open(path, "rb") as file:
        form, compression = format_by_content(file.read(16))
    form = options.format or form
    return Unit(index, STANDARD_INPUT, form, compression, 0, None, state[0], state)


def _local_files(index: int, source: str, walk: Walk) -> Iterator[Found]:
    """Every file once, however many names it has: under the first that says its format."""
    kept: dict[object, tuple[str, bool]] = {}
    named = []
    for name, in_tree in local_names(source, walk):
        status = Path(name).stat()
        if not stat.S_ISREG(status.st_mode):
            raise UsageError("the source is neither a file nor a directory", where=name)
        # A file system without such numbers says 0 for each.
        identity = (status.st_dev, status.st_ino) if status.st_ino else name
        named.append((name, in_tree, status, identity))
        first = kept.setdefault(identity, (name, in_tree))
        # Of the hub's files, only the links have names that say what they are.
        if _says_format(name, in_tree) > _says_format(*first):
            kept[identity] = (name, in_tree)
    for name, in_tree, status, identity in named:
        if kept[identity][0] != name:
            walk.report.add("the same file again", f"{name}, also {kept[identity][0]}")
            continue
        whole = _whole(index, name, state_of(status), walk, in_tree=in_tree)
        if whole is not None:
            yield identity, whole, True


def _says_format(name: str, in_tree: bool) -> bool:
    return format_of(name, in_tree=in_tree)[0] not in ("any-text", "archive")


def _remote_files(index: int, source: str, walk: Walk) -> Iterator[Found]:
    empty = True
    for url, inside in remote_names(source):
        empty = False
        walk.walked = walk.walked or inside is not None
        if inside is not None and is_left_out(inside, url, walk):
            continue
        file = remote_file(url)
        path, in_tree = url.partition("?")[0], inside is not None
        whole = _whole(index, path, file.state, walk, in_tree=in_tree, ranges=file.ranges)
        if whole is not None:
            yield url, replace(whole, name=url), file.ranges
    if empty:
        raise UsageError("no such source", where=source, do=NAMES)


def _whole(
    index: int,
    name: str,
    state: tuple[int, int] | None,
    walk: Walk,
    *,
    in_tree: bool,
    ranges: bool = True,
) -> Unit | None:
    """One file; `None` for one in a directory that cannot be read, counted. Raises `UsageError`."""
    form, compression = format_of(name, in_tree=in_tree)
    forced = walk.options.format
    if forced is not None:
        form = "tree-text" if in_tree and forced == "text" else forced
    if form == "archive":
        problem = ("archives are not read", "unpack it and name the directory")
    elif compression is not None and form not in COMPRESSIBLE:
        problem = (f"compressed {form} is not read", "uncompress it")
    elif not ranges and form not in COMPRESSIBLE:
        problem = (f"the server gives no ranges, which {form} needs", "download it first")
    else:
        return Unit(index, name, form, compression, 0, None, state[0] if state else 0, state)
    if not in_tree:
        raise UsageError(problem[0], where=name, do=problem[1])
    walk.report.add(problem[0], name)
    return None


def _twice(name: str, first: str, second: str) -> UsageError:
    return UsageError(
        "the same source is given twice"
        if first == second
        else f"the same file is in two sources, {first} and {second}",
        where=name,
        do="name it once; to read a corpus more often than another, prepare them apart and mix them",
    )


def _check_effects(units: Sequence[Unit], options: ReadOptions, walked: bool) -> None:
    """Raises `UsageError` for an option that has none."""
    formats = {unit.format for unit in units}
    if options.separator is not None and not formats & TEXT_FORMATS:
        do = "leave --separator out, or give --format text"
        raise UsageError("a separator is for plain text, and no source is plain text", do=do)
    if options.delimiter is not None and not formats & {"csv", "tsv"}:
        do = "leave --delimiter out, or give --format csv"
        raise UsageError("a delimiter is for csv and tsv, and no source is such a table", do=do)
    if options.text_field != ReadOptions().text_field and not formats & RECORD_FORMATS:
        raise UsageError(
            f"there is no field {options.text_field!r} in plain text, and no source holds records",
            do="leave --text-field out, or give --format jsonl",
        )
    if (options.include or options.exclude) and not walked:
        raise UsageError(
            "--include and --exclude choose among the files of a directory, and no source is one",
            do="leave them out, or name a directory",
        )


_CUT_ANYWHERE = frozenset({"text", "tree-text", "jsonl"})


def split(whole: Unit, options: ReadOptions, report: Report) -> Iterator[Unit]:
    """The units of one file, of about `UNIT_BYTES` where it can be cut so small."""
    unit_bytes = REMOTE_UNIT_BYTES if is_url(whole.name) else UNIT_BYTES
    empty = not whole.num_bytes
    one_document = whole.format != "jsonl" and options.separator == WHOLE_FILE
    if whole.format in ("parquet", "arrow"):
        yield from _in_parts(whole, unit_bytes, options, report)
    elif whole.format not in _CUT_ANYWHERE or whole.compression or one_document or empty:
        yield whole
    else:
        for begin in range(0, whole.num_bytes, unit_bytes):
            end = min(begin + unit_bytes, whole.num_bytes)
            yield replace(whole, begin=begin, end=end, num_bytes=end - begin)


def _in_parts(whole: Unit, unit_bytes: int, options: ReadOptions, report: Report) -> Iterator[Unit]:
    """Runs of row groups or batches, none of which can be cut."""
    try:
        reader = UnitReader(whole, options, report)
        with opened(reader) as file:
            sizes = part_sizes(file, reader)
    except UsageError as error:
        if not options.skip_bad or "pip install" in (error.do or ""):
            raise
        report.add("damaged file", f"{whole.name}: {error.what}")
        return
    begin = size = 0
    for number, more in enumerate(sizes):
        if number > begin and size + more > unit_bytes:
            yield replace(whole, begin=begin, end=number, num_bytes=size)
            begin, size = number, 0
        size += more
    # A file without rows is read as well: it may lack the column.
    yield replace(whole, begin=begin, end=len(sizes), num_bytes=size)
