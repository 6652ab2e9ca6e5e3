"""Which process of a rank is watched: a file that the first one makes. Standard library alone."""

from __future__ import annotations

import os
from pathlib import Path

_WEAK = " weak"


class Claim:
    """One process's claim to a rank. A weak one gives way to that of a process that updates weights."""

    def __init__(self, directory: Path, rank: str) -> None:
        self._path = directory / f"claim-{rank}"
        self._steps = directory / f"steps-{rank}.jsonl"
        self._mine = str(os.getpid())

    def take(self, *, proven: bool) -> bool:
        """Whether it is this process's from here on, or was already. proven: it updates weights."""
        text = self._mine + ("" if proven else _WEAK)
        try:
            with self._path.open("x") as file:
                file.write(text)
            return True
        except FileExistsError:
            held = self._read()
        except OSError:
            return False
        if held.partition(" ")[0] != self._mine:
            if not (proven and held.endswith(_WEAK)):
                return False
            self._steps.unlink(missing_ok=True)  # they were no steps of a training
        temporary = self._path.with_suffix(f".{self._mine}")
        temporary.write_text(text)
        os.replace(temporary, self._path)
        return True

    def is_ours(self) -> bool:
        """Whether nobody else has taken it since."""
        return self._read().partition(" ")[0] == self._mine

    def _read(self) -> str:
        try:
            return self._path.read_text()
        except OSError:
            return ""
