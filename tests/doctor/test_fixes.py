from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from loader_uses import loader_use

from hotloop.core.census import Census
from hotloop.core.child import APPLIED_FILE
from hotloop.core.errors import UsageError
from hotloop.core.judgement import Diagnosis, Finding, Interval, Steps
from hotloop.core.ledger import Ledger
from hotloop.doctor import fix_campaign
from hotloop.doctor.fixes import Fix, asked_for, fixes_for, left_out_of, why_left_out
from hotloop.doctor.trial_reports import why_not_applied
from hotloop.hardware.environment import fast_on_cuda
from hotloop.hardware.limits import Machine
from hotloop.optimizations.catalogue import CATALOGUE
from hotloop.probe.foreign_process import describe_optimizer

CPU = Machine("cpu", ("bfloat16", "float32"), None, 2)
FOUND = Diagnosis(
    bound="optimizer",
    steps=Steps(40, 3, 0.01),
    breakdown={},
    findings=(
        Finding(
            "HL401", "", 1.1, evidence={"optimizer_fraction": 0.09}, optimization="fused_optimizer"
        ),
        Finding("HL301", "", 1.5, evidence={"product_fraction": 0.3}, optimization="precision"),
        Finding("HL801", "", 2.0),
    ),
)


def test_findings_choose_and_the_largest_comes_first() -> None:
    fixes = fixes_for(FOUND, CPU, Census())
    assert [(fix.name, fix.value, fix.answers) for fix in fixes] == [
        ("precision", "bf16", ("HL301",)),
        ("fused_optimizer", True, ("HL401",)),
    ]
    expected = fixes[1].predicted
    assert isinstance(expected, Interval)
    assert 1 < expected.ratio_low < expected.ratio < expected.ratio_high < 1.1 + 0.02
    share = {"optimizer_fraction": 0.6}
    larger = replace(FOUND.findings[0], gain_at_most=2.5, evidence=share)
    fixes = fixes_for(replace(FOUND, findings=(larger, FOUND.findings[1])), CPU, Census())
    assert [fix.name for fix in fixes] == ["fused_optimizer", "precision"]


@pytest.mark.parametrize(
    ("capability", "value"),
    [((7, 0), "fp16"), ((7, 5), "fp16"), ((8, 0), "bf16"), ((9, 0), "bf16")],
)
def test_float16_is_tried_where_a_gpu_has_no_bfloat16(
    capability: tuple[int, int], value: str
) -> None:
    gpu = Machine("cuda", fast_on_cuda(capability), None, 1)
    (fix,) = fixes_for(replace(FOUND, findings=FOUND.findings[1:2]), gpu, Census())
    assert (fix.name, fix.value) == ("precision", value)


def test_what_the_script_chose_and_threads_beside_other_programs_are_not_tried() -> None:
    crowded = Finding("HL803", "", 4.0)
    found = replace(FOUND, findings=(*FOUND.findings, crowded))
    seen = Census("cpu", num_threads=8, cpus=2.0, optimizer="AdamW")
    names = [fix.name for fix in fixes_for(found, CPU, seen)]
    assert sorted(names) == ["fused_optimizer", "precision", "threads"]
    weights = [torch.zeros(2, requires_grad=True)]
    for chosen, described in (
        ({}, "AdamW"),
        ({"foreach": True}, "AdamW(foreach)"),
        ({"foreach": False}, "AdamW(foreach=False)"),
        ({"fused": False}, "AdamW(fused=False)"),
        ({"fused": False, "foreach": False}, "AdamW(fused=False, foreach=False)"),
    ):
        assert describe_optimizer(torch.optim.AdamW(weights, **chosen)) == described
        full = replace(seen, machine_busy=0.97, foreign_busy=0.8, optimizer=described)
        names = [fix.name for fix in fixes_for(found, CPU, full)]
        assert names == (["precision"] if chosen else ["precision", "fused_optimizer"])


def test_what_is_asked_for_is_tried_and_nothing_else() -> None:
    fixes = fixes_for(FOUND, CPU, Census(), only=asked_for(["compile"]))
    assert [(fix.name, fix.answers, fix.predicted) for fix in fixes] == [("compile", (), None)]
    assert asked_for(["loader_workers=0", "fused_optimizer=true", "precision=tf32", "compile"]) == {
        "loader_workers": (0,),
        "fused_optimizer": (True,),
        "precision": ("tf32",),
        "compile": (),
    }


def test_a_value_that_this_machine_cannot_have_is_left_out_with_the_reason() -> None:
    only = asked_for(["precision=tf32"])
    assert fixes_for(FOUND, CPU, Census(), only=only) == ()
    assert "tf32" in why_left_out("precision", only["precision"], CPU, Census())
    assert fixes_for(FOUND, CPU, Census(), only=asked_for(["loader_workers"])) == ()
    assert why_left_out("loader_workers", (), CPU, Census()) == (
        "it needs a dataset by index, and another number of workers than it has"
    )


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("fused", "no technique `fused`"),
        ("clipping", "cannot be tried on a running script"),
        ("precision=fp64", "`precision` cannot be `fp64`"),
        ("loader_workers=-1", "`loader_workers` cannot be `-1`"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(text: str, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        asked_for([text])


def test_a_remedy_that_a_finding_names_and_the_run_does_not_allow_is_said_with_the_reason() -> None:
    waits = Finding("HL105", "", 1.8, optimization="item_cache")
    diagnosis = replace(FOUND, findings=(*FOUND.findings, waits))
    fixes = fixes_for(diagnosis, CPU, Census())
    (left,) = left_out_of(diagnosis, fixes, CPU, Census())
    assert (left.name, left.status, left.answers) == ("item_cache", "not_tried", ("HL105",))
    assert left.why.startswith("it needs a dataset by index")
    assert left.why.endswith("more than one epoch")


@pytest.mark.parametrize(("share", "hopeless"), [(0.02, True), (0.2, False)])
def test_a_fix_of_which_hardly_anything_is_expected_is_hopeless(
    share: float, hopeless: bool
) -> None:
    finding = Finding("HL401", "", 1.3, evidence={"optimizer_fraction": share})
    (fix,) = fixes_for(replace(FOUND, findings=(finding,)), CPU, Census())
    assert (fix.why_hopeless is not None) == hopeless
    if hopeless:
        assert fix.predicted is not None
        assert f"at most {fix.predicted.ratio_high:.2f}x is expected" in str(fix.why_hopeless)


def test_what_is_hopeless_is_left_out_unless_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hopeless = Fix(CATALOGUE["threads"], 2, (), 1.3, Interval(1.0, 0.97, 1.04))
    hopeful = replace(hopeless, predicted=Interval(1.1, 0.97, 1.3))
    census = Census()
    measurement = SimpleNamespace(census=census, records=(), returncode=0)
    run = SimpleNamespace(command=("python",), workdir=str(tmp_path), started_at=0.0, steps=None)
    examined: Any = SimpleNamespace(directory=tmp_path, diagnosis=FOUND, run=run)
    tried: list[dict[str, Any]] = []

    def campaign(command: Any, fixes: Any, measurement: Any, **given: Any) -> Ledger:
        tried.append({"fixes": fixes, "left_out": [each.name for each in given["left_out"]]})
        return Ledger(("python",), (), (), None, 0, 0, 0.0, None)

    for name, value in {
        "load_measurement": lambda path: measurement,
        "machine_of": lambda measurement: CPU,
        "left_out_of": lambda *given: (),
        "run_campaign": campaign,
    }.items():
        monkeypatch.setattr(fix_campaign, name, value)
    for fix, only in ((hopeless, ()), (hopeful, ()), (hopeless, ("threads",))):
        monkeypatch.setattr(fix_campaign, "fixes_for", lambda *given, fix=fix, **more: (fix,))
        fix_campaign.try_fixes(examined, only=only)
    assert [(each["fixes"], each["left_out"]) for each in tried] == [
        ((), ["threads"]),
        ((hopeful,), []),
        ((hopeless,), []),
    ]


def test_a_model_of_which_nothing_was_compiled_is_named(tmp_path: Path) -> None:
    line = {"fix": "compile", "applied": True, "what": "CharRNN"}
    (tmp_path / APPLIED_FILE).write_text(json.dumps(line) + "\n")
    run: Any = SimpleNamespace(census=Census(compiled=True, num_graphs=0))
    why = why_not_applied(Fix(CATALOGUE["compile"], True, (), None), [tmp_path], [run])
    assert why == "CharRNN: torch.compile compiled nothing of it"


def test_what_does_not_fit_into_memory_is_left_out_also_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all of its batches ready; and the largest number of workers that fits is tried where it may be chosen."""
    seen = {"batch_bytes": 10_000_000, "fetch_s": 0.09, "wait_s": 0.09, "per_epoch": 100}
    loaders = (loader_use("train.py:3", **seen),)
    census = Census("cpu", cpus=16.0, profiled_step_s=0.1, loaders=loaders)
    measurement = SimpleNamespace(census=census, records=(None,) * 500, returncode=0)
    waits = Finding("HL102", "", 8.0, optimization="loader_workers")
    diagnosis = replace(FOUND, findings=(waits,), breakdown={"data_wait": 0.9})
    run = SimpleNamespace(command=("python",), workdir=str(tmp_path), started_at=0.0, steps=None)
    examined: Any = SimpleNamespace(directory=tmp_path, diagnosis=diagnosis, run=run)
    tried: list[tuple[list[Any], list[Any]]] = []

    def campaign(command: Any, fixes: Any, measurement: Any, **given: Any) -> Ledger:
        tried.append(([fix.value for fix in fixes], [each.why[:52] for each in given["left_out"]]))
        return Ledger(("python",), (), (), None, 0, 0, 0.0, None)

    monkeypatch.setattr(fix_campaign, "load_measurement", lambda path: measurement)
    monkeypatch.setattr(fix_campaign, "machine_of", lambda measurement: CPU)
    monkeypatch.setattr(fix_campaign, "run_campaign", campaign)
    monkeypatch.setattr("hotloop.doctor.batch_memory.shared_memory_left_bytes", lambda: 64 << 20)
    for only in ((), ("loader_workers",), ("loader_workers=9",)):
        fix_campaign.try_fixes(examined, only=only)
    refused = "its batches need about 190 MB of /dev/shm (9 workers"
    assert tried == [([2], []), ([2], []), ([], [refused[:52]])]
