"""A second config that is the same work is answered by the tuning of the first."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotloop.cli import doctor_session
from hotloop.cli.main import run
from hotloop.cli.tune_config import of_config
from hotloop.core.errors import ExitCode, UsageError
from hotloop.core.files import read_json, write_json
from hotloop.core.judgement import DIAGNOSIS_FILE, Diagnosis, Parity, Steps, Verdict
from hotloop.core.ledger import LEDGER_FILE, Ledger, TriedFix
from hotloop.core.settings import load_settings
from hotloop.doctor.directory import TRIALS
from hotloop.tune import earlier, program

CONFIG = """
name: {name}
data: {{source: {text}, tokenizer: bytes}}
model: {{layers: 1, width: 32, heads: 2, context: 32}}
train: {{steps: 400, microbatch: 4}}
"""
GIVEN: dict[str, tuple[str, ...]] = {"vary": (), "parity": (), "accept": (), "accumulate_with": ()}
KEPT = "train.num_threads=1"
BUDGET_S = 600.0
"""Of `hotloop tune` that says none."""


@pytest.fixture(autouse=True)
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    for name, line in (("a", "line {} of a text"), ("b", "another text, {}")):
        text = Path(f"{name}.txt")
        text.write_text("\n".join(line.format(number) for number in range(999)))
        Path(f"{name}.yaml").write_text(CONFIG.format(name=name, text=text))


def file_of(name: str = "a.yaml", *words: str, **given: tuple[str, ...]) -> Path:
    asked = of_config((name, *words), Path("tuned.yaml"), {**GIVEN, **given}, BUDGET_S)
    assert asked.earlier is not None
    return asked.earlier.file


def tuned(**changes: Any) -> Path:
    """A tuning of a.yaml that kept one setting."""
    parity = Parity("same", "reduction_order")
    verdict = Verdict("improved", 1.3, 1.2, 1.4, 0.95, parity, "baseline", KEPT, num_pairs=4)
    fix = TriedFix(KEPT, KEPT, "kept", "faster, and learns the same", verdict=verdict)
    ledger = Ledger(("hotloop", "train", "a.yaml"), (fix,), (KEPT,), verdict, 10, 40, 60.0, None)
    ledger = replace(ledger, run_with="hotloop train a.yaml", **changes)
    asked = of_config(("a.yaml",), Path("tuned.yaml"), GIVEN, BUDGET_S)
    ledger = asked.told(ledger)  # as it is stored
    asked.directory.mkdir(parents=True)
    write_json(asked.directory / LEDGER_FILE, ledger)
    write_json(asked.directory / DIAGNOSIS_FILE, Diagnosis("balanced", Steps(9, 1, 0.1)))
    assert asked.earlier is not None
    asked.earlier.begin(asked.directory)
    asked.earlier.remember(asked.directory, ledger, BUDGET_S)
    return asked.directory.resolve()


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Directories in which something is examined."""
    found: list[Path] = []

    def examined(command: Any, how: Any, **rest: Any) -> Any:
        found.append(how.out)
        raise UsageError("that is all")

    monkeypatch.setattr(doctor_session, "examined_command", examined)
    return found


def test_another_config_of_the_same_work_is_answered_at_once(
    begun: list[Path], capfd: pytest.CaptureFixture[str]
) -> None:
    directory = tuned()
    words = ["train.steps=900", "optimizer.learning_rate=0.002", "train.seed=3", "data.seed=4"]
    call = ["tune", "b.yaml", *words, "eval.every_steps=0", "--out", "b-tuned.yaml"]
    assert run([*call, "--json", "found.json"]) == ExitCode.FINE
    said = capfd.readouterr().err
    assert f"was tuned before, on this machine and with these versions, in {directory}" in said
    assert "run it with: hotloop train b-tuned.yaml" in said
    settings = load_settings(Path("b-tuned.yaml"))
    assert (settings.config.name, settings.config.train.steps) == ("b-tuned", 900)
    assert settings.config.train.num_threads == 1
    assert f"{directory}/ledger.json" in settings.origin("train.num_threads")
    found = json.loads(Path("found.json").read_text())
    assert (found["run"], found["kept"]) == (str(directory), [KEPT])
    names = [each["name"] for each in found["fixes"]]
    assert "train.precision=tf32" in names  # which a CPU cannot use
    assert len(names) == len({*names})
    assert not begun
    assert run([*call, "--force"]) == ExitCode.USAGE
    assert begun == [Path("runs/tune-b")]
    assert run(["tune", "a.yaml"]) == ExitCode.USAGE  # forgotten
    assert run(["tune", "a.yaml", "--force"]) == ExitCode.USAGE
    assert begun[1:] == [Path("runs/tune-a-2")] * 2


@pytest.mark.parametrize("name", ["a", "b"])
def test_what_had_no_time_for_all_is_the_answer_unless_more_time_is_given(
    name: str, begun: list[Path], capfd: pytest.CaptureFixture[str]
) -> None:
    go_on = "hotloop tune a.yaml --budget 36m"
    directory = tuned(continue_with=go_on)
    call = ["tune", f"{name}.yaml", "--out", f"{name}-tuned.yaml"]
    assert run(call) == run([*call, "--budget", "5m"]) == ExitCode.FINE
    said = capfd.readouterr().err
    assert f"tuned before, on this machine and with these versions, in {directory}" in said
    assert "unless with --force or a longer --budget" in said
    assert f"go on with: {go_on}" in said
    assert load_settings(Path(f"{name}-tuned.yaml")).config.train.num_threads == 1
    assert not begun
    assert run([*call, "--budget", "11m"]) == ExitCode.USAGE
    assert len(begun) == 1


def test_a_budget_that_proved_nothing_is_no_answer(begun: list[Path]) -> None:
    tuned(continue_with="hotloop tune a.yaml --budget 11m", kept=(), together=None)
    assert run(["tune", "a.yaml", "--budget", "5m"]) == ExitCode.USAGE
    assert len(begun) == 1


def test_the_command_that_goes_on_has_more_time_than_the_answer_had() -> None:
    asked = of_config(("a.yaml",), Path("tuned.yaml"), GIVEN, BUDGET_S)
    assert asked.longer("162s", before_s=240.0) == "5m"
    assert asked.longer("10m", before_s=600.0) == "11m"
    assert asked.longer("36m", before_s=600.0) == "36m"
    of_a_script = replace(asked, earlier=None)
    assert of_a_script.longer("162s", before_s=240.0) == "162s"


def test_what_is_not_what_it_was_or_pays_later_is_not_found(begun: list[Path]) -> None:
    directory = tuned()
    ledger = read_json(directory / LEDGER_FILE, Ledger)
    entry = earlier.Earlier(file_of(), num_steps=90)
    assert entry.found(math.inf) == (directory, ledger)
    write_json(directory / LEDGER_FILE, replace(ledger, kept=()))
    assert entry.found(1.0) is None
    late = replace(ledger.fixes[0], pays_after_steps=91)
    for status, is_found in (("does_not_pay", True), ("kept", False)):
        changed = replace(ledger, fixes=(replace(late, status=status),))
        write_json(directory / LEDGER_FILE, changed)
        entry.remember(directory, changed, math.inf)  # as of `--budget none`
        assert (entry.found(1.0) is not None) == is_found
        assert (replace(entry, num_steps=91).found(1.0) is not None) != is_found
        assert (replace(entry, num_steps=None).found(1.0) is not None) != is_found
    (directory / LEDGER_FILE).unlink()
    assert replace(entry, num_steps=91).found(1.0) is None
    entry.file.write_text("[")
    assert entry.found(1.0) is None
    assert run(["tune", "b.yaml"]) == ExitCode.USAGE
    assert begun == [Path("runs/tune-b")]


def test_what_is_measured_anew_goes_on_after_an_interruption(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = tuned(), Path("runs/tune-a-2")
    monkeypatch.setattr(program, "was_interrupted", lambda directory, command: True)

    def goes_on_in(**how: bool) -> Path:
        return program.run_directory((), "a", print, **how).resolve()

    assert goes_on_in() == first
    assert goes_on_in(anew=True) == second.resolve()
    second.mkdir()
    assert goes_on_in(anew=True) == second.resolve()
    shutil.copy(first / LEDGER_FILE, second)
    assert goes_on_in(anew=True) == Path("runs/tune-a-3").resolve()


def test_what_timed_nothing_is_not_remembered() -> None:
    directory, entry = tuned(), earlier.Earlier(file_of())
    ledger = read_json(directory / LEDGER_FILE, Ledger)
    entry.file.unlink()
    untimed = replace(ledger.fixes[0], status="not_tried", verdict=None)
    entry.remember(directory, replace(ledger, fixes=(untimed,), kept=()), BUDGET_S)
    assert not entry.file.exists()


def test_trials_that_others_made_before_are_not_remembered() -> None:
    directory, entry = tuned(), earlier.Earlier(file_of())
    ledger = read_json(directory / LEDGER_FILE, Ledger)
    (directory / TRIALS).mkdir()
    of_edited_sources = earlier.Earlier(entry.file.with_name("another.json"))
    of_edited_sources.begin(directory)
    of_edited_sources.remember(directory, ledger, BUDGET_S)
    assert of_edited_sources.found(BUDGET_S) is None
    assert entry.found(BUDGET_S) == (directory, ledger)


@pytest.mark.parametrize(
    "word",
    [
        *("model.width=64", "model.context=16", "train.microbatch=2", "train.precision=fp32"),
        *("optimizer.name=sgd", "train.clip_norm=null", "data.layout=pack", "averaging.name=ema"),
        *("model.vocabulary=300", "train.activation_checkpointing=none"),
    ],
)
def test_other_work_is_another_entry(word: str) -> None:
    assert file_of() != file_of("a.yaml", word)


def test_what_is_varied_counts_and_so_do_documents_where_rows_are_made_of_them() -> None:
    same = file_of()
    assert file_of("b.yaml", "eval.windows=8") == same
    vary = ("eval.every_steps=100",)
    assert file_of(vary=vary) not in (same, file_of("a.yaml", "eval.windows=8", vary=vary))
    vary = ("checkpoint.background=true",)
    assert file_of(vary=vary) != file_of("a.yaml", "checkpoint.every_steps=9", vary=vary)
    assert file_of("a.yaml", "data.layout=pack") != file_of("b.yaml", "data.layout=pack")


@pytest.mark.parametrize("what", ["sources", "torch", "variables"])
def test_another_hotloop_torch_or_machine_is_another_entry(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = file_of()
    digest: Callable[[Path], str] = earlier._digest
    if what == "sources":
        edited = Path(earlier.__file__)
        monkeypatch.setattr(earlier, "_digest", lambda p: "" if p == edited else digest(p))
    elif what == "torch":
        monkeypatch.setattr(earlier, "_version", lambda name: "1.0")
    else:
        monkeypatch.setenv("MALLOC_ARENA_MAX", "3")
    assert file_of() != before


def test_streamed_text_is_not_looked_up() -> None:
    asked = of_config(("a.yaml", "data.stream=true"), Path("tuned.yaml"), GIVEN, BUDGET_S)
    assert asked.earlier is None
    assert asked.before is None
