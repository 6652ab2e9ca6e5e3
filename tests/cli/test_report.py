"""`hotloop report` on whole, half-finished and damaged run directories; `env` and `explain`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotloop.cli.main import run
from hotloop.core.census import Census
from hotloop.core.config import RunConfig
from hotloop.core.files import write_json
from hotloop.core.judgement import Diagnosis, Parity, Steps, Verdict
from hotloop.core.measurement import Environment
from hotloop.core.settings import Settings, store_settings
from hotloop.core.step import StepRecord

ENVIRONMENT = Environment(
    device="Test CPU",
    num_devices=1,
    cpu_model="Test CPU",
    num_cpus=2,
    cpu_quota=2.0,
    memory_limit_bytes=None,
    platform="Linux-x86_64",
    kernel=None,
    python="3.11.7",
    torch="2.13.0",
    cuda=None,
    driver=None,
    hotloop="0.1.0",
)
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

Report = Callable[..., tuple[int, str, str]]


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str]) -> Report:
    def call(*arguments: object) -> tuple[int, str, str]:
        code = run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """What `hotloop train` leaves after 20 of 20 steps."""
    values = {
        "name": "tiny",
        "data": {"source": "python-stdlib"},
        "train": {"steps": 20},
        "schedule": {"warmup_steps": 2},
    }
    origins = {"train.steps": "flag", "schedule.warmup_steps": "tiny.yaml:9"}
    directory = tmp_path / "run"
    directory.mkdir()
    store_settings(Settings(RunConfig.model_validate(values), origins), directory / "config.yaml")
    lines = [
        StepRecord(
            step,
            0.1,
            host={"forward": 0.03, "backward": 0.05, "optimizer": 0.018, "unattributed": 0.002},
            tokens=2048,
            loss=9.0 - step / 10,
            tags=("warmup",) if step < 2 else (),
        ).to_json()
        for step in range(20)
    ]
    (directory / "steps.jsonl").write_text("\n".join(lines) + "\n")
    (directory / "evals.jsonl").write_text('{"step": 20, "loss": 7.25, "tokens": 4096}\n')
    write_json(directory / "environment.json", ENVIRONMENT)
    write_json(directory / "census.json", Census(device="cpu", notes=("no C++ compiler: eager",)))
    return directory


def test_training_run_shows_loss_speed_breakdown_and_settings(
    report: Report, trained: Path
) -> None:
    code, out, _ = report("report", trained)
    assert code == 0
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


def test_unfinished_run_says_how_far_it_came(report: Report, trained: Path) -> None:
    lines = (trained / "steps.jsonl").read_text().splitlines()
    # Killed while writing its eighth record.
    (trained / "steps.jsonl").write_text("\n".join(lines[:7]) + "\n" + lines[7][:20])
    code, out, _ = report("report", trained)
    assert code == 0
    assert "unfinished: 7 of 20 steps" in out


def test_json_on_stdout_is_one_object_and_nothing_else(report: Report, trained: Path) -> None:
    _, out, _ = report("report", trained, "--json", "-")
    found = json.loads(out)
    assert found["schema"] == "hotloop.report/1"
    assert found["settings"]["train.steps"] == {"value": 20, "origin": "flag"}
    assert sum(found["diagnosis"]["breakdown"].values()) == pytest.approx(1)
    assert len(found["measurement"]["records"]) == 20
    assert found["environment"]["device"] == "Test CPU"


def test_diverged_run_is_strict_json_and_said_so(report: Report, trained: Path) -> None:
    record = StepRecord(20, 0.1, host={"forward": 0.1}, loss=float("nan")).to_json()
    with (trained / "steps.jsonl").open("a") as file:
        file.write(record + "\n")
    code, out, _ = report(
        "report", trained, "--json", trained / "out.json", "--html", trained / "r.html"
    )
    assert code == 0
    assert "the run diverged" in out

    def refuse(name: str) -> Any:
        raise AssertionError(name)

    json.loads((trained / "out.json").read_text(), parse_constant=refuse)
    assert "<svg" in (trained / "r.html").read_text()


def test_comparison_shows_the_verdict_first(report: Report, tmp_path: Path) -> None:
    write_json(tmp_path / "verdict.json", VERDICT)
    write_json(tmp_path / "diagnosis.json", Diagnosis("compute", Steps(5, 1, 0.1)))
    code, out, _ = report("report", tmp_path)
    assert code == 0
    assert out.splitlines()[2].startswith("A regression: hotloop's settings train 0.80x")


def damage_steps(run: Path) -> None:
    text = (run / "steps.jsonl").read_text().splitlines()
    text[4] = text[4].replace("wall_s", "wall")
    (run / "steps.jsonl").write_text("\n".join(text) + "\n")


def edit(name: str, text: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        (run / name).write_text(text)

    return change


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "a record without its time": (damage_steps, "steps.jsonl:5"),
    "phases that are no mapping": (
        edit("steps.jsonl", '{"step":0,"wall_s":1.0,"host":[1]}\n'),
        "steps.jsonl",
    ),
    "a loss that is text": (
        edit("steps.jsonl", '{"step":0,"wall_s":1.0,"loss":"low"}\n'),
        "steps.jsonl",
    ),
    "a phase that nobody knows": (
        edit("steps.jsonl", '{"step":0,"wall_s":1.0,"host":{"nap":1.0}}\n'),
        "nap",
    ),
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
    "an evaluation without its loss": (edit("evals.jsonl", '{"step": 3}\n'), "evals.jsonl:1"),
    "quickstart.json that is a list": (edit("quickstart.json", "[1]"), "quickstart.json"),
    "a measurement that is empty": (edit("measurement.json", ""), "measurement.json"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_file_gives_one_clear_error(report: Report, trained: Path, kind: str) -> None:
    change, expected = DAMAGE[kind]
    change(trained)
    code, out, err = report("report", trained)
    assert (code, out) == (2, ""), err
    assert err.startswith("error: ")
    assert "internal" not in err
    assert expected in err


@pytest.mark.parametrize("name", ["steps.jsonl", "quickstart.json", "evals.jsonl"])
def test_bytes_that_are_not_text_give_one_clear_error(
    report: Report, trained: Path, name: str
) -> None:
    (trained / name).write_bytes(b"\xff\xfe\x00\n")
    code, _, err = report("report", trained)
    assert code == 2
    assert "internal" not in err


def test_directory_without_a_run_says_what_a_run_holds(report: Report, tmp_path: Path) -> None:
    code, _, err = report("report", tmp_path)
    assert code == 2
    assert "not a run directory" in err
    assert "steps.jsonl" in err
    (tmp_path / "file").write_text("x")
    assert "not a directory" in report("report", tmp_path / "file")[2]
    assert "no such directory" in report("report", tmp_path / "absent")[2]


def test_run_without_a_single_step_is_reported_without_numbers(
    report: Report, trained: Path
) -> None:
    (trained / "steps.jsonl").write_text("")
    (trained / "evals.jsonl").unlink()
    code, out, _ = report("report", trained, "--html", trained / "r.html")
    assert code == 0
    assert "no step has been recorded yet" in out


def test_output_below_a_file_is_refused_with_its_place(report: Report, trained: Path) -> None:
    code, _, err = report("report", trained, "--json", trained / "config.yaml" / "x.json")
    assert code == 2
    assert "no such directory" in err


def test_explain_lists_and_prints_pages_and_corrects_a_typo(report: Report) -> None:
    _, listed, _ = report("explain")
    assert "HL101" in listed
    assert "precision" in listed
    assert report("explain", "hl101")[1].startswith("HL101")
    _, page, _ = report("explain", "precision")
    assert "reduced_precision" in page
    assert "train.precision=bf16" in page
    code, _, err = report("explain", "precison")
    assert code == 2
    assert "did you mean `precision`?" in err


def test_every_name_that_can_be_explained_has_a_page(report: Report) -> None:
    from hotloop.judge.findings import FINDINGS
    from hotloop.optimizations.catalogue import CATALOGUE

    for name in [*FINDINGS, *CATALOGUE]:
        code, page, _ = report("explain", name)
        assert code == 0
        assert len(page) > 200, name
