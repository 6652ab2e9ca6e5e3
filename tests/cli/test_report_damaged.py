"""Damaged and half-finished runs: what is wrong is named, and everything else is still shown."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from judge_inputs import ENVIRONMENT

from hotloop.core.files import read_json, write_json
from hotloop.core.judgement import Parity, Verdict
from hotloop.core.measurement import Measurement, Plan
from hotloop.core.step import StepRecord

Command = Callable[..., tuple[int, str, str]]
Change = Callable[[Path], None]


def edit(name: str, text: str) -> Change:
    def change(run: Path) -> None:
        (run / name).write_text(text)

    return change


def line_of(name: str, number: int, text: str) -> Change:
    """Put `text` in the place of a line, counted from 1."""

    def change(run: Path) -> None:
        lines = (run / name).read_text().splitlines()
        lines[number - 1] = text
        (run / name).write_text("\n".join(lines) + "\n")

    return change


def step(**values: Any) -> str:
    return json.dumps({"step": 4, "wall_s": 0.1, **values})


DAMAGED: dict[str, tuple[Change, str]] = {
    "a line that is no JSON": (line_of("steps.jsonl", 5, '{"step":4,'), "steps.jsonl:5"),
    "phases that are no mapping": (line_of("steps.jsonl", 5, step(host=[1])), "steps.jsonl:5"),
    "a time without end": (line_of("steps.jsonl", 5, step(wall_s=float("inf"))), "steps.jsonl:5"),
    "a loss that is text": (line_of("steps.jsonl", 5, step(loss="low")), "steps.jsonl:5"),
    "a loss beyond floats": (line_of("steps.jsonl", 5, step(loss=10**400)), "steps.jsonl:5"),
    "tokens that are text": (line_of("steps.jsonl", 5, step(tokens="many")), "steps.jsonl:5"),
    "tags that are numbers": (line_of("steps.jsonl", 5, step(tags=[[1]])), "steps.jsonl:5"),
    "a step beyond counting": (line_of("steps.jsonl", 5, step(step=10**30)), "steps.jsonl:5"),
    "brackets without end": (line_of("steps.jsonl", 5, "[" * 100_000), "steps.jsonl:5"),
    "a phase that nobody knows": (line_of("steps.jsonl", 5, step(host={"nap": 0.1})), "nap"),
    "bytes that are no text": (line_of("steps.jsonl", 5, "\x00\x01"), "steps.jsonl:5"),
    "a verdict cut short": (edit("verdict.json", '{"schema": "hotl'), "verdict.json"),
    "a verdict of another version": (
        edit("verdict.json", '{"schema": "hotloop.verdict/9"}'),
        "hotloop.verdict/9",
    ),
    "a diagnosis with fields missing": (
        edit("diagnosis.json", '{"schema": "hotloop.diagnosis/1"}'),
        "diagnosis.json",
    ),
    "a census of another kind": (edit("census.json", "[]"), "census.json"),
    "a config that is not YAML": (edit("config.yaml", "a: [1"), "config.yaml"),
    "a config with an unknown key": (edit("config.yaml", "a: 1"), "config.yaml"),
    "an environment that is empty": (edit("environment.json", ""), "environment.json"),
    "an evaluation without its loss": (edit("evals.jsonl", '{"step": 3}\n'), "evals.jsonl:1"),
    "an evaluation at no step": (
        edit("evals.jsonl", '{"step": Infinity, "loss": 1.0}\n'),
        "evals.jsonl:1",
    ),
    "telemetry that is text": (
        line_of("telemetry.jsonl", 2, '{"sampled_at":"now"}'),
        "telemetry.jsonl:2",
    ),
    "a GPU that is a number": (
        line_of("telemetry.jsonl", 2, '{"sampled_at":1.0,"gpus":[3]}'),
        "telemetry.jsonl:2",
    ),
    "quickstart.json that is a list": (edit("quickstart.json", "[1]"), "quickstart.json"),
    "a measurement that is empty": (edit("measurement.json", ""), "measurement.json"),
    "a plan without its arms": (edit("plan.json", "{}"), "plan.json"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damage_is_named_and_everything_else_is_shown(
    hotloop: Command, trained: Path, kind: str
) -> None:
    change, expected = DAMAGED[kind]
    change(trained)
    page, file = trained / "r.html", trained / "out.json"
    code, out, err = hotloop("report", trained, "--html", page, "--json", file)
    assert code == 2
    assert err.startswith("error: ")
    assert "internal" not in err
    assert expected in err
    assert "damaged, and left out" in out
    assert expected in out
    assert "7.1000 at step 19" in out  # the loss of the last step
    assert "targets: " in out
    found = json.loads(file.read_text())
    assert any(expected in f"{each['where']} {each['what']}" for each in found["problems"])
    assert len(found["measurement"]["records"]) >= 19
    text = page.read_text()
    assert "Damaged, and left out here" in text
    assert expected in text
    assert 'id="loss"' in text
    assert 'id="speed"' in text


def test_json_on_stdout_is_still_one_object_when_something_is_damaged(
    hotloop: Command, trained: Path
) -> None:
    line_of("steps.jsonl", 5, "[]")(trained)
    code, out, err = hotloop("report", trained, "--json", "-")
    assert code == 2
    assert err.startswith("error: ")
    assert len(json.loads(out)["measurement"]["records"]) == 19


def test_many_damaged_lines_are_counted_and_a_few_named(hotloop: Command, trained: Path) -> None:
    lines = (trained / "steps.jsonl").read_text().splitlines()
    lines[3:13] = ["?"] * 10
    (trained / "steps.jsonl").write_text("\n".join(lines) + "\n")
    code, out, err = hotloop("report", trained)
    assert code == 2
    assert "steps.jsonl:4" in err
    assert "and 2 more, listed above" in err
    assert "(and 7 more damaged lines)" in out
    assert "steps.jsonl:6" in out
    assert "steps.jsonl:7" not in out


@pytest.mark.parametrize("name", ["steps.jsonl", "quickstart.json", "evals.jsonl"])
def test_bytes_that_are_not_text_are_damage(hotloop: Command, trained: Path, name: str) -> None:
    (trained / name).write_bytes(b"\xff\xfe\x00\n")
    code, out, err = hotloop("report", trained)
    assert code == 2
    assert name in err
    assert "internal" not in err
    assert "train.steps" in out


@pytest.mark.parametrize("name", ["steps.jsonl", "evals.jsonl"])
def test_torn_last_line_is_a_note_and_no_damage(hotloop: Command, trained: Path, name: str) -> None:
    with (trained / name).open("a") as file:
        file.write('{"step": 20, "lo')
    code, out, err = hotloop("report", trained, "--html", trained / "r.html")
    assert (code, err) == (0, "")
    number = 21 if name == "steps.jsonl" else 2
    assert f"{name}:{number}: the last line is torn" in out
    assert f"{name}:{number}: the last line is torn" in (trained / "r.html").read_text()


MISSING = {
    "config.yaml": "settings and planned steps are not known",
    "environment.json": "device and versions are not known",
    "census.json": "dtypes and kernels are not known",
    "telemetry.jsonl": "no telemetry",
    "steps.jsonl": "no step has been recorded yet",
}


@pytest.mark.parametrize("name", MISSING)
def test_missing_file_is_said_and_the_rest_shown(
    hotloop: Command, trained: Path, name: str
) -> None:
    (trained / name).unlink()
    page, file = trained / "r.html", trained / "out.json"
    code, out, err = hotloop("report", trained, "--html", page, "--json", file)
    assert (code, err) == (0, "")
    assert MISSING[name] in out
    assert MISSING[name] in page.read_text()
    assert any(MISSING[name] in note for note in json.loads(file.read_text())["notes"])
    assert "targets: " in out
    if name != "steps.jsonl":
        assert "7.1000 at step 19" in out


def test_a_run_whose_last_weights_were_not_saved_is_not_called_finished(
    hotloop: Command, trained: Path
) -> None:
    (trained / "census.json").unlink()  # the disk was full when it saved after the last step
    an_hour_ago = time.time() - 3600
    os.utime(trained / "steps.jsonl", (an_hour_ago, an_hour_ago))
    code, out, _ = hotloop("report", trained)
    assert code == 0
    assert "Stopped after 20 of 20 steps" in out
    assert "all 20 steps were made, but not saved" in out
    saved = trained / "checkpoints" / "step-00000020-0123abcd"
    saved.mkdir(parents=True)
    assert "Stopped" in hotloop("report", trained)[1]  # not committed
    (saved / "manifest.json").write_text("{}")
    assert "Finished: 20 steps" in hotloop("report", trained)[1]


def test_a_run_that_still_trains_is_not_called_finished(hotloop: Command, trained: Path) -> None:
    lines = (trained / "steps.jsonl").read_text().splitlines()
    (trained / "steps.jsonl").write_text("\n".join(lines[:7]) + "\n")
    soon = time.time() + 60  # as if written just now, however late it is looked at
    os.utime(trained / "steps.jsonl", (soon, soon))
    (trained / "census.json").unlink()
    code, out, _ = hotloop("report", trained, "--json", trained / "out.json")
    assert code == 0
    assert "Running: 7 of 20 steps so far" in out
    assert "it is still training" in out
    assert "census.json is missing (it is written at the end)" in out
    assert json.loads((trained / "out.json").read_text())["state"] == "running"
    an_hour_ago = time.time() - 3600
    os.utime(trained / "steps.jsonl", (an_hour_ago, an_hour_ago))
    _, out, _ = hotloop("report", trained)
    assert "Stopped after 7 of 20 steps" in out
    assert "run the same `hotloop train` again to continue" in out


def test_run_without_a_single_step_is_reported_without_numbers(
    hotloop: Command, trained: Path
) -> None:
    (trained / "steps.jsonl").write_text("")
    (trained / "evals.jsonl").unlink()
    code, out, _ = hotloop(
        "report", trained, "--html", trained / "r.html", "--json", trained / "o.json"
    )
    assert code == 0
    assert "no step has been recorded yet" in out
    assert "no step has been recorded yet" in (trained / "r.html").read_text()
    statuses = {t["status"] for t in json.loads((trained / "o.json").read_text())["targets"]}
    assert statuses <= {"pass", "not_applicable"}  # host memory is known


def test_losses_that_are_no_numbers_are_drawn_as_gaps(hotloop: Command, trained: Path) -> None:
    lines = [
        StepRecord(n, 0.1, tokens=512, loss=float("nan") if n > 10 else 5.0).to_json()
        for n in range(20)
    ]
    (trained / "steps.jsonl").write_text("\n".join(lines) + "\n")
    (trained / "evals.jsonl").write_text('{"step": 20, "loss": NaN}\n')
    code, out, _ = hotloop("report", trained, "--html", trained / "r.html")
    assert code == 0
    assert "the run diverged" in out
    assert "no number at 9 steps, first at step 11" in (trained / "r.html").read_text()


@pytest.fixture
def compared(tmp_path: Path) -> Path:
    """A quickstart that was interrupted in its third pair, before any verdict."""
    directory = tmp_path / "quickstart"
    trials = directory / "trials"
    for name, seconds in (
        ("aa-01-a-plain", 1.0), ("aa-01-b-plain", 1.0), ("pair-01-a-plain", 1.0),
        ("pair-01-b-hotloop", 0.5), ("pair-02-a-hotloop", 0.4), ("pair-02-b-plain", 1.0),
        ("pair-03-a-plain", 1.0),
    ):  # fmt: skip
        records = tuple(
            StepRecord(
                n, seconds, tokens=2000, loss=9.0 - n / 10, tags=("warmup",) if n < 2 else ()
            )
            for n in range(22)
        )
        arm = name.rpartition("-")[2]
        measured = Measurement(arm, (), Plan(2, 20, 60.0), ENVIRONMENT, records, process_s=30.0)
        (trials / name).mkdir(parents=True)
        write_json(trials / name / "measurement.json", measured)
    (trials / "pair-03-b-hotloop").mkdir()
    plan = {"baseline": {"name": "plain"}, "candidate": {"name": "hotloop"},
            "plan": {"aa_pairs": 1, "looks": [6, 10]}}  # fmt: skip
    (trials / "plan.json").write_text(json.dumps(plan))
    return directory


def test_interrupted_comparison_shows_what_was_measured_and_no_verdict(
    hotloop: Command, compared: Path
) -> None:
    page, file = compared / "r.html", compared / "out.json"
    code, out, err = hotloop("report", compared, "--html", page, "--json", file)
    assert (code, err) == (0, "")
    assert "No verdict yet." in out
    assert "7 of up to 22 processes were measured" in out
    assert "1 process was cut off" in out
    assert "pair 2  2.00 K and 5.00 K per second, 2.50x" in out
    assert "pair 3  2.00 K and not known per second" in out
    found = json.loads(file.read_text())
    assert found["verdict"] is None
    assert found["pairs"][0] == {"pair": 1, "baseline_per_s": 2000.0, "candidate_per_s": 4000.0}
    text = page.read_text()
    assert "2.00 K and not known per second" in text
    assert 'id="before-after"' in text
    assert 'id="loss"' in text
    assert hotloop("report", compared / "trials")[1].count("pair ") >= 3


def test_comparison_that_has_hardly_begun_says_so(hotloop: Command, compared: Path) -> None:
    for each in (compared / "trials").iterdir():
        if each.is_dir():
            for file in each.iterdir():
                file.unlink()
            each.rmdir()
    _, out, _ = hotloop("report", compared)
    assert "No verdict yet." in out
    assert "0 of up to 22 processes were measured" in out
    (compared / "trials" / "plan.json").unlink()
    code, out, _ = hotloop("report", compared, "--html", compared / "r.html")
    assert code == 0
    assert "nothing has been recorded yet" in out
    assert "nothing has been recorded yet" in (compared / "r.html").read_text()


def test_trial_that_is_damaged_is_left_out_and_named(hotloop: Command, compared: Path) -> None:
    (compared / "trials" / "pair-01-b-hotloop" / "measurement.json").write_text("{")
    code, out, err = hotloop("report", compared)
    assert code == 2
    assert "pair-01-b-hotloop" in err
    assert "pair 1  2.00 K and not known per second" in out
    assert "pair 2  2.00 K and 5.00 K per second" in out


def test_comparison_whose_final_training_is_unfinished(
    hotloop: Command, compared: Path, trained: Path
) -> None:
    verdict = Verdict(
        "improved", 2.2, 2.1, 2.4, 0.95, Parity("same", "bitwise", 22, 0.0, 0.0), "plain", "hotloop",
        num_pairs=2, pair_ratios=(2.0, 2.5),
    )  # fmt: skip
    write_json(compared / "trials" / "verdict.json", verdict)
    out = hotloop("report", compared)[1]
    assert "hotloop's settings train 2.20x" in out
    assert "final training" not in out
    write_json(compared / "verdict.json", verdict)
    assert "the final training has not begun" in hotloop("report", compared)[1]
    lines = (trained / "steps.jsonl").read_text().splitlines()
    trained.rename(compared / "train")
    (compared / "train" / "steps.jsonl").write_text("\n".join(lines[:7]) + "\n")
    an_hour_ago = time.time() - 3600
    os.utime(compared / "train" / "steps.jsonl", (an_hour_ago, an_hour_ago))
    code, out, _ = hotloop(
        "report", compared, "--html", compared / "r.html", "--json", compared / "o"
    )
    assert code == 0
    assert out.splitlines()[2].startswith("hotloop's settings train 2.20x")
    assert "final training: unfinished: 7 of 20 steps" in out
    assert "final training: loss" in out
    found = json.loads((compared / "o").read_text())
    by_name = {target["name"]: target for target in found["targets"]}
    assert by_name["half_the_time"]["status"] == "pass"
    assert by_name["reproducible"]["status"] == "pass"
    assert by_name["data_wait"]["status"] == "pass"
    assert found["trained"]["state"] == "stopped"
    assert read_json(compared / "verdict.json", Verdict) == verdict


@pytest.mark.parametrize("trained", ["[{}]", "5", '"x"'])
def test_quickstart_whose_training_is_no_object_is_damage(
    hotloop: Command, compared: Path, tmp_path: Path, trained: str
) -> None:
    (compared / "quickstart.json").write_text(f'{{"trained": {trained}}}')
    code, _out, err = hotloop("report", compared, "--html", tmp_path / "page.html")
    assert code == 2
    assert "`trained` is not an object" in err
    assert (tmp_path / "page.html").exists()
