"""Scripts in a process of their own, with techniques put into it as a trial does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import warm_python
from hotloop.core.child import APPLIED_FILE
from script_runs import ScriptRun, lines_of, variables

RunForeign = Callable[..., ScriptRun]


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
    ) -> ScriptRun:
        path = tmp_path / "script.py"
        path.write_text(script)
        (tmp_path / APPLIED_FILE).unlink(missing_ok=True)
        env = {**variables(fixes, into=tmp_path), **(environment or {})}
        done = warm_python.run(
            [str(path)],
            env={name: value for name, value in env.items() if value is not None},
            cwd=tmp_path,
            fresh=fresh,
        )
        assert done.returncode == 0, done.stderr
        ran = ScriptRun(0, done.stdout, done.stderr, tmp_path, lines_of(tmp_path))
        assert not ran.notes
        return ran

    return run
