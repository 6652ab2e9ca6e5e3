"""`hotloop tune CONFIG`: which settings are tried, and the config that is written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hotloop.cli import doctor_session, tune_config
from hotloop.cli.main import run
from hotloop.core.errors import ExitCode, UsageError
from hotloop.core.files import read_json
from hotloop.core.judgement import Diagnosis, Parity, Steps, Verdict
from hotloop.core.ledger import Ledger, TriedFix
from hotloop.core.measurement import Plan
from hotloop.core.settings import load_settings, store_settings
from hotloop.core.step import read_steps
from hotloop.doctor.fix_status import judged
from hotloop.doctor.trial_runner import TrialRunner
from hotloop.hardware import limits
from hotloop.hardware.limits import Machine
from hotloop.optimizations.catalogue import CONFIGURED
from hotloop.trial.arm import Arm
from hotloop.trial.measure import load_measurement, measure
from hotloop.trial.session import SessionResult
from hotloop.tune import settings as tuning
from hotloop.tune.options import options_of
from hotloop.tune.runner import OptionRunner, value_of

CONFIGS = Path(__file__).parents[2] / "configs"
PLAIN = CONFIGS / "quickstart-plain.yaml"
FAST = Machine("cpu", ("bfloat16",), None, 4)
SLOW = Machine("cpu", (), "there is no compiler", 1)


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda machine: monkeypatch.setattr(
        tuning, "machine_for", lambda settings, ranks=1: machine
    )


def values(options: list[tuning.Words]) -> list[str]:
    return [value for option in options for value in option.values]


def test_what_auto_chooses_comes_first_as_a_whole(on: Any) -> None:
    on(FAST)
    first, rest = tuning.options_for(load_settings(PLAIN), ())
    assert [each.name for each in first] == ["auto"]
    (words,) = first[0].values
    assert {"train.precision=bf16", "train.compile=true", "optimizer.fused=true"} <= {
        *words.split()
    }
    assert first[0].parity_class == "reduced_precision"
    assert first[0].label(words) == "auto"
    assert first[0].details(words).split() == words.split()
    # Both ways: what is kept may have one too many.
    assert {"train.precision=bf16", "train.precision=fp32", "train.compile=false"} <= {
        *values(rest)
    }
    assert {"train.num_threads=1", "train.num_threads=2", "train.num_threads=4"} <= {*values(rest)}
    assert "train.microbatch=4 train.grad_accum_steps=2" in values(rest)
    assert not any("microbatch=16" in each for each in values(rest))  # another batch


def test_of_several_ranks_what_they_share_evenly_is_tried_and_what_acts_between_them(
    on: Any,
) -> None:
    on(FAST)
    step = {"train.microbatch": 8, "train.grad_accum_steps": 2}
    given = load_settings(PLAIN).with_values(step, origin="x.yaml:3")
    alone, both = ({*values(tuning.options_for(given, (), ranks)[1])} for ranks in (1, 2))
    assert alone - both == {"train.microbatch=16 train.grad_accum_steps=1"}
    compressed = {f"train.gradient_compression={each}" for each in ("none", "bf16", "fp16")}
    assert both - alone == {"train.microbatch=1 train.grad_accum_steps=16"} | compressed


def test_ranks_share_the_cpus_and_memory_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(limits, "cpu_quota", lambda: 8.0)
    settings = load_settings(PLAIN, ["train.device=cpu"])
    one, four = (tuning.machine_for(settings, ranks) for ranks in (1, 4))
    assert (one.num_threads, four.num_threads) == (8, 2)
    assert four.memory_bytes == (one.memory_bytes or 0) // 4


def test_more_ranks_than_the_machine_has_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    def examined(*given: Any, **how: Any) -> Any:
        raise UsageError("that is all")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor_session, "examined_command", examined)
    monkeypatch.setattr(tune_config, "cpu_quota", lambda: 2.0)
    monkeypatch.setattr(tune_config, "prepare_data", lambda settings: None)
    Path("tiny.yaml").write_text(CONFIG)
    call = ["tune", "tiny.yaml", "--ranks", "3", "train.grad_accum_steps=3"]
    assert run([*call, "train.device=cpu"]) == ExitCode.USAGE
    assert "3 processes take turns on 2 CPUs" in capfd.readouterr().err
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert run([*call, "train.device=cuda"]) == ExitCode.ENVIRONMENT
    assert "3 processes train on this machine, and torch sees 2 GPUs" in capfd.readouterr().err


def test_what_does_not_go_with_a_value_is_off_beside_it(on: Any) -> None:
    on(FAST)
    first, rest = tuning.options_for(load_settings(PLAIN), ())
    assert "train.clip=fused" in first[0].values[0]
    assert "optimizer.fused=false train.clip=builtin" in values(rest)
    rest = tuning.options_for(load_settings(PLAIN), ("train.clip",))[1]
    assert "optimizer.fused=false" in values(rest)  # clipping stays as it is given


def test_what_this_machine_cannot_use_is_told_with_the_reason(on: Any) -> None:
    on(replace(FAST, why_no_compile="there is no compiler"))
    _, rest = tuning.options_for(load_settings(PLAIN, ["optimizer.fused=true"]), ())
    told = {each.name: each for each in tuning.not_usable(rest)}
    assert told.keys().isdisjoint(values(rest))
    assert told["train.precision=tf32"].status == "not_tried"
    assert told["train.precision=tf32"].why.startswith("cannot be used here: tf32 is a mode of")
    assert told["train.compile=blocks"].why == "cannot be used here: there is no compiler"


def test_what_can_only_be_slower_is_not_tried(on: Any) -> None:
    on(FAST)
    for given in ((), ("train.activation_checkpointing=full",)):
        first, rest = tuning.options_for(load_settings(PLAIN, given), ())
        assert "checkpointing" not in " ".join(values([*first, *rest]))
    assert "train.loss=chunked" in values(rest)
    for only in ("checkpointing", "train.activation_checkpointing=full"):
        _, rest = tuning.options_for(load_settings(PLAIN), (), only=[only])
        assert "train.activation_checkpointing=full" in values(rest)  # what it costs is asked for


def test_a_layout_whose_tokens_trials_do_not_count_is_not_varied() -> None:
    (option,) = options_of(["data.layout=bucket"], (), ["data.layout"], ("x",))
    with pytest.raises(UsageError, match="another number of tokens"):
        tuning.varied(option, load_settings(PLAIN))


def test_ways_to_compile_are_tried_where_the_machine_has_them(on: Any) -> None:
    def tried(machine: Machine, *given: str) -> list[str]:
        on(machine)
        rest = tuning.options_for(load_settings(PLAIN, given), ())[1]
        (ours,) = (each.values for each in rest if each.name == "train.compile")
        return [each.removeprefix("train.compile=") for each in ours]

    gpu = replace(FAST, device_type="cuda")
    assert sorted(tried(FAST)) == ["blocks", "false", "true"]
    both = ["blocks", "false", "max-autotune-no-cudagraphs", "true"]
    assert sorted(tried(gpu, "train.grad_accum_steps=2")) == both
    assert sorted(tried(gpu)) == sorted([*both, "max-autotune", "reduce-overhead"])


def test_kernels_of_attention_are_tried_where_they_may_be_faster(on: Any) -> None:
    def tried(machine: Machine, *given: str) -> set[str]:
        on(machine)
        rest = tuning.options_for(load_settings(PLAIN, given), ())[1]
        (ours,) = (each.values for each in rest if each.name == "train.attention")
        return {each.removeprefix("train.attention=") for each in ours}

    gpu = replace(FAST, device_type="cuda")
    assert tried(gpu) == {"sdpa", "plain", "flash", "efficient", "cudnn", "flex"}
    assert tried(gpu, "model.dropout=0.1") == {"sdpa", "plain", "flash", "efficient", "cudnn"}
    assert tried(gpu, "train.precision=fp32") == {"sdpa", "plain", "efficient", "flex"}
    assert tried(FAST) == {"sdpa", "plain"}
    assert "train.thread_binding=cores" in values(tuning.options_for(load_settings(PLAIN), ())[1])


def test_another_shape_is_shown_and_kept_only_where_it_is_accepted() -> None:
    assert tuning.shapes_for(load_settings(PLAIN), ()) == []
    assert tuning.shapes_for(load_settings(PLAIN, ["model.heads=8"]), ()) == []  # given
    settings = load_settings(PLAIN).with_values({"model.heads": 8}, origin="x.yaml:3")
    (shown,) = tuning.shapes_for(settings, ())
    assert shown.values == ("model.heads=6",)
    assert (shown.parity_class, shown.is_accepted) == ("changes_training", False)
    assert shown.accepting(*shown.values) == "--vary model.heads=6 --accept model.heads"
    assert shown.changes("model.heads=6", tuning.command_of(PLAIN, (), Path("x")))
    assert tuning.shapes_for(settings, ["model.heads"]) == []


def test_what_a_machine_cannot_do_is_not_tried(on: Any) -> None:
    on(SLOW)
    first, rest = tuning.options_for(load_settings(PLAIN), ())
    tried = " ".join(values([*first, *rest]))
    assert "bf16" not in tried
    assert "compile=true" not in tried


def test_settings_given_as_flags_or_varied_by_name_stay(on: Any) -> None:
    on(FAST)
    settings = load_settings(PLAIN, ["train.precision=fp32", "train.microbatch=8"])
    first, rest = tuning.options_for(settings, ["train.compile"])
    tried = " ".join(values([*first, *rest]))
    assert not {"precision", "microbatch", "compile"} & {*tried.replace("=", ".").split(".")}
    assert "optimizer.fused=true" in tried


def test_a_config_that_is_all_auto_is_the_stack_itself(on: Any) -> None:
    on(FAST)
    first, rest = tuning.options_for(load_settings(CONFIGS / "quickstart.yaml"), ())
    assert first == []
    command = tuning.command_of(CONFIGS / "quickstart.yaml", (), Path("x"))
    new = [v for option in rest for v in option.values if option.changes(v, command)]
    assert "train.precision=fp32" in new
    assert "train.precision=bf16" not in new


def test_words_take_the_place_of_those_before_and_change_what_they_change(on: Any) -> None:
    on(FAST)
    (auto,), rest = tuning.options_for(load_settings(PLAIN), ())
    command = tuning.command_of(PLAIN, ("train.steps=50",), Path("out"))
    assert command[-2:] == ("--out", "out")
    assert auto.changes(auto.values[0], command)
    kept, _ = auto.applied(command, {}, auto.values[0])
    assert not auto.changes(auto.values[0], kept)
    precision = next(each for each in rest if each.name == "train.precision")
    assert [v for v in precision.values if precision.changes(v, kept)] == ["train.precision=fp32"]
    back, _ = precision.applied(kept, {}, "train.precision=fp32")
    assert [each for each in back if each.startswith("train.precision")] == ["train.precision=fp32"]


def test_a_step_of_another_batch_is_compared_by_its_tokens(tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    config.write_bytes(PLAIN.read_bytes())
    settings = load_settings(config, ["train.microbatch=2"])
    command = tuning.command_of(config, ("train.microbatch=2",), Path("out"))
    arm = Arm("baseline", command, "step_clock")
    config.write_text("edited meanwhile, which no trial sees")
    assert tuning.with_tokens(arm, settings=settings).tokens_per_step == 2 * 256
    larger = replace(arm, command=(*command, "train.grad_accum_steps=3"))
    assert tuning.with_tokens(larger, settings=settings).tokens_per_step == 6 * 256
    wrong = replace(arm, command=(*command, "train.grad_accum_steps=-3"))
    assert tuning.with_tokens(wrong, settings=settings).tokens_per_step is None


@pytest.mark.parametrize(
    ("name", "parity", "told"),
    [
        ("train.precision", "reduced_precision", None),
        ("train.microbatch", "changes_training", None),
        ("eval.every_steps", "bitwise", None),
        ("train.num_threads", "reduction_order", None),
        ("model.hidden", "bitwise", "bitwise"),
    ],
)
def test_what_a_setting_may_change_is_known(name: str, parity: str, told: str | None) -> None:
    classes = (f"{name}={told}",) if told else ()
    (option,) = options_of((f"{name}=1,2",), classes, (), ("x",))
    words = tuning.varied(option, load_settings(PLAIN))
    assert (words.parity_class, words.values) == (parity, (f"{name}=1", f"{name}=2"))


def test_the_written_config_says_what_showed_each_kept_value(on: Any, tmp_path: Path) -> None:
    on(FAST)
    verdict = Verdict(
        "improved", 2.0, 1.9, 2.1, 0.95, Parity("same", "bitwise"), "baseline", "auto", num_pairs=4,
    )  # fmt: skip
    kept = TriedFix("auto", "train.precision=bf16 train.compile=true", "kept", "faster")
    dropped = TriedFix("optimizer.fused=true", "optimizer.fused=true", "rejected", "slower")
    ledger = Ledger(("x",), (kept, dropped), ("auto",), verdict, 3, 10, 1.0, None)
    store_settings(
        tuning.tuned(load_settings(PLAIN, ["train.steps=700"]), ledger, Path("runs/tune-x")),
        tmp_path / "tuned.yaml",
    )
    settings = load_settings(tmp_path / "tuned.yaml")
    whole = "2.00x (1.90 to 2.10, 4 pairs) with all tuned settings"
    origin = f"tuned: {whole}, runs/tune-x/ledger.json"
    assert settings.origin("train.precision") == settings.origin("train.compile") == origin
    soaked = replace(ledger, soaked="40 steps with an evaluation and a save")
    found = tuning.tuned(load_settings(PLAIN), soaked, Path("runs/tune-x"))
    told = " with all tuned settings, soaked (40 steps with an evaluation and a save), runs/tune-x/"
    assert told in found.origin("train.precision")
    alone = replace(verdict, ratio=1.1, ratio_low=1.05, ratio_high=1.15)
    fixes = replace(kept, verdict=verdict), replace(dropped, status="kept", added=alone)
    both = replace(ledger, fixes=fixes, kept=("auto", "optimizer.fused=true"))
    found = tuning.tuned(load_settings(PLAIN), both, Path("runs/tune-x"))
    assert found.origin("train.precision") == found.origin("name") == origin
    own = "1.10x (1.05 to 1.15, 4 pairs) by optimizer.fused=true"
    assert found.origin("optimizer.fused") == f"tuned: {own}, {whole}, runs/tune-x/ledger.json"
    values = settings.config.flat()
    assert (values["train.precision"], values["train.compile"]) == ("bf16", True)
    # A run of its own, also where what is tuned was written by this.
    own = f"{load_settings(PLAIN).config.name}-tuned"
    again = tuning.tuned(settings, ledger, Path("runs/tune-x"))
    assert [settings.config.name, again.config.name] == [own, own]
    assert (values["train.steps"], values["optimizer.fused"]) == (700, False)
    assert settings.origin("optimizer.fused").endswith("quickstart-plain.yaml:24")


def test_a_value_with_the_name_of_its_arm_is_not_taken_for_a_live_form(
    on: Any, tmp_path: Path
) -> None:
    on(FAST)
    (auto,), _ = tuning.options_for(load_settings(PLAIN), ())
    nothing_found = Diagnosis("balanced", Steps(9, 1, 0.1))
    fix = value_of(auto, auto.values[0], nothing_found, None)
    (tmp_path / "pair-01-a-auto/run").mkdir(parents=True)
    verdict = Verdict(
        "improved", 2.0, 1.9, 2.1, 0.95, Parity("same", "bitwise"), "baseline", "auto", num_pairs=4,
    )  # fmt: skip
    result = SessionResult(verdict, (), (), tmp_path)
    assert judged(result, fix, is_live=False)[0] == "kept"
    assert judged(result, fix)[0] == "not_applied"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["no.yaml"], "no such config file"),
        (["plain.yaml", "--vary", "train.precison=bf16"], "train.precison"),
        (["plain.yaml", "--vary", "train.microbatch=0"], "train.microbatch"),
        (["plain.yaml", "train.clip=fused", "--vary", "train.clip=builtin"], "varied and given"),
        (["plain.yaml", "--out", "tuned"], "is no config"),
        (["--out", "plain.yaml", "plain.yaml"], "is the config to tune"),
        (["--out", "no/tuned.yaml", "plain.yaml"], "cannot be written"),
        (["--out", "mine.yaml", "plain.yaml"], "no config that hotloop wrote"),
        (["plain.yaml", "--accept", "train.microbatch"], "nothing to vary"),
        (["plain.yaml", "--ranks", "2"], "cannot be shared evenly by 2 processes"),
        (["plain.yaml", "--ranks", "2", "--vary", "train.grad_accum_steps=3"], "3 microbatches cannot be shared evenly"),
        (["--ranks", "2", "--", "python", "train.py"], "--ranks is of a CONFIG"),
        ([], "nothing to tune was given"),
    ],
)  # fmt: skip
def test_bad_input_is_told_before_anything_runs(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    (tmp_path / "plain.yaml").write_bytes(PLAIN.read_bytes())
    (tmp_path / "mine.yaml").write_text("# precious")
    monkeypatch.chdir(tmp_path)
    assert run(["tune", *words]) == ExitCode.USAGE
    assert said in capfd.readouterr().err
    assert {each.name for each in Path().iterdir()} == {"plain.yaml", "mine.yaml"}
    assert Path("mine.yaml").read_text() == "# precious"


CONFIG = """
name: tiny
data: {source: python-stdlib, tokenizer: bytes}
model: {layers: 1, width: 32, heads: 2, context: 32}
train: {steps: 400, microbatch: 4}
eval: {every_steps: 1, windows: 256}
"""


@pytest.mark.parametrize("command", [["tune"], ["bench", "effectiveness"]])
@pytest.mark.parametrize(("words", "num"), [([], 1), (["data.stream=true"], 0)])
def test_text_is_prepared_before_the_first_process_that_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], words: list[str], num: int
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    Path("text.txt").write_text("\n".join(f"line {number} of a text" for number in range(999)))
    Path("tiny.yaml").write_text(CONFIG.replace("python-stdlib", "text.txt"))
    prepared: list[Path] = []

    def examined(*given: Any, **how: Any) -> Any:
        prepared.extend(Path("cache").rglob("manifest.json"))
        raise UsageError("that is all")

    monkeypatch.setattr(doctor_session, "examined_command", examined)
    assert run([*command, "tiny.yaml", *words]) == ExitCode.USAGE
    assert len(prepared) == num


def test_ranks_read_the_same_words_and_a_step_is_that_of_all(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(
        "\n".join(f"line {number} of a text" for number in range(999))
    )
    config = tmp_path / "tiny.yaml"
    config.write_text(CONFIG.replace("python-stdlib", str(tmp_path / "text.txt")))
    pinned = {each.key: each.off for each in CONFIGURED.values()} | {tuning.OF_SEVERAL: "bf16"}
    words = [f"{key}={tuning._text(value)}" for key, value in pinned.items()]
    words += ["train.grad_accum_steps=2", "eval.every_steps=0"]
    command = tuning.command_of(config, words, tmp_path / "out", ranks=2)
    arm = Arm("two", command, "step_clock")
    arm = tuning.with_tokens(arm, settings=load_settings(config, words))
    made = measure(
        arm, directory=tmp_path / "trial", plan=Plan(2, 6, 300.0), seed="", cache=tmp_path / "c",
        workdir=None,
    )  # fmt: skip
    assert [each.tokens for each in made.records] == [2 * 4 * 32] * 8
    ranks = [[*read_steps(each)] for each in sorted((tmp_path / "trial/run").glob("steps-?.jsonl"))]
    assert [len(each) for each in ranks] == [8, 8]
    for one, other in zip(*ranks):  # each has its share of the loss
        assert one.loss != other.loss
    assert not (tmp_path / "out").joinpath("checkpoints").exists()


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_config_is_tuned_written_and_trained_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any, ranks: int
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(CONFIG)
    pinned = [f"{each.key}={tuning._text(each.off)}" for each in CONFIGURED.values()]
    words = [*pinned, "train.num_threads=1", "train.microbatch=4", "checkpoint.every_steps=0"]
    words += [f"train.grad_accum_steps={ranks}"]
    call = ["tune", "tiny.yaml", *words, "--vary", "eval.every_steps=0", "--budget", "none"]
    call += ["--ranks", str(ranks)]
    assert run(call) == ExitCode.FINE
    said = capfd.readouterr().err
    launched = "torchrun --standalone --nproc-per-node=2 -m " if ranks > 1 else ""
    assert f"run it with: {launched}hotloop train tuned.yaml" in said
    assert "1 of 1" in said
    settings = load_settings(Path("tuned.yaml"))
    assert settings.origin("eval.every_steps").startswith("tuned: ")
    assert settings.config.flat()["eval.every_steps"] == 0
    assert [each.name for each in Path("runs").iterdir()] == ["tune-tiny"]
    made = {each: each.stat().st_mtime_ns for each in Path("runs").rglob("measurement.json")}
    seen = load_measurement(Path("runs/tune-tiny/measurement.json")).census
    assert seen is not None
    assert seen.planned_steps == 400

    Path("tuned.yaml").unlink()
    ledger, page = Path("runs/tune-tiny/ledger.json"), Path("runs/tune-tiny/report.html")
    found = read_json(ledger, Ledger)
    ledger.unlink()
    page.unlink()

    def late(runner: Any, *given: Any, **rest: Any) -> Ledger:
        Path("tuned.yaml").mkdir()
        return TrialRunner.ledger(runner, *given, **rest)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(OptionRunner, "ledger", late)
        assert run([*call, "--json", "found.json"]) == ExitCode.ENVIRONMENT
    said = capfd.readouterr().err
    assert "cannot write" in said
    assert f"run it with: {launched}hotloop train tuned.yaml" in said
    assert read_json(ledger, Ledger).together == found.together
    assert page.is_file()
    assert json.loads(Path("found.json").read_text())["kept"] == list(found.kept)

    Path("tuned.yaml").rmdir()
    Path("other.yaml").write_text(CONFIG.replace("name: tiny", "name: other"))
    for config in ("tiny.yaml", "other.yaml"):  # nothing is measured again
        assert run(["tune", config, *call[2:]]) == ExitCode.FINE
        assert "this work was tuned before" in capfd.readouterr().err
        settings = load_settings(Path("tuned.yaml"))
        assert settings.origin("eval.every_steps").startswith("tuned: ")
    assert settings.config.name == "other-tuned"
    assert {
        each: each.stat().st_mtime_ns for each in Path("runs").rglob("measurement.json")
    } == made
