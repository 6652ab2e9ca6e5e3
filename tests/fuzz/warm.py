"""Runs hotloop's commands in forks of a warm process, and says what is wrong with how one ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

DOCUMENTED = frozenset({0, 1, 2, 3, 4, 5, 75})
"""Exit codes of every command; 70 is a bug in hotloop."""
LIMIT_S = 120.0
"""Of any command on these small inputs, on a machine that is busy with others."""
PEAK_BYTES = 2 << 30
"""Of any command, with torch loaded."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended. A negative code is the signal that ended it; `None`: it was still running."""

    arguments: tuple[str, ...]
    code: int | None
    said: str
    seconds: float
    peak_bytes: int

    def problem(self) -> str | None:
        """What no input may bring about; `None` for a good end."""
        wrong = None
        if self.code is None:
            wrong = f"still running after {self.seconds:.0f} s"
        elif self.code < 0:
            wrong = f"ended by signal {-self.code}"
        elif self.code not in DOCUMENTED:
            wrong = f"exit code {self.code}"
        elif "Traceback" in self.said or "internal:" in self.said:
            wrong = "a traceback"
        elif self.code in (2, 4) and "error: " not in self.said:
            wrong = f"exit code {self.code} without a word"
        elif self.peak_bytes > PEAK_BYTES:
            wrong = f"{self.peak_bytes / 1e9:.1f} GB of memory"
        if wrong is None:
            return None
        return f"{wrong}: hotloop {' '.join(self.arguments)[:300]}\n{self.said[-2000:]}"


class Warm:
    """The warm process. `run` costs a fork."""

    def __init__(self, directory: Path) -> None:
        """`directory` holds the output of commands, the cache and temporary files."""
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        environment = {
            **{k: v for k, v in os.environ.items() if k not in ("HOTLOOP_DEBUG", "PYTHONWARNINGS")},
            **{"HOTLOOP_CACHE": str(directory / "cache"), "TMPDIR": str(directory)},
            **{"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"},
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("host.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def run(self, *arguments: object, directory: Path, learn: bool = False) -> Ended:
        """A command in `directory`. `learn`: what it imports is loaded for all that come after it."""
        words = tuple(str(each) for each in arguments)
        output = self.directory / "output"
        asked = {
            **{"arguments": words, "directory": str(directory), "output": str(output)},
            "limit_s": LIMIT_S,
        }
        if learn:
            asked["modules"] = str(self.directory / "modules.json")
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        said = output.read_bytes().decode(errors="replace")
        for report in self.directory.glob("hotloop-bug-*.txt"):  # what an internal error left
            said += report.read_text(errors="replace")[-3000:]
            report.unlink()
        return Ended(words, answer["code"], said, answer["seconds"], answer["peak_bytes"])

    def close(self) -> None:
        self._process.communicate(timeout=240)
