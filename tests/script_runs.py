"""Scripts in processes into which hotloop is put, as a trial or the doctor does it: by the environment alone."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotloop.core.census import Census
from hotloop.core.child import APPLIED_FILE, FIXES, FIXES_SETTINGS
from hotloop.core.files import read_json
from hotloop.core.step import StepRecord, read_steps
from hotloop.trial import bootstrap

SOURCE = str(Path(bootstrap.__file__).parents[3])
OWN_PATH = os.pathsep.join([str(Path(bootstrap.__file__).parent), SOURCE])
"""What PYTHONPATH begins with."""


def variables(
    fixes: Mapping[str, Any] | None = None, *, into: Path | None = None
) -> dict[str, str]:
    """What PYTHONPATH held is kept: fixture `without_compiler`. fixes: to be put in; `into` then says what became of them."""
    before = [each for each in [os.environ.get("PYTHONPATH")] if each]
    own = {**os.environ, "PYTHONPATH": os.pathsep.join([OWN_PATH, *before])}
    return own | ({FIXES: str(into), FIXES_SETTINGS: json.dumps(fixes)} if fixes else {})


def lines_of(directory: Path) -> list[dict[str, Any]]:
    """What techniques wrote of themselves, in order."""
    path = directory / APPLIED_FILE
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@dataclass(frozen=True, slots=True)
class ScriptRun:
    """A script that ended, and what hotloop wrote of it."""

    returncode: int
    out: str
    err: str
    directory: Path
    lines: list[dict[str, Any]]
    """See `lines_of`."""

    @property
    def printed(self) -> Any:
        """Its last line, as JSON."""
        return json.loads(self.out.splitlines()[-1])

    @property
    def steps(self) -> list[StepRecord]:
        return list(read_steps(self.directory / "steps-0.jsonl"))

    @property
    def counted(self) -> list[StepRecord]:
        return [r for r in self.steps if not {"warmup", "compile", "profiled"} & set(r.tags)]

    @property
    def census(self) -> Census:
        return read_json(self.directory / "census-0.json", Census)

    @property
    def clock(self) -> dict[str, Any]:
        return dict(json.loads((self.directory / "clock-0.json").read_text()))

    @property
    def notes(self) -> str:
        path = self.directory / "notes.txt"
        return path.read_text() if path.exists() else ""

    @property
    def said(self) -> list[tuple[str, bool, str]]:
        """(technique, whether it was applied, where or why not)."""
        return [(line["fix"], line["applied"], line["what"]) for line in self.lines]

    @property
    def applied(self) -> list[str]:
        return [what for _, applied, what in self.said if applied]

    @property
    def refused(self) -> list[str]:
        return [what for _, applied, what in self.said if not applied]
