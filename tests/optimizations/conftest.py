"""Scripts in a process of their own, with techniques put into it as a trial does."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import warm_python
from hotloop.core.child import APPLIED_FILE, FIXES, FIXES_SETTINGS
from hotloop.trial import bootstrap

SOURCE = str(Path(bootstrap.__file__).parents[3])


@dataclass(frozen=True)
class Ran:
    """A script that ended well."""

    printed: Any
    """Its last line, as JSON."""
    output: str
    errors: str
    lines: list[dict[str, Any]]
    """What techniques wrote of themselves, in order."""

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


RunForeign = Callable[..., Ran]


@pytest.fixture
def run_foreign(tmp_path: Path) -> RunForeign:
    """`run_foreign(script, fixes, environment=..., fresh=...)` in a process of its own; fixture `without_compiler` counts.

    `fresh`: one that holds nothing else, not even torch.
    """

    def run(
        script: str,
        fixes: dict[str, Any] | None = None,
        *,
        environment: dict[str, str | None] | None = None,
        fresh: bool = False,
    ) -> Ran:
        path = tmp_path / "script.py"
        path.write_text(script)
        (tmp_path / APPLIED_FILE).unlink(missing_ok=True)
        more = [each for each in [os.environ.get("PYTHONPATH")] if each]
        own = [str(Path(bootstrap.__file__).parent), SOURCE, *more]
        variables: dict[str, str | None] = {**os.environ, "PYTHONPATH": os.pathsep.join(own)}
        if fixes:
            variables[FIXES] = str(tmp_path)
            variables[FIXES_SETTINGS] = json.dumps(fixes)
        variables |= environment or {}
        done = warm_python.run(
            [str(path)],
            env={name: value for name, value in variables.items() if value is not None},
            cwd=tmp_path,
            fresh=fresh,
        )
        assert done.returncode == 0, done.stderr
        assert not (tmp_path / "notes.txt").exists(), (tmp_path / "notes.txt").read_text()
        applied = tmp_path / APPLIED_FILE
        lines = applied.read_text().splitlines() if applied.exists() else []
        printed = json.loads(done.stdout.splitlines()[-1])
        return Ran(printed, done.stdout, done.stderr, [json.loads(line) for line in lines])

    return run
