"""Lines of each room of the package beside its budget. Exits 1 where a room has outgrown it.

    python tools/rooms.py

Budgets stand in `pyproject.toml`. What adds to a room first looks for what becomes superfluous there; a budget is
lowered with what was removed, and raised only in a commit of its own that says why.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> int:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    budgets: dict[str, int] = settings["tool"]["hotloop"]["rooms"]
    package = ROOT / "src" / "hotloop"
    rooms = sorted(path.parent.name for path in package.glob("*/__init__.py"))
    lines = {room: num_lines(package / room) for room in rooms}
    wrong = [f"no budget for {room}/" for room in rooms if room not in budgets]
    wrong += [f"no room {room}/, but a budget" for room in budgets if room not in lines]
    for room in rooms:
        budget = budgets.get(room, 0)
        print(f"{room:14} {lines[room]:6,} of {budget:6,} lines")
        if room in budgets and lines[room] > budget:
            wrong.append(f"{room}/ has {lines[room] - budget:,} lines more than its budget")
    print(f"{'all':14} {sum(lines.values()):6,} of {sum(budgets.values()):6,}")
    for each in wrong:
        print(f"error: {each}", file=sys.stderr)
    return 1 if wrong else 0


def num_lines(room: Path) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in room.rglob("*.py"))


if __name__ == "__main__":
    sys.exit(main())
