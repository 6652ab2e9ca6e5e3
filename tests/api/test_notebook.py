"""A notebook, run by a real kernel: as what holds the watch, and as what the doctor examines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

import hotloop

TRAIN = """
model = torch.nn.Linear(64, 8)
optimizer = torch.optim.AdamW(model.parameters())

def train(steps):
    for _ in range(steps):
        time.sleep(0.01)
        loss = model(torch.randn(16, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""".strip()
SLEEPS_AT = "In[2]:6"


def notebook(*cells: str) -> Any:
    made = nbformat.v4.new_notebook()
    made.cells = [nbformat.v4.new_code_cell(each) for each in cells]
    return made


def test_a_cell_that_watches_shows_a_page_and_names_cells_and_lines() -> None:
    made = notebook(
        "import json, time\nimport torch\nimport hotloop",
        TRAIN,
        "with hotloop.watch() as seen:\n    train(100)",
        "print(json.dumps([seen.diagnosis.breakdown, [each.site for each in seen.findings]]))",
    )
    nbclient.NotebookClient(made, timeout=120).execute()
    (shown,) = made.cells[2].outputs
    assert "<iframe srcdoc=" in shown["data"]["text/html"]
    assert "watching took" in shown["data"]["text/plain"]
    breakdown, sites = json.loads(made.cells[3].outputs[0]["text"])
    assert breakdown["unattributed"] > 0.3
    assert SLEEPS_AT in sites


def test_a_cell_runs_in_the_watch_by_its_magic() -> None:
    made = notebook(
        "import time\nimport torch\n%load_ext hotloop",
        TRAIN,
        "%%hotloop 50\ntrain(100)\nkept = 7",
        "print(kept)",
        "%%hotloop\n1 / 0",
        "%%hotloop fifty\npass",
    )
    client = nbclient.NotebookClient(made, timeout=120, allow_errors=True)
    client.execute()
    assert "watching took" in made.cells[2].outputs[0]["data"]["text/plain"]
    assert made.cells[3].outputs[0]["text"] == "7\n"
    assert "ZeroDivisionError" in [each.get("ename") for each in made.cells[4].outputs]
    assert "steps='fifty' is no number" in str(made.cells[5].outputs)


def test_the_doctor_examines_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    nbformat.write(notebook("import time\nimport torch", TRAIN, "train(200)"), "loop.ipynb")
    run = hotloop.doctor("loop.ipynb", out="run", options=["--no-try"])
    assert SLEEPS_AT in [each.site for each in run.findings]
