"""Fixes with one fault each, in real processes: rejected, and for the right reason."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hotloop.core.census import Census
from hotloop.core.errors import UsageError
from hotloop.core.ledger import Ledger, TriedFix
from hotloop.core.measurement import Environment, Measurement, Plan
from hotloop.core.step import StepRecord
from hotloop.doctor import starting_point, trial_costs, trial_runner
from hotloop.doctor.fix_campaign import run_campaign
from hotloop.doctor.fixes import Fix
from hotloop.optimizations.catalogue import CATALOGUE

PLANTED = Path(__file__).parent / "planted"
STARTED_WITH = f"{PLANTED}{os.pathsep}{Path(__file__).parents[1] / 'without_compiler'}"
sys.path.insert(0, str(PLANTED))
from planted_fixes import PLANTED as PLANTED_FIXES  # noqa: E402

SCRIPT = """
import os, random, time, torch
PAUSE_S = 0.004
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x = torch.randn(64, 8)
data = torch.utils.data.TensorDataset(x, 10 * x.sum(dim=1, keepdim=True))
BEFORE
for epoch in range(4):
    for a, b in torch.utils.data.DataLoader(data, batch_size=4, shuffle=True):
        loss = (model(a) - b).square().mean() * random.uniform(0.9, 1.1)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        time.sleep(PAUSE_S)
"""
STEPS = 64


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fixes in the catalogue, here and in the trials."""
    monkeypatch.setenv("PYTHONPATH", STARTED_WITH)
    for name, fix in PLANTED_FIXES.items():
        monkeypatch.setitem(CATALOGUE, name, fix)


def trying(
    place: Path,
    *names: str,
    before: str = "",
    steps: int = STEPS,
    start_s: float = 2.0,
    **options: Any,
) -> Ledger:
    """Verifies planted fixes on the script, as the doctor does after its diagnosis."""
    work = place / "work"
    work.mkdir(exist_ok=True)
    (work / "train.py").write_text(SCRIPT.replace("BEFORE", before))
    fixes = [Fix(PLANTED_FIXES[name], True, ("HL000",), 1.5) for name in names]
    return run_campaign(
        [sys.executable, "train.py"],
        fixes,
        measured(steps, start_s),
        directory=place / "run",
        workdir=work,
        **options,
    )


def measured(steps: int, start_s: float) -> Measurement:
    """What the diagnosing run of such a script gives."""
    environment = Environment(
        "cpu", 1, None, 2, 2.0, None, "Linux", None, "3.12.1", None, None, None, "0"
    )
    records = tuple(
        StepRecord(step, 0.005, tags=("warmup",) if step < 3 else ()) for step in range(steps)
    )
    return Measurement(
        "script",
        ("python",),
        Plan(3, steps - 3, 60.0),
        environment,
        records,
        census=Census(device="cpu", start_s=start_s),
    )


@pytest.fixture(scope="module")
def rejected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TriedFix]:
    """What one doctor's run says of all that fail before they are timed."""
    place = tmp_path_factory.mktemp("planted")
    precious = place / "precious.txt"
    precious.write_text("the user's")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", STARTED_WITH)
        patch.setenv("PLANTED_OUTSIDE", str(precious))
        patch.setattr(starting_point, "storage_for", lambda *directories: None)
        for name, fix in PLANTED_FIXES.items():
            patch.setitem(CATALOGUE, name, fix)
        names = ("crashes", "other_order", "writes_outside", "no_clipping", "not_applied")
        ledger = trying(place, *names)
    assert (ledger.kept, ledger.together, ledger.not_comparable) == ((), None, None)
    assert precious.read_text() == "the user's"
    assert [fix.name for fix in ledger.fixes] == list(names)
    return {fix.name: fix for fix in ledger.fixes}


@pytest.mark.parametrize("name", ["other_order", "no_clipping"])
def test_fix_that_trains_otherwise_learns_something_else(
    rejected: dict[str, TriedFix], name: str
) -> None:
    assert rejected[name].status == "rejected"
    assert "learns something else: losses part by" in rejected[name].why


def test_fix_that_does_nothing_and_says_nothing_is_not_applied(
    rejected: dict[str, TriedFix],
) -> None:
    entry = rejected["not_applied"]
    assert (entry.status, entry.why) == ("not_applied", "it found nothing that it could act on")


def test_fix_that_crashes_is_reported_with_its_last_lines(rejected: dict[str, TriedFix]) -> None:
    entry = rejected["crashes"]
    assert entry.status == "failed"
    assert "ended with exit code 1" in entry.why
    assert "the planted fix broke this optimizer" in entry.details


def test_fix_that_writes_outside_is_kept_from_it(rejected: dict[str, TriedFix]) -> None:
    entry = rejected["writes_outside"]
    assert entry.status == "failed"
    assert entry.why.startswith("it writes outside the working directory: ")
    assert entry.why.endswith("precious.txt")


@pytest.mark.slow
def test_fix_that_hangs_is_ended(
    planted: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_costs, "PATIENCE_S", 30.0)
    monkeypatch.setattr(trial_costs, "TIMES_EXPECTED", 0)
    (entry,) = trying(tmp_path, "hangs").fixes
    assert entry.status == "failed"
    assert "had not finished after 30 s" in entry.why


def test_script_that_writes_outside_is_refused_and_nothing_is_written(
    planted: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting_point, "storage_for", lambda *directories: None)
    path = tmp_path / "elsewhere" / "checkpoint.pt"
    path.parent.mkdir()
    with pytest.raises(UsageError, match="writes outside its working directory") as refused:
        trying(tmp_path, "claims", before=f"torch.save(1, {str(path)!r})")
    assert refused.value.where == str(path)
    assert "--in-place" in str(refused.value)
    assert not path.exists()


def test_script_whose_steps_are_not_comparable_says_why_and_writes_outside_into_a_layer(
    planted: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    # The budget is for learning that, however slow the machine is, and for nothing after it.
    clock = SimpleNamespace(monotonic=lambda: 1e3 * any("not comparable" in each for each in said))
    monkeypatch.setattr(trial_runner, "time", clock)
    before = "torch.manual_seed(time.time_ns() % 2**31)"
    path = tmp_path / "elsewhere" / "checkpoint.pt"
    path.parent.mkdir()
    has_layers = starting_point.storage_for(tmp_path, tmp_path) is not None
    if has_layers:  # not every kernel gives them to unprivileged users
        before += f"; torch.save(1, {str(path)!r})"
    ledger = trying(
        tmp_path, "claims", before=before, start_s=1.0, budget_s=120.0, warn=said.append
    )
    if has_layers:
        assert (ledger.isolation, ledger.network) == ("layer", False)
    assert not path.exists()
    assert ledger.kept == ()
    assert ledger.not_comparable is not None
    assert "two unchanged runs, seeded alike, part by" in ledger.not_comparable
    assert "from the first step on" in ledger.not_comparable
    told = f"its steps are not comparable from run to run: {ledger.not_comparable}"
    assert said.count(told) == 1


def test_run_that_is_too_short_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"15 steps were seen: too few .*at least 20"):
        trying(tmp_path, "claims", steps=15)


def test_budget_too_small_says_the_smallest(planted: None, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="testing one fix here needs about") as refused:
        trying(tmp_path, "claims", budget_s=3.0)
    least = int(str(refused.value.do).split("--budget ")[1].split("s")[0])
    assert least > 3
