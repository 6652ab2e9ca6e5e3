"""Record the doctor's answer to `answer/io.py` as a picture: docs/answer.svg, for the README.

    python benchmarks/answer_picture.py

Runs the doctor as a user does, in an empty directory, on a quiet machine. 2 minutes. The text is what the doctor printed,
coloured as on a terminal; whole sections that a first reader does not need are left out, and marked so. Its last lines
say where and when: the README repeats them, and a test holds it to the picture.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from hotloop.cli.colour import THEME, Answer, wrap
from hotloop.report.numbers import seconds

ROOT = Path(__file__).parents[1]
SCRIPT = Path(__file__).parent / "answer" / "io.py"
PICTURE = ROOT / "docs" / "answer.svg"
WIDTH = 100
SHOWN = ("The training ", "where a step's time goes", "With ", "  kept ", "Patch: ")
"""Sections of the answer that the picture has, by what they begin with."""
LEFT_OUT = "[...]"
BUSY = "Other programs kept"
FONT_FACES = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""Of rich's pictures: fonts from a server, which a picture must not ask for."""


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        shutil.copy(SCRIPT, work)
        answer, first_s, whole_s = answer_of(work)
        (run,) = (work / "runs").iterdir()
        measurement = json.loads((run / "measurement.json").read_text(encoding="utf-8"))
    if BUSY in answer or "\nWith " not in answer:
        print(f"{answer}\n\nnot recorded: the machine is busy, or no fix was kept")
        return 1
    machine = measurement["environment"]
    where = (
        f"{machine['device']}, {machine['cpu_quota']:g} CPUs, torch {machine['torch']}, "
        f"{datetime.now(UTC):%Y-%m-%d}. The first part came after {seconds(first_s)}, the rest after {seconds(whole_s)}."
    )
    PICTURE.write_text(drawn(answer, where), encoding="utf-8")
    print(f"{answer}\n\n{where}")
    return 0


def answer_of(work: Path) -> tuple[str, float, float]:
    """What the doctor printed, and the seconds until its first part and its end."""
    program = [sys.executable, "-m", "hotloop", "doctor", "--", sys.executable, SCRIPT.name]
    began, first_s, lines = time.monotonic(), 0.0, []
    with subprocess.Popen(program, cwd=work, stderr=subprocess.PIPE, text=True) as doctor:
        assert doctor.stderr is not None
        for line in doctor.stderr:
            lines.append(line.rstrip())
            if line.startswith("where a step"):
                first_s = time.monotonic() - began
    assert doctor.returncode == 0, "\n".join(lines)
    return "\n".join(lines), first_s, time.monotonic() - began


def drawn(answer: str, where: str) -> str:
    """The picture of the sections that are shown."""
    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor",
        theme=THEME, highlighter=Answer(), markup=False, emoji=False,
    )  # fmt: skip
    console.print(f"$ hotloop doctor -- python {SCRIPT.name}\n", style="bold", highlight=False)
    begun, left_out = False, False
    for section in re.split(r"\n\n+", answer.rstrip()):
        if section.startswith(SHOWN):
            text = "\n".join(wrap(line, WIDTH) for line in section.split("\n"))
            console.print(f"{text}\n", soft_wrap=True)
            begun, left_out = True, False
        elif begun and not left_out:
            console.print(f"{LEFT_OUT}\n", style="dim", highlight=False)
            left_out = True
    console.print(where, highlight=False)
    return FONT_FACES.sub("", console.export_svg(title="hotloop", unique_id="hotloop"))


if __name__ == "__main__":
    sys.exit(main())
