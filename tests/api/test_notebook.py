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
LOOP = """
for _ in range(120):
    time.sleep(0.01)
    loss = model(torch.randn(16, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""".strip()
SLEEPS_IN_LOOP_AT = "In[7]:3"
"""Below the line of the magic."""


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
        f"%%hotloop\n{LOOP}",
        f"%%hotloop\n%%time\n{LOOP}",
    )
    client = nbclient.NotebookClient(made, timeout=120, allow_errors=True)
    client.execute()
    assert "watching took" in made.cells[2].outputs[0]["data"]["text/plain"]
    assert made.cells[3].outputs[0]["text"] == "7\n"
    assert "ZeroDivisionError" in [each.get("ename") for each in made.cells[4].outputs]
    assert "steps='fifty' is no number" in str(made.cells[5].outputs)
    assert SLEEPS_IN_LOOP_AT in str(made.cells[6].outputs)
    assert "%time:2" in str(made.cells[7].outputs)  # of what it times


def test_the_doctor_examines_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = notebook("import time\nimport torch", TRAIN, "train(200)")
    nbformat.write(made, "a loop.ipynb")
    run = hotloop.doctor("a loop.ipynb", out="run", options=["--no-try"])
    assert SLEEPS_AT in [each.site for each in run.findings]


WAITS = """
class Rows(Dataset):
    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.randn(64, generator=torch.Generator().manual_seed(index))

torch.manual_seed(0)
model = torch.nn.Linear(64, 8)
optimizer = torch.optim.AdamW(model.parameters())
for rows in DataLoader(Rows(), batch_size=8):
    optimizer.zero_grad()
    model(rows).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_fixes_are_tried_on_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial ends the kernel after its steps, which what executes the notebook takes for a failure."""
    monkeypatch.chdir(tmp_path)
    begin = "import time\nimport torch\nfrom torch.utils.data import DataLoader, Dataset"
    nbformat.write(notebook(begin, WAITS), "waits.ipynb")
    asked = ["--steps", "60", "--only", "loader_workers=2"]
    run = hotloop.doctor("waits.ipynb", out="run", budget="4m", options=asked)
    (tried,) = run.to_dict()["ledger"]["fixes"]
    assert tried["status"] == "kept", tried
    assert tried["verdict"]["ratio_low"] > 1.2
