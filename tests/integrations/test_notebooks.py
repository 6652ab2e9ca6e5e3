"""The notebooks of examples/, run from their beginning by a real kernel."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def executed(name: str, directory: Path) -> tuple[Any, str]:
    """The notebook, and all that it printed."""
    made = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    where = {"metadata": {"path": str(directory)}}
    nbclient.NotebookClient(made, timeout=300, startup_timeout=300, resources=where).execute()
    outputs = [each for cell in made.cells for each in cell.get("outputs", [])]
    return made, "".join(each.get("text", "") for each in outputs)


@pytest.mark.slow
def test_a_loop_watched_before_and_after(tmp_path: Path) -> None:
    made, said = executed("watch_a_loop", tmp_path)
    shown = [each for cell in made.cells for each in cell.get("outputs", []) if "data" in each]
    assert sum("<iframe" in each["data"].get("text/html", "") for each in shown) == 2
    assert "HL111" in said  # much of each batch is padding
    ratio = float(said.rpartition(" times as fast")[0].split()[-1])
    assert ratio > 1.3
    assert (tmp_path / "before.html").is_file()


@pytest.mark.slow
def test_labels_and_entities_fine_tuned_before_and_after(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    _, said = executed("finetune", tmp_path)
    scores = re.findall(r"macro F1 ([\d.]+), mean F1 .*; of entities .* F1 ([\d.]+)\r?\n", said)
    assert len(scores) == 2
    assert all(float(each) > 0.9 for both in scores for each in both)
    assert said.count("hotloop monitor") == 2
    for row in ("macro F1 ", "f1 of entities ", "it/s ", "CPUs kept busy ", "model.packed "):
        assert re.search(rf"\n  {row}", said.partition("both")[2]), row
