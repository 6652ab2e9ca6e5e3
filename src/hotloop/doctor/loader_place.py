"""Tells a trial which loader trains: where it is made, as the diagnosed run saw it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path

from hotloop.core.census import ONE_OF, Census
from hotloop.core.child import LOADER


def variables_for(
    census: Census | None, workdir: Path | None, edited: Mapping[str, bytes]
) -> dict[str, str]:
    """For the process's environment. edited: files that hold other lines there than in `workdir`."""
    loader = census.slowest_loader() if census is not None else None
    if loader is None or not loader.made or workdir is None:
        return {}
    moved = {file: _moved((workdir / file).read_bytes(), new) for file, new in edited.items()}
    made = [" < ".join(map(partial(_in, moved), name.split(" < "))) for name in loader.made]
    return {LOADER: json.dumps({"site": loader.site, "made": made, "workdir": str(workdir)})}


def _in(moved: Mapping[str, Mapping[int, int]], call: str) -> str:
    """`train.py:8`, or `train.py:8 #1`, by its line in the edited file."""
    place, mark, number = call.partition(ONE_OF)
    file, _, line = place.rpartition(":")
    if file not in moved:
        return call
    return f"{file}:{moved[file].get(int(line), int(line))}{mark}{number}"


def _moved(old: bytes, new: bytes) -> dict[int, int]:
    """Line -> the line that it has become, both counted from 1."""
    lines = old.splitlines(), new.splitlines()
    found: dict[int, int] = {}
    for _, begin, end, new_begin, new_end in SequenceMatcher(None, *lines, False).get_opcodes():
        for number in range(begin, min(end, begin + new_end - new_begin)):
            found[number + 1] = new_begin + number - begin + 1
    return found
