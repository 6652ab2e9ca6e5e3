"""The calls that made the loaders that train, as the diagnosed run's census saw them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import libcst as cst

from hotloop.core.census import ONE_OF, Census
from hotloop.doctor.patch.applied_places import Frame
from hotloop.doctor.patch.source import Source, Unsafe
from hotloop.optimizations.source_edit import Keywords


def loader_frame(census: Census, workdir: Path, started_at: float) -> Frame:
    """The one place. Raises `Unsafe`.

    started_at: of the diagnosed run; the file must be older.
    """
    loaders = [each for each in census.loaders if each.trains]
    sites = list(dict.fromkeys(each.site for each in loaders))
    if len(sites) != 1:
        raise Unsafe(
            f"loaders that train are made at {', '.join(sites)}"
            if sites
            else "no loader that trains was seen in the first run"
        )
    others = any(each.site == sites[0] and not each.trains for each in census.loaders)
    if others or any(ONE_OF in name for each in loaders for name in each.made):
        raise Unsafe(
            f"at {sites[0]} loaders are made that do not train, too: they would change as well"
        )
    file, _, line = sites[0].rpartition(":")
    if not line.isdigit():
        raise Unsafe("where the loader is made was not seen")
    path = workdir / file
    digest = None
    if path.is_file() and path.stat().st_mtime < started_at:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Frame(file, int(line), "?", None, digest, direct=True)


def loader_call(source: Source, frame: Frame, wanted: Keywords) -> cst.Call:
    """The call on that line by the name of the class. Raises `Unsafe` where there is not one."""
    found = [
        each
        for each in source.calls()
        if source.start(each)[0] <= frame.line <= source.end(each)[0]
        and (source.imported_as(each.func) or "").rpartition(".")[2] in wanted.names
    ]
    if len(found) != 1:
        raise Unsafe(
            "several loaders are made on this line"
            if found
            else "no DataLoader is called there by name"
        )
    return found[0]
