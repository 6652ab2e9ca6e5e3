"""`hotloop tune CONFIG` and `hotloop bench effectiveness CONFIG` of a fine-tuning."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from decoders import save_decoder, write_prompts
from encoders import save_encoder, write_conll, write_csv
from torch import nn

from hotloop.cli import doctor_session
from hotloop.cli.main import run
from hotloop.cli.tune_config import of_config
from hotloop.core.child import GIVEN, NO_DROPOUT, STEP_CLOCK_SAMPLES
from hotloop.core.errors import ExitCode, UsageError
from hotloop.core.files import read_json
from hotloop.core.judgement import Diagnosis, Steps
from hotloop.core.ledger import Ledger
from hotloop.core.settings import load_settings, load_stored
from hotloop.core.step import read_steps
from hotloop.hardware.limits import Machine
from hotloop.optimizations.catalogue import CONFIGURED
from hotloop.trial import no_dropout
from hotloop.trial.arm import Arm
from hotloop.tune import settings as tuning
from hotloop.tune.options import options_of
from hotloop.tune.runner import value_of

CONFIGS = Path(__file__).parents[2] / "configs"
FAST = Machine("cpu", ("bfloat16",), None, 4)
GPU = Machine("cuda", ("bfloat16",), None, 4)
PLAIN = """
name: tweets
task: classification
data: {file: tweets.csv}
model: {path: bert, packed: false}
train: {epochs: 3, microbatch: 16, precision: fp32, compile: false}
optimizer: {fused: false}
"""
AS_GIVEN = ("train.precision", "train.compile", "optimizer.fused")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a fine-tuning of a small BERT, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    save_encoder("bert", tmp_path / "bert")
    write_csv(tmp_path / "tweets.csv")
    Path("tweets.yaml").write_text(PLAIN)
    return Path("tweets.yaml")


def options(
    config: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch, *words: str
) -> tuple[list[tuning.Words], dict[str, tuple[str, ...]]]:
    monkeypatch.setattr(tuning, "machine_for", lambda settings, ranks=1: machine)
    first, rest = tuning.options_for(load_stored(config, words), ())
    return first, {each.name: each.values for each in rest}


def test_what_applies_to_a_fine_tuning_is_tried_and_nothing_else(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (auto,), rest = options(config, FAST, monkeypatch)
    assert {"train.precision=bf16", "optimizer.fused=true"} <= {*auto.values[0].split()}
    assert "model.packed=true" in auto.values[0]
    assert "train.compile=true" not in auto.values[0]
    layouts = ("model.packed=true", "model.packed=buckets", "model.packed=false")
    assert rest["model.packed"] == layouts
    assert {*rest["train.compile"]} == {"train.compile=true", "train.compile=false"}
    assert "train.precision=bf16" in rest["train.precision"]
    assert "train.num_threads=2" in rest["train.num_threads"]
    assert "train.microbatch=8 train.grad_accum_steps=2" in rest["split"]
    # Those of models that are hotloop's own.
    assert not {*rest} & {"train.attention", "train.gelu", "train.loss"}
    assert tuning.shapes_for(load_stored(config), ()) == []
    _, rest = options(config, GPU, monkeypatch)
    assert {*rest["train.compile"]} == {"train.compile=true", "train.compile=false"}
    _, rest = options(config, FAST, monkeypatch, "model.packed=true", "train.microbatch=8")
    assert not {*rest} & {"model.packed", "split"}  # given, so they stay


def test_layout_alone_is_what_the_rest_is_tried_on_top_of(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [f"{each.key}=auto" for each in CONFIGURED.values() if each.key in AS_GIVEN]
    (auto,), _ = options(config, FAST, monkeypatch, *words)
    assert (auto.values, auto.parity_class) == (("model.packed=true",), "reduction_order")
    assert auto.reshapes
    first, rest = options(config, FAST, monkeypatch, *words, "model.packed=true")
    assert (first, "model.packed" in rest) == ([], False)
    option = tuning.varied(options_of(("model.packed=true",), (), (), ("x",))[0], load_stored(config))  # fmt: skip
    assert (option.parity_class, option.reshapes) == ("reduction_order", True)


def test_a_layout_that_auto_chooses_is_measured_beside_the_others(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text(PLAIN.replace("packed: false", "packed: auto"))
    (auto,), rest = options(config, FAST, monkeypatch)
    assert "model.packed" not in auto.values[0]
    assert rest["model.packed"] == ("model.packed=buckets", "model.packed=false")


def test_every_value_is_one_that_the_training_takes(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for machine in (FAST, GPU):
        first, rest = options(config, machine, monkeypatch)
        for value in (*first[0].values, *(v for each in rest.values() for v in each)):
            found = load_stored(config, value.split())  # raises where it is none
            assert all(found.origin(each.partition("=")[0]) == "flag" for each in value.split())


def test_work_of_a_step_is_counted_in_examples(config: Path) -> None:
    settings = load_stored(config, ["train.microbatch=4"])
    arm = Arm("a", tuning.command_of(config, ("train.microbatch=4",), Path("out")), "step_clock")
    found = tuning.with_tokens(arm, settings=settings)
    assert (found.samples_per_step, found.tokens_per_step) == (4, None)
    assert STEP_CLOCK_SAMPLES in found.env


@pytest.mark.parametrize(
    ("name", "reshapes"),
    [("model.packed", True), ("split", True), ("train.precision", False), ("auto", True)],
)
def test_losses_of_other_shapes_are_compared_without_dropout(
    config: Path, name: str, reshapes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "machine_for", lambda settings, ranks=1: FAST)
    first, rest = tuning.options_for(load_stored(config), ())
    option = next(each for each in (*first, *rest) if each.name == name)
    fix = value_of(option, option.values[0], Diagnosis("balanced", Steps(9, 1, 0.1)), None)
    assert fix.technique.reshapes == reshapes


@pytest.mark.parametrize(("words", "reshapes"), [([], False), (["model.dropout=0.1"], True)])
def test_dropout_of_text_is_drawn_otherwise_in_other_microbatches_where_it_has_some(
    words: list[str], reshapes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "machine_for", lambda settings, ranks=1: FAST)
    _, rest = tuning.options_for(load_settings(CONFIGS / "quickstart-plain.yaml", words), ())
    assert next(each for each in rest if each.name == "split").reshapes == reshapes
    assert not next(each for each in rest if each.name == "train.compile").reshapes


@pytest.fixture
def without_dropout(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a trial, put back at the end."""
    for name in no_dropout._FUNCTIONS:
        monkeypatch.setattr(nn.functional, name, getattr(nn.functional, name))
    monkeypatch.setattr(nn.RNNBase, "__init__", nn.RNNBase.__init__)
    monkeypatch.setenv(NO_DROPOUT, "1")
    no_dropout.install_from_environment()
    yield
    assert os.environ[NO_DROPOUT]


def losses(words: list[str], out: str) -> list[float]:
    assert run([*words, "--out", out, "--stop-after", "8"]) == 0
    found = [each.loss for each in read_steps(Path(out) / "steps.jsonl")]
    assert len(found) == 8
    return [each for each in found if each is not None]


@pytest.mark.usefixtures("without_dropout")
@pytest.mark.parametrize("kind", ["classification", "tokens", "instructions"])
def test_layouts_learn_the_same_but_for_what_dropout_draws(
    kind: str, config: Path, tmp_path: Path
) -> None:
    words = ["train", "--task", kind, "--data", "tweets.csv", "--model", "bert"]
    if kind == "tokens":
        words[4] = str(write_conll(tmp_path / "a.conll"))
    if kind == "instructions":  # GPT-2 drops, too
        words[4] = str(write_prompts(tmp_path / "a.jsonl"))
        words[6] = str(save_decoder("gpt2", tmp_path / "gpt2"))
    words += ["train.precision=fp32", "train.microbatch=8", "train.steps=8"]
    padded = losses([*words, "model.packed=false"], "padded")
    assert len({*padded}) == 8
    for layout in ("true", "buckets"):
        own = [f"model.packed={layout}"]
        assert losses([*words, *own], layout) == pytest.approx(padded, rel=1e-5)
        kept = {"true": "packed", "buckets": "length buckets"}[layout]
        assert json.loads(Path(layout, "census.json").read_text())["loader"]["layout"] == kept
    halves = ["train.microbatch=4", "train.grad_accum_steps=2"]
    assert losses([*words, *halves], "halves") == pytest.approx(padded, rel=1e-5)


@pytest.mark.usefixtures("without_dropout")
def test_text_in_other_microbatches_learns_the_same_but_for_what_dropout_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    Path("text.txt").write_text("\n".join(f"line {number} of a text" for number in range(999)))
    Path("text.yaml").write_text(
        "data: {source: text.txt, tokenizer: bytes}\n"
        "model: {layers: 1, width: 32, heads: 2, context: 32, dropout: 0.2}\n"
        "train: {steps: 200, precision: fp32, compile: false}\n"
    )
    whole, halves = (
        losses(["train", "text.yaml", f"train.microbatch={n}", f"train.grad_accum_steps={8 // n}"], str(n))
        for n in (8, 4)
    )  # fmt: skip
    assert halves == pytest.approx(whole, rel=1e-5)
    assert len({*whole}) == 8


def test_examples_of_each_step_are_told_to_the_clock(config: Path) -> None:
    told: list[int] = []
    GIVEN.append(told.append)
    try:
        assert run(["train", str(config), "--out", "run", "--stop-after", "8"]) == 0
    finally:
        GIVEN.remove(told.append)
    assert told == [16] * 6 + [
        12,
        16,
    ]  # 108 to train on: the last step of an epoch takes what is left


def test_tokens_of_each_layout_are_told_before_anything_is_timed(
    config: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    seen: list[Path] = []

    def examined(*given: Any, **how: Any) -> Any:
        seen.extend(Path("cache").rglob("tokens.safetensors"))
        raise UsageError("that is all")

    monkeypatch.setattr(doctor_session, "examined_command", examined)
    for words in (["tune"], ["bench", "effectiveness"]):
        assert run([*words, str(config)]) == ExitCode.USAGE
        said = capfd.readouterr().err
        assert "that is all" in said
        assert "tokens a step in the mean of" in said
        assert len(seen) == 2  # of both parts, in the cache before the first process that is timed
        seen.clear()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (PLAIN.replace("tweets.csv", "gone.csv"), "no such file"),
        (PLAIN.replace("path: bert", "path: ./gone"), "no such model directory"),
        (PLAIN.replace("fp32", "fp31"), "train.precision"),
        ("task: module\ndata: {}\nmodel: {}\n", "this is the config of a `hotloop.fit`"),
    ],
)
def test_what_a_fine_tuning_cannot_begin_with_is_told_before_anything_runs(
    text: str, said: str, config: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config.write_text(text)
    for words in (["tune"], ["bench", "effectiveness"]):
        assert run([*words, str(config)]) == ExitCode.USAGE
        assert said in capfd.readouterr().err
    assert not Path("runs").exists()


def test_several_processes_of_a_fine_tuning_are_refused(config: Path, capfd: Any) -> None:
    assert run(["tune", str(config), "--ranks", "2"]) == ExitCode.USAGE
    assert "a fine-tuning is of one process" in capfd.readouterr().err
    assert not Path("runs").exists()


def test_setting_that_is_varied_is_one_of_a_fine_tuning(config: Path, capfd: Any) -> None:
    assert run(["tune", str(config), "--vary", "data.source=x"]) == ExitCode.USAGE
    assert "unknown key `data.source`" in capfd.readouterr().err
    (option,) = options_of(("train.microbatch=32",), (), (), ("x",))
    assert tuning.varied(option, load_stored(config)).parity_class == "changes_training"


def test_examples_and_model_of_a_fine_tuning_are_part_of_what_was_tuned_before(
    config: Path,
) -> None:
    def file_of(*words: str) -> Path:
        given: dict[str, tuple[str, ...]] = dict.fromkeys(
            ("vary", "parity", "accept", "accumulate_with"), ()
        )
        asked = of_config((str(config), *words), None, given, 600.0)
        assert asked.earlier is not None
        return asked.earlier.file

    before = file_of()
    shutil.copy("tweets.csv", "copy.csv")
    assert file_of("data.file=copy.csv", "train.epochs=1", "name=b") == before
    assert file_of("model.max_tokens=16") != before
    Path("copy.csv").write_text(Path("tweets.csv").read_text().replace(" ", " more ", 5))
    assert file_of("data.file=copy.csv") != before
    made_for = Path("bert/config.json")
    made_for.write_text(made_for.read_text() + "\n")
    assert file_of() != before


@pytest.mark.slow
def test_a_fine_tuning_is_tuned_written_and_trained_with(config: Path, capfd: Any) -> None:
    longer = PLAIN.replace("epochs: 3", "epochs: 60")
    config.write_text(longer + "eval: {every_steps: 1}\ncheckpoint: {every_steps: 0}\n")
    pinned = [f"{each.key}={tuning._text(each.off)}" for each in CONFIGURED.values()]
    pinned += ["model.packed=true", "train.num_threads=1", "train.microbatch=16"]
    call = ["tune", str(config), *pinned, "--budget", "none"]
    call += ["--vary", "eval.every_steps=0"]
    assert run(call) == ExitCode.FINE
    said = capfd.readouterr().err
    assert "run it with: hotloop train tuned.yaml" in said
    found = read_json(Path("runs/tune-tweets/ledger.json"), Ledger)
    assert found.together is not None
    assert found.together.unit == "sample"
    settings = load_stored(Path("tuned.yaml"))
    assert settings.origin("eval.every_steps").startswith("tuned: ")
    assert settings.config.flat()["task"] == "classification"
    made = {each: each.stat().st_mtime_ns for each in Path("runs").rglob("measurement.json")}
    Path("tuned.yaml").unlink()
    assert run(call) == ExitCode.FINE  # nothing is measured again
    assert {e: e.stat().st_mtime_ns for e in Path("runs").rglob("measurement.json")} == made
    capfd.readouterr()
    assert run(["train", "tuned.yaml", "train.epochs=2", "--out", "run"]) == ExitCode.FINE
    assert "the model, for transformers' from_pretrained" in capfd.readouterr().out
    assert Path("run/model/config.json").is_file()


@pytest.mark.slow
def test_layouts_of_a_fine_tuning_are_measured_and_learn_the_same(config: Path) -> None:
    Path("tweets.yaml").write_text(PLAIN.replace("epochs: 3", "epochs: 60"))
    call = ["bench", "effectiveness", str(config), "train.num_threads=1"]
    call += ["--only", "model.packed", "--only", "split", "--pairs", "4", "--budget", "none"]
    assert run([*call, "--json", "found.json"]) == ExitCode.FINE
    found = json.loads(Path("found.json").read_text())
    rows = {each["name"]: each["verdict"] for each in found["rows"]}
    assert {*rows} >= {"model.packed=true", "model.packed=buckets"}
    assert len(rows) == 5  # with three splits of a step of 16
    for each in rows.values():
        assert (each["unit"], each["num_pairs"]) == ("sample", 4)
        assert each["parity"]["parity_class"] == "other_draws"
        assert each["parity"]["result"] == "within_noise"
        assert each["parity"]["reason"].startswith("without dropout its losses are")


def test_larger_microbatch_of_a_fine_tuning_is_soaked_and_has_no_checkpointing_beside_it(
    config: Path,
) -> None:
    settings = load_stored(config)
    (named,) = options_of(("train.microbatch=32",), (), (), ("x",))
    option, (value,) = tuning.varied(named, settings), ("train.microbatch=32",)
    command = tuning.command_of(config, (), Path("out"))
    assert option.saving(value, command) is None
    soak = option.soak(value)
    assert soak is not None
    assert soak.steps == 40
    assert soak.said.startswith("40 steps, the longest rows first, with ")
    soaked = load_stored(config, [value, *soak.words.split()]).config
    assert soaked.train.steps > soak.steps > soaked.eval.every_steps > 0
