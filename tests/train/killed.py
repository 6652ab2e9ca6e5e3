"""A finished run made what it would be if it had been killed before."""

from __future__ import annotations

import json
import shutil
from pathlib import Path


def killed_after(directory: Path, *, step: int) -> None:
    """As if it had been killed right after its checkpoint of `step`."""
    for path in (directory / "checkpoints").glob("step-*"):
        if int(path.name.split("-")[1]) > step:
            shutil.rmtree(path)
    for file in directory.glob("steps*.jsonl"):
        _keep(file, below=step)
    _keep(directory / "evals.jsonl", below=step + 1)


def _keep(file: Path, *, below: int) -> None:
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if json.loads(line)["step"] < below))
