"""Sources to units: which files there are, and how they are shared out."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotloop.core.errors import UsageError
from hotloop.data.sources.arrow import saved_files
from hotloop.data.sources.files import (
    cannot_read,
    content_state,
    is_regular,
    is_url,
    state_of,
)
from hotloop.data.sources.formats import (
    COMPRESSIBLE,
    RECORD_FORMATS,
    TEXT_FORMATS,
    format_by_content,
    format_of,
)
from hotloop.data.sources.hub import PREFIX, hub_units
from hotloop.data.sources.split import split
from hotloop.data.sources.tree import chosen, glob_files, standard_library_files, tree_files
from hotloop.data.sources.unit import (
    NAMES,
    PYTHON_STDLIB,
    STANDARD_INPUT,
    ReadOptions,
    Report,
    Unit,
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
    planner = _Planner(sources, options, exclude)
    units: list[Unit] = []
    for index, source in enumerate(sources):
        if source in sources[:index]:
            raise _twice(source, source, source)
        units.extend(planner.units(index, source))
    if units:
        _refuse_options_without_effect(units, planner)
    return Plan(tuple(units), tuple(planner.reports))


class _Planner:
    def __init__(self, sources: Sequence[str], options: ReadOptions, exclude: Path | None) -> None:
        self.sources = sources
        self.options = options
        self.reports = [Report() for _ in sources]
        self.walked = False
        """Whether a directory was among the sources."""
        self._exclude = exclude
        self._seen: dict[tuple[int, int], tuple[int, str]] = {}

    def units(self, index: int, source: str) -> Iterator[Unit]:
        if source == PYTHON_STDLIB:
            for path in standard_library_files():
                state = state_of(path.stat())
                yield Unit(index, str(path), "python", None, 0, None, state[0], state)
        elif source == STANDARD_INPUT:
            yield from self._standard_input(index)
        elif source.startswith(PREFIX):
            yield from hub_units(index, source)
        elif is_url(source):
            yield from self._url(index, source)
        else:
            try:
                yield from self._local(index, source)
            except OSError as error:
                raise cannot_read(str(error.filename or source), error) from error

    def _local(self, index: int, source: str) -> Iterator[Unit]:
        """Every file once, however many names it has."""
        named = [(name, in_tree, Path(name).stat()) for name, in_tree in self._names(index, source)]
        kept: dict[tuple[int, int], int] = {}
        for place, (name, in_tree, status) in enumerate(named):
            if not is_regular(status):
                raise UsageError("the source is neither a file nor a directory", where=name)
            first = kept.setdefault(_identity(status, place), place)
            # Of the hub's files, only the links have names that say what they are.
            if first != place and _says_format(name, in_tree) > _says_format(*named[first][:2]):
                kept[_identity(status, place)] = place
        for place, (name, in_tree, status) in enumerate(named):
            first = kept[_identity(status, place)]
            if first != place:
                self.reports[index].add("the same file again", f"{name}, also {named[first][0]}")
                continue
            self._refuse_twice(index, name, status)
            yield from self._described(index, name, state_of(status), in_tree=in_tree)

    def _names(self, index: int, source: str) -> Iterator[tuple[str, bool]]:
        """The files of a source, and whether they are of a directory."""
        path = Path(source).expanduser()
        if path.is_dir():
            yield from self._directory(index, path)
        elif path.is_file():
            yield str(path), False
        elif path.exists():
            raise UsageError("the source is neither a file nor a directory", where=source)
        elif glob.has_magic(source):
            yield from self._glob(index, str(path))
        else:
            raise UsageError(
                "no such source",
                where=source,
                do=NAMES,
            )

    def _glob(self, index: int, pattern: str) -> Iterator[tuple[str, bool]]:
        """As if what the pattern stands for had been named one by one."""
        recursive = "**" in Path(pattern).parts
        if recursive:
            files = glob_files(
                pattern,
                exclude=self._exclude,
                report=self.reports[index],
                skip_unreadable=self.options.skip_bad,
            )
            found = sorted(set(map(str, files)))
        else:
            # Not Path.glob: it knows no absolute patterns.
            found = sorted(set(glob.glob(pattern)))  # noqa: PTH207
        if not found:
            raise UsageError(
                "no file matches the pattern",
                where=pattern,
                do=f"run `ls` with it from {Path.cwd()}: a relative pattern begins there",
            )
        excluded = self._exclude.resolve() if self._exclude is not None else None
        for name in found:
            path = Path(name)
            if excluded is not None and excluded in (path.resolve(), *path.resolve().parents):
                continue
            if path.is_file():
                yield name, False
            elif path.is_dir():
                yield from self._directory(index, path)
            else:
                self.reports[index].add("not a regular file", name)

    def _directory(self, index: int, root: Path) -> Iterator[tuple[str, bool]]:
        saved = saved_files(root)
        if saved is not None:
            for path in saved:
                yield str(path), True
            return
        self.walked = True
        report = self.reports[index]
        for path in tree_files(
            root,
            exclude=self._exclude,
            report=report,
            skip_unreadable=self.options.skip_bad,
        ):
            why = chosen(path.relative_to(root).as_posix(), self.options)
            if why is not None:
                report.add(why, str(path))
            elif not path.is_file():
                report.add("not a regular file", str(path))
            else:
                yield str(path), True

    def _url(self, index: int, source: str) -> Iterator[Unit]:
        from hotloop.data.sources.urls import local_path_of, remote_file, remote_files

        local = local_path_of(source)
        if local is not None:
            yield from self._local(index, local)
            return
        empty = True
        for name, in_tree in remote_files(source, self.options, self.reports[index]):
            empty = False
            self.walked = self.walked or in_tree
            if name in self.sources[:index]:
                raise _twice(name, name, source)
            file = remote_file(name)
            yield from self._described(
                index,
                name,
                file.state,
                in_tree=in_tree,
                remote=True,
                cuttable=file.fetch is not None,
            )
        if empty and not self.reports[index].counts:
            raise UsageError("no such source", where=source, do=NAMES)

    def _described(
        self,
        index: int,
        name: str,
        state: tuple[int, int] | None,
        *,
        in_tree: bool,
        remote: bool = False,
        cuttable: bool = True,
    ) -> Iterator[Unit]:
        """The units of one file."""
        path = name.partition("?")[0] if remote else name
        form, compression = format_of(path, in_tree=in_tree)
        forced = self.options.format
        if forced is not None:
            form = "tree-text" if in_tree and forced == "text" else forced
        problem = None
        if form == "archive":
            problem = ("archives are not read", "unpack it and name the directory")
        elif compression is not None and form not in COMPRESSIBLE:
            problem = (f"compressed {form} is not read", "uncompress it")
        elif not cuttable and form not in COMPRESSIBLE:
            problem = (f"the server gives no ranges, which {form} needs", "download it first")
        if problem is not None and in_tree:
            self.reports[index].add(problem[0], name)
        elif problem is not None:
            raise UsageError(problem[0], where=name, do=problem[1])
        else:
            size = state[0] if state else 0
            whole = Unit(index, name, form, compression, 0, None, size, state)
            if cuttable:
                yield from split(whole, self.options, self.reports[index], remote=remote)
            else:
                yield whole

    def _standard_input(self, index: int) -> Iterator[Unit]:
        path = self.options.standard_input
        if path is None:
            raise UsageError("standard input cannot be read here", do="name a file")
        state = content_state(path)
        with open(path, "rb") as file:
            form, compression = format_by_content(file.read(16))
        form = self.options.format or form
        whole = Unit(index, STANDARD_INPUT, form, compression, 0, None, state[0], state)
        yield from split(whole, self.options, self.reports[index], remote=False)

    def _refuse_twice(self, index: int, name: str, status: os.stat_result) -> None:
        """Raises `UsageError` if an earlier source holds the same file."""
        if len(self.sources) > 1:
            first, _ = self._seen.setdefault((status.st_dev, status.st_ino), (index, name))
            if first != index:
                raise _twice(name, self.sources[first], self.sources[index])


def _identity(status: os.stat_result, place: int) -> tuple[int, int]:
    """Of the file, whatever its name; a file system without such numbers says 0 for each."""
    return (status.st_dev, status.st_ino) if status.st_ino else (-1, place)


def _says_format(name: str, in_tree: bool) -> bool:
    return format_of(name, in_tree=in_tree)[0] not in ("any-text", "archive")


def _twice(name: str, first: str, second: str) -> UsageError:
    return UsageError(
        "the same source is given twice"
        if first == second
        else f"the same file is in two sources, {first} and {second}",
        where=name,
        do="name it once; to read a corpus more often than another, prepare them apart and mix them",
    )


def _refuse_options_without_effect(units: Sequence[Unit], planner: _Planner) -> None:
    options = planner.options
    if options.separator is not None and not any(unit.format in TEXT_FORMATS for unit in units):
        raise UsageError(
            "a separator is for plain text, and no source is plain text",
            do="leave --separator out, or give --format text",
        )
    if options.delimiter is not None and not any(unit.format in ("csv", "tsv") for unit in units):
        raise UsageError(
            "a delimiter is for csv and tsv, and no source is such a table",
            do="leave --delimiter out, or give --format csv",
        )
    if options.text_field != ReadOptions().text_field and not any(
        unit.format in RECORD_FORMATS for unit in units
    ):
        raise UsageError(
            f"there is no field {options.text_field!r} in plain text, and no source holds records",
            do="leave --text-field out, or give --format jsonl",
        )
    if (options.include or options.exclude) and not planner.walked:
        raise UsageError(
            "--include and --exclude choose among the files of a directory, and no source is one",
            do="leave them out, or name a directory",
        )
