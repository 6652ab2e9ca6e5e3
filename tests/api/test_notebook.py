"""A notebook, run by a real kernel: as what holds the watch, and as what the doctor examines."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from textwrap import indent
from typing import Any

import nbclient
import nbformat
import pytest

import hotloop

# The loss is the model's own, and the input is made before: an operation in the loop, of the three steps that are
# profiled, would hold most of their time where a busy machine took the CPU away in it, and the lines there would be
# taken for computing.
TRAIN = """
model, x = torch.nn.Linear(64, 1), torch.randn(64)
optimizer = torch.optim.AdamW(model.parameters())

def train(steps):
    for _ in range(steps):
        time.sleep(0.03)
        loss = model(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""".strip()
SLEEPS_AT = "In[2]:6"
LOOP = """
for _ in range(120):
    time.sleep(0.03)
    loss = model(x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""".strip()
WRONG = "UsageError: `%%hotloop fifty` names no number of steps: `%%hotloop 200` looks at 200, `%%hotloop` at all\n"
SLEEPS_IN_LOOP_AT = "In[7]:3"
"""Below the line of the magic."""


def notebook(*cells: str) -> Any:
    made = nbformat.v4.new_notebook()
    made.cells = [nbformat.v4.new_code_cell(each) for each in cells]
    return made


def test_cells_watch_with_and_without_the_magic_and_name_cells_and_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", "work/train.ipynb")
    made = notebook(
        "import json, time\nimport torch\nimport hotloop",
        TRAIN,
        "with hotloop.watch() as seen:\n    train(100)",
        "print(json.dumps([seen.diagnosis.breakdown, [each.site for each in seen.findings]]))\n%load_ext hotloop",
        "%%hotloop 50\ntrain(100)\nkept = 7",
        "print(kept)",
        f"%%hotloop\n{LOOP}",
        "%%hotloop\n1 / 0",
        "%%hotloop fifty\npass",
        f"%%hotloop\n%%time\n{LOOP}",
        "%%hotloop\nx = = 1",
    )
    client = nbclient.NotebookClient(made, timeout=300, startup_timeout=300, allow_errors=True)
    client.execute()
    outputs = [each.outputs for each in made.cells]
    (shown,) = outputs[2]
    assert "<iframe srcdoc=" in shown["data"]["text/html"]
    assert "hotloop: watch, train.ipynb, " in shown["data"]["text/html"]
    assert "watching took" in shown["data"]["text/plain"]
    breakdown, sites = json.loads(outputs[3][0]["text"])
    assert breakdown["unattributed"] > 0.3
    assert SLEEPS_AT in sites
    assert "watching took" in outputs[4][0]["data"]["text/plain"]
    assert outputs[5][0]["text"] == "7\n"
    assert SLEEPS_IN_LOOP_AT in str(outputs[6])
    assert [each["ename"] for each in outputs[7] if "ename" in each] == ["ZeroDivisionError"]
    assert "----> 2 1 / 0" in re.sub(r"\x1b\[[\d;]*m", "", str(outputs[7][-1]["traceback"][-2]))
    assert "SyntaxError" in str(outputs[-1])
    assert outputs[8] == [{"output_type": "stream", "name": "stderr", "text": WRONG}]
    assert "%time:2" in str(outputs[9])  # of what it times


HALF = LOOP.replace(
    "for _ in range(120):",
    "for number in range(120):\n    if number == 60:\n        signal.raise_signal(signal.SIGINT)",
)
"""Interrupted as by the button of a notebook."""


def test_an_interrupted_cell_tells_its_steps_and_ends_with_the_interrupt() -> None:
    hooked = "(torch.nn.Module.__call__, torch.Tensor.backward, torch.optim.Optimizer.__init__)"
    made = notebook(
        f"import signal, time\nimport torch\nimport hotloop\n%load_ext hotloop\nbefore = {hooked}",
        TRAIN,
        f"%%hotloop\n{HALF}",
        f"print({hooked} == before)",
        f"with hotloop.watch() as seen:\n{indent(HALF, '    ')}",
        f"print({hooked} == before, seen.diagnosis.steps.measured)",
    )
    client = nbclient.NotebookClient(made, timeout=300, startup_timeout=300, allow_errors=True)
    client.execute()
    outputs = [each.outputs for each in made.cells]
    for cell in (outputs[2], outputs[4]):
        told, raised = cell
        assert "; it was interrupted." in told["data"]["text/plain"]
        assert "<iframe srcdoc=" in told["data"]["text/html"]
        assert raised["ename"] == "KeyboardInterrupt"
    assert outputs[3][0]["text"] == "True\n"
    restored, measured = outputs[5][0]["text"].split()
    assert restored == "True"
    assert 0 < int(measured) <= 60


def test_the_doctor_examines_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = notebook("import time\nimport torch", TRAIN, "train(200)")
    nbformat.write(made, "a loop.ipynb")
    run = hotloop.doctor("a loop.ipynb", out="run", options=["--no-try"])
    assert SLEEPS_AT in [each.site for each in run.findings]


@pytest.mark.parametrize(
    ("command", "needs"),
    [
        ("jupyter nbconvert --to notebook --execute loop.ipynb", "nbconvert"),
        ("papermill loop.ipynb done.ipynb", "papermill"),
    ],
)
def test_the_doctor_examines_what_executes_a_notebook(
    command: str, needs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(needs, reason=f"{needs} is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    made = notebook("import time\nimport torch", TRAIN, "train(200)")
    made.metadata.kernelspec = {"name": "python3", "language": "python", "display_name": "Python"}
    nbformat.write(made, "loop.ipynb")
    run = hotloop.doctor(command, out="run", options=["--no-try"])
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
