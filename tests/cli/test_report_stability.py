"""What a run saw go wrong is told by the report and by the monitor."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hotloop.core.files import ROLLBACKS_FILE
from hotloop.core.step import read_steps

Command = Callable[..., tuple[int, str, str]]

WENT_BACK = {
    "step": 12, "back_to": 10, "why": "loss 9.5, where 7 is usual",
    "lost_steps": 3, "lost_s": 0.31, "steps_passed_over": 3,
}  # fmt: skip


@pytest.fixture
def sick(trained: Path) -> Path:
    """The run with a spike, two updates left out, and one rollback."""
    changed = {
        3: {"tags": ("skipped",), "grad_norm": math.nan, "loss": math.nan},
        5: {"tags": ("spike",)},
        7: {"tags": ("spike", "skipped")},
        10: {"tags": ("rolled_back",)},
    }
    records = [
        replace(record, **changed.get(record.step, {}))  # type: ignore[arg-type]
        for record in read_steps(trained / "steps.jsonl")
    ]
    (trained / "steps.jsonl").write_text("".join(f"{r.to_json()}\n" for r in records))
    (trained / ROLLBACKS_FILE).write_text(json.dumps(WENT_BACK) + "\n")
    return trained


def test_report_says_what_was_left_out_and_what_was_undone(hotloop: Command, sick: Path) -> None:
    code, out, _ = hotloop("report", sick)
    assert code == 0
    said = " ".join(out.split())
    assert "2 spikes (the first at step 5)" in said
    assert "2 updates left out (the first at step 3)" in said
    assert (
        "rollback at step 12, back to 10: 3 steps and 0.3 s undone (loss 9.5, where 7 is usual)"
    ) in said
    assert "diverged" not in said  # the update of the loss that was no number was left out


def test_healthy_run_says_nothing_of_it(hotloop: Command, trained: Path) -> None:
    _, out, _ = hotloop("report", trained)
    assert not any(word in out for word in ("spike", "left out", "rollback"))


def test_damaged_rollback_is_named_and_a_torn_one_left_out(hotloop: Command, sick: Path) -> None:
    lines = json.dumps(WENT_BACK) + "\nnonsense\n" + '{"step": 1'
    (sick / ROLLBACKS_FILE).write_text(lines)
    code, out, err = hotloop("report", sick)
    assert f"{ROLLBACKS_FILE}:2" in out + err
    assert f"{ROLLBACKS_FILE}:3" not in out + err
    assert "rollback at step 12" in " ".join(out.split())
    assert code == 2


def test_monitor_counts_them_over_the_steps_it_looked_through(
    hotloop: Command, sick: Path, tmp_path: Path
) -> None:
    code, out, _ = hotloop("monitor", sick, "--once", "--json", tmp_path / "now.json")
    assert code == 0
    assert "2 spikes, 2 updates left out, 1 rollback in the last 20 steps" in out
    now = json.loads((tmp_path / "now.json").read_text())
    found = [now[key] for key in ("num_recent", "num_spikes", "num_skipped", "num_rollbacks")]
    assert found == [20, 2, 2, 1]
