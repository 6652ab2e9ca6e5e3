"""`hotloop report` on whole, half-finished and damaged run directories; `env` and `explain`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotloop import __version__
from hotloop.core.command_run import CommandRun
from hotloop.core.files import write_json
from hotloop.core.judgement import Diagnosis, Finding, Parity, Steps, Verdict
from hotloop.core.ledger import Ledger, TriedFix
from hotloop.core.step import StepRecord
from hotloop.doctor.directory import begun_run
from hotloop.runs.run_page import page_of
from hotloop.runs.stored_run import read_run

VERDICT = Verdict(
    outcome="regressed",
    ratio=0.8,
    ratio_low=0.78,
    ratio_high=0.82,
    confidence=0.95,
    parity=Parity("same", "bitwise", 40, 0.0, 0.0),
    baseline="plain",
    candidate="hotloop",
    num_pairs=4,
)

Command = Callable[..., tuple[int, str, str]]


def test_training_run_shows_loss_speed_breakdown_and_settings(
    hotloop: Command, trained: Path
) -> None:
    code, out, _ = hotloop("report", trained)
    assert code == 0
    assert out.splitlines()[2].startswith(
        "Finished: 20 steps, 20.5 K tokens/s in the median step (nine in ten: "
    )
    assert "targets: 2 pass, 0 fail, 11 do not apply or are not known" in out
    assert "7.1000 at step 19" in out
    assert "held-out loss  7.2500 at step 20" in out
    assert "20.5 K tokens/s" in out
    assert "backward       50.0 %" in out
    assert "total         100.0 %" in out
    assert "not examined" in out
    assert "no C++ compiler: eager" in out
    assert "train.steps" in out
    assert "tiny.yaml:9" in out
    assert "at their default" in out
    assert "unfinished" not in out


def test_unfinished_run_says_how_far_it_came(hotloop: Command, trained: Path) -> None:
    lines = (trained / "steps.jsonl").read_text().splitlines()
    # Killed while writing its eighth record.
    (trained / "steps.jsonl").write_text("\n".join(lines[:7]) + "\n" + lines[7][:20])
    code, out, _ = hotloop("report", trained)
    assert code == 0
    assert "unfinished: 7 of 20 steps" in out


def test_json_on_stdout_is_one_object_and_nothing_else(hotloop: Command, trained: Path) -> None:
    _, out, _ = hotloop("report", trained, "--json", "-")
    found = json.loads(out)
    assert found["schema"] == "hotloop.report/1"
    assert found["settings"]["train.steps"] == {"value": 20, "origin": "flag"}
    assert sum(found["diagnosis"]["breakdown"].values()) == pytest.approx(1)
    assert len(found["measurement"]["records"]) == 20
    assert found["environment"]["device"] == "AMD EPYC"
    assert found["state"] == "finished"
    assert found["problems"] == []
    assert {"name", "title", "bar", "status", "value", "unit", "above", "below", "reason"} == set(
        found["targets"][0]
    )


def test_diverged_run_is_strict_json_and_said_so(hotloop: Command, trained: Path) -> None:
    record = StepRecord(20, 0.1, host={"forward": 0.1}, loss=float("nan")).to_json()
    with (trained / "steps.jsonl").open("a") as file:
        file.write(record + "\n")
    code, out, _ = hotloop(
        "report", trained, "--json", trained / "out.json", "--html", trained / "r.html"
    )
    assert code == 0
    assert "the run diverged" in out

    def refuse(name: str) -> Any:
        raise AssertionError(name)

    json.loads((trained / "out.json").read_text(), parse_constant=refuse)
    assert "<svg" in (trained / "r.html").read_text()


def test_comparison_shows_the_verdict_first(hotloop: Command, tmp_path: Path) -> None:
    write_json(tmp_path / "verdict.json", VERDICT)
    write_json(tmp_path / "diagnosis.json", Diagnosis("compute", Steps(5, 1, 0.1)))
    code, out, _ = hotloop("report", tmp_path)
    assert code == 0
    assert out.splitlines()[2].startswith("A regression: hotloop's settings train 0.80x")


def test_page_of_an_examined_command_begins_with_what_was_measured(
    hotloop: Command, tmp_path: Path
) -> None:
    command = ("python", "train.py", "--size", "a b")
    ended = CommandRun(command, "/there", 1_790_000_000.0, "0.1.0", ended="by_itself", returncode=0)
    write_json(tmp_path / "doctor.json", ended)
    parity = Parity("same", "bitwise")
    gained = Verdict("improved", 1.3, 1.2, 1.4, 0.95, parity, "baseline", "fused", num_pairs=4)
    fix = TriedFix("fused_optimizer", True, "kept", "faster", ("HL401",), verdict=gained)
    write_json(
        tmp_path / "ledger.json", Ledger(command, (fix,), (fix.name,), gained, 3, 20, 75.0, None)
    )
    hotloop("report", tmp_path, "--html", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "python train.py --size &#39;a b&#39;, 2026-09-21</title>" in page
    assert page.index("With fused_optimizer: 1.30x") < page.index("Before: ") < page.index("<dl")


def test_the_command_that_a_page_names_next_goes_on_with_that_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = Path("a run")
    command = ("python", "train.py", "--size", "a b")
    run = CommandRun(
        command, str(tmp_path), 1_790_000_000.0, __version__, steps=50, ended="enough_steps"
    )
    found = Finding("HL401", "the optimizer is slow", 1.4)
    write_json(out / "doctor.json", run)
    write_json(
        out / "diagnosis.json", Diagnosis("optimizer", Steps(60, 10, 0.1), findings=(found,))
    )
    (out / "trials").mkdir()
    begins, _, given = page_of(read_run(out)).next_command.partition(" -- ")
    assert tuple(shlex.split(given)) == command
    assert shlex.split(begins) == ["hotloop", "doctor", "--steps", "50", "--out", "a run"]
    assert begun_run(out, command, steps=50) == run
    write_json(
        out / "doctor.json", replace(run, of_a_block=True)
    )  # its steps are none of a command
    assert page_of(read_run(out)).next_command == "hotloop doctor -- python train.py --size 'a b'"
    for nothing in (replace(run, reads_input=True), replace(run, ended="failed", returncode=1)):
        write_json(out / "doctor.json", nothing)
        assert page_of(read_run(out)).next_command == ""


def test_directory_without_a_run_says_what_a_run_holds(hotloop: Command, tmp_path: Path) -> None:
    code, _, err = hotloop("report", tmp_path)
    assert code == 2
    assert "not a run directory" in err
    assert "steps.jsonl" in err
    (tmp_path / "file").write_text("x")
    assert "not a directory" in hotloop("report", tmp_path / "file")[2]
    assert "no such directory" in hotloop("report", tmp_path / "absent")[2]


def test_output_below_a_file_is_refused_with_its_place(hotloop: Command, trained: Path) -> None:
    code, _, err = hotloop("report", trained, "--json", trained / "config.yaml" / "x.json")
    assert code == 2
    assert "no such directory" in err


def test_explain_lists_and_prints_pages_and_corrects_a_typo(hotloop: Command) -> None:
    _, listed, _ = hotloop("explain")
    assert "HL101" in listed
    assert "precision" in listed
    assert hotloop("explain", "hl101")[1].startswith("HL101")
    _, page, _ = hotloop("explain", "precision")
    assert "reduced_precision" in page
    assert "train.precision=bf16" in page
    _, page, _ = hotloop("explain", "loader_workers")
    assert (
        "the same samples in the same order, with other random numbers of the same distribution"
        in " ".join(page.split())
    )
    code, _, err = hotloop("explain", "precison")
    assert code == 2
    assert "did you mean `precision`?" in err
    assert "did you mean `HL401`?" in hotloop("explain", "hl40l")[2]
    # Another number is another finding, not a slip.
    assert "did you mean" not in hotloop("explain", "HL999")[2]


def test_every_name_that_can_be_explained_has_a_page(hotloop: Command) -> None:
    from hotloop.judge.findings import FINDINGS
    from hotloop.optimizations.catalogue import CATALOGUE

    for name in [*FINDINGS, *CATALOGUE]:
        code, page, _ = hotloop("explain", name)
        assert code == 0
        assert len(page) > 200, name
