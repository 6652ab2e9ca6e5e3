"""`hotloop train --task classification`, from a file of texts to a directory that transformers loads."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from encoders import rows, save_encoder, tokenizer, write_csv

import warm_python
from hotloop.cli.main import run as run_here
from hotloop.core.causal_config import CausalConfig
from hotloop.core.config import RunConfig, known_keys
from hotloop.core.errors import UsageError
from hotloop.core.finetune_config import ExamplesConfig, FinetuneConfig
from hotloop.core.module_config import ModuleConfig
from hotloop.core.step import read_steps
from hotloop.finetune.examples import Examples, read_dataset, split
from hotloop.finetune.job import settings_of
from hotloop.finetune.scores import accuracy, class_scores, counts_of, mean_f1
from hotloop.finetune.tokens import tokenized

Run = Callable[..., str]
FAST = ["optimizer.learning_rate=2e-3", "train.microbatch=8", "logging.tensorboard=false"]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    data, model = write_csv(tmp_path / "tweets.csv"), save_encoder("bert", tmp_path / "bert")
    return ["train", "--task", "classification", "--data", str(data), "--model", str(model), *FAST]


def test_texts_become_a_model_that_transformers_loads_and_that_has_learned(
    job: list[str], tmp_path: Path, run: Run
) -> None:
    said = run(
        [*job, "train.epochs=12", "optimizer.learning_rate=5e-3", "--out", str(tmp_path / "run")]
    )
    task = json.loads((tmp_path / "run/task.json").read_text())
    assert task["accuracy"] > 0.8
    assert f"accuracy {task['accuracy']:.4f}" in said
    assert task["classes"] == ["bad", "good", "so-so"]
    assert "14 steps of 8 examples an epoch, 168 steps in 12 epochs" in said
    assert "not packed" not in said
    assert "attention_mask" not in said  # transformers 4 recommends one for what seems padded

    place = tmp_path / "run/model"
    model = transformers.AutoModelForSequenceClassification.from_pretrained(place).eval()
    own = transformers.AutoTokenizer.from_pretrained(place)
    assert model.config.id2label == {0: "bad", 1: "good", 2: "so-so"}
    texts, labels = zip(*rows(), strict=True)
    held_out = split(Examples(texts, labels, lines=tuple(range(len(texts)))), 0.1, 0)[1]
    with torch.no_grad():
        answers = [
            model.config.id2label[int(model(**own(text, return_tensors="pt")).logits.argmax())]
            for text in held_out.texts
        ]
    right = sum(a == b for a, b in zip(answers, held_out.labels, strict=True))
    assert right / len(answers) == task["accuracy"]


def test_killed_with_minus_9_it_continues_to_the_same_bits(
    job: list[str], tmp_path: Path, run: Run
) -> None:
    often = [
        "train.epochs=2",
        "eval.every_steps=7",
        "checkpoint.every_steps=5",
        "checkpoint.background=false",
    ]
    job += often
    run([*job, "--out", str(tmp_path / "whole")])
    killed = {
        "arguments": [*job, "--out", str(tmp_path / "cut")],
        "at": "update",
        "nth": 19,
        "signals": ["SIGKILL"],
    }
    program = Path(__file__).parents[1] / "train/interrupted_program.py"
    ended = warm_python.run(
        [str(program), json.dumps(killed)], env=os.environ, cwd=tmp_path, trainer=True
    )
    assert ended.returncode == -9, ended.stderr
    assert len(list(read_steps(tmp_path / "cut/steps.jsonl"))) < 28
    run([*job, "--out", str(tmp_path / "cut")])
    for name in ("model/model.safetensors", "evals.jsonl", "task.json"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    losses = [[r.loss for r in read_steps(tmp_path / d / "steps.jsonl")] for d in ("cut", "whole")]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 28
    assert "already finished" in run([*job, "--out", str(tmp_path / "cut")])
    assert "holds a run" in run([*job, "data.seed=1", "--out", str(tmp_path / "cut")], code=2)


def test_a_run_with_weights_of_classes_is_not_continued_with_fewer(
    job: list[str], tmp_path: Path, run: Run
) -> None:
    job += ["train.steps=1", "--out", str(tmp_path / "run")]
    weights = "train.class_weights={bad: 2.0, good: 3.0}"
    run([*job, weights])
    for fewer in ("train.class_weights={bad: 2.0}", "train.class_weights={}", "name=without"):
        said = run([*job, fewer], code=2)
        assert re.search(r"a run with `train.class_weights.\w+: [23].0`, not None", said)
    assert "already finished" in run([*job, weights])


def test_model_that_cannot_be_packed_is_trained_in_buckets_and_says_so(
    job: list[str], tmp_path: Path, run: Run
) -> None:
    job[6] = str(save_encoder("xlnet", tmp_path / "xlnet"))
    said = run([*job, "train.epochs=1", "--out", str(tmp_path / "run")])
    assert "XLNetForSequenceClassification is not packed: it takes no position ids" in said
    assert (tmp_path / "run/model/model.safetensors").exists()


def test_every_example_is_taken_once_an_epoch(job: list[str], tmp_path: Path, run: Run) -> None:
    run([*job, "train.epochs=2", "--out", str(tmp_path / "run")])
    steps = list(read_steps(tmp_path / "run/steps.jsonl"))
    assert [step.samples for step in steps] == ([8] * 13 + [4]) * 2
    first, second = (sum(s.tokens for s in part) for part in (steps[:14], steps[14:]))
    assert first == second


def test_texts_are_tokenized_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path))
    made, calls = tokenizer(), []

    def counted(texts: list[str], **named: Any) -> Any:
        calls.append(len(texts))
        return made(texts, **named)

    examples = Examples(*map(tuple, zip(*rows(25), strict=True)))
    first = tokenized(counted, "one", examples, 32)
    again = tokenized(counted, "one", examples, 32)
    assert calls == [25]
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    tokenized(counted, "one", examples, 16)
    tokenized(counted, "other", examples, 32)
    assert calls == [25, 25, 25]


HEADER = "text,label\n"
GOOD = HEADER + "a film,good\nno film,bad\n" * 10


@pytest.mark.parametrize(
    ("content", "settings", "wanted"),
    [
        ("tweet,label\nx,y\n", {}, r"no column `text`\n.*\n.*there: `tweet`, `label`"),
        ("text;label\nx;y\n", {}, r"only one column is found, `text;label`"),
        (HEADER + " ,good\n,bad\n", {}, r"no example has a text"),
        (HEADER, {}, r"no examples in this file"),
        (HEADER + "x,good\ny,good\n", {}, r"all examples have the label `good`"),
        (GOOD + "x,\n", {}, r"no label\n.*:22"),
        (GOOD + "x,NaN\n", {}, r"no label \(`NaN`\)\n.*:22"),
        (
            GOOD,
            {"held_out": "other.csv"},
            r"have the label `odd`, which no training example has\n.*other.csv:3\n",
        ),
        (HEADER + "x,good\ny,bad\nNaN,bad\n", {}, r"no text \(`NaN`\)\n.*:4, column `text`"),
        (HEADER + "x,good\n", {}, r"have the label `good`.*\n.*\n.*or add examples of another"),
        ("text;label\nx;good\n", {}, r"`text;label`, with ',' .*\n.*:1\n.*`'data.delimiter=;'`"),
        ("text\tlabel\nx\tgood\n", {}, r"only one column .*\n.*:1\n.*`data.delimiter=tab`"),
        (GOOD, {"held_out": "gone.csv"}, r"no such file of examples"),
        (b"text,label\n\xff,good\n", {}, r"not UTF-8 text"),
        ('text,label\n"x,good\n', {}, r"damaged csv"),
        (HEADER + "".join(f"t{n},{n}\n" for n in range(50)), {}, r"that is no column of labels"),
    ],
)
def test_bad_examples_are_one_clear_error(
    content: str | bytes,
    settings: dict[str, Any],
    wanted: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "data.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    (tmp_path / "other.csv").write_text(HEADER + "x,good\nx,odd\n")
    with pytest.raises(UsageError, match=wanted):
        read_dataset(ExamplesConfig(file=str(path), **settings))


def test_tsv_and_jsonl_hold_the_same_examples_and_empty_texts_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("label\ttext\ngood\tone, two\nbad\tthree\nbad\t \n" * 1)
    lines = [
        {"text": "one, two", "label": "good"},
        {"text": "three", "label": "bad"},
        {"text": None, "label": "bad"},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "a.csv").write_bytes((tmp_path / "a.tsv").read_bytes())
    words = [
        "task=classification",
        f"data.file={tmp_path / 'a.csv'}",
        "model.path=x",
        "data.held_out=0",
    ]
    for typed in ("tab", r"\t"):
        config = settings_of("classification", None, [*words, f"data.delimiter={typed}"]).config
        assert read_dataset(config.data).train.texts == ("one, two", "three")
    for name, numbers in (("a.tsv", (2, 3)), ("a.jsonl", (1, 2))):
        path = str(tmp_path / name)
        found = read_dataset(ExamplesConfig(file=path, held_out=0.0)).train
        assert found == Examples(("one, two", "three"), ("good", "bad"), 1, path, numbers)


def test_bad_models_are_one_clear_error(job: list[str], tmp_path: Path, run: Run) -> None:
    place = tmp_path / "bert"
    out = ["--out", str(tmp_path / "run")]
    said = run([*job, "model.max_tokens=200", *out], code=2)
    assert "reads at most 140 tokens" in said
    whole, weights = (place / "tokenizer.json").read_bytes(), place / "model.safetensors"
    for name in ("tokenizer.json", "tokenizer_config.json"):  # without both transformers makes one
        (place / name).unlink()
        assert "no tokenizer that knows any words" in run([*job, *out], code=2)
    (place / "tokenizer.json").write_bytes(whole)
    greek = tmp_path / "greek.csv"
    greek.write_text(
        "text,label\n"
        + "\u03b1\u03b2 \u03b3 a,x\n\u03b4\u03b5 \u03b6 \u03b7 \u03b8 \u03b9 \u03ba \u03bb \u03bc \u03bd \u03be,y\n"
        * 20
    )
    said = run([*job[:4], str(greek), *job[5:], *out], code=2)
    assert (
        "216 of the 234 tokens of these texts are unknown to the model's tokenizer (`[UNK]`)\n  at "
        in said
    )
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "copy the directory again" in run([*job, *out], code=2)
    job[4] = "gone.csv"  # the model is looked at first
    weights.rename(place / "pytorch_model.bin")
    assert "pytorch_model.bin, a pickle" in run([*job, *out], code=2)
    for zipped in (True, False):  # by another name
        torch.save({"weight": torch.ones(300)}, weights, _use_new_zipfile_serialization=zipped)
        assert f"only {weights.name}, a pickle" in run([*job, *out], code=2)
    (place / "config.json").unlink()
    assert "it has no config.json" in run([*job, *out], code=2)
    job[6] = str(tmp_path / "nowhere")
    assert "no such model directory" in run([*job, *out], code=2)
    job[6] = str(save_encoder("bert", tmp_path / "again"))
    assert "gone.csv\n  check the path" in run([*job, *out], code=2)


def test_settings_that_do_not_fit_are_one_clear_error(
    job: list[str], tmp_path: Path, run: Run
) -> None:
    out = ["--out", str(tmp_path / "run")]
    assert "leaves nothing of `train.steps` 42" in run(
        [*job, "schedule.warmup_steps=50", *out], code=2
    )
    assert "train.compile" in run([*job, "train.compile=blocks", *out], code=2)
    assert "unknown key `data.source`" in run([*job, "data.source=x", *out], code=2)
    assert "missing argument 'CONFIG'" in run(["train"], code=2)


def test_config_file_with_a_task_is_a_fine_tuning_which_fit_does_not_take(
    job: list[str], tmp_path: Path, run: Run
) -> None:
    file = tmp_path / "tweets.yaml"
    file.write_text(
        f"task: classification\ndata: {{file: {job[4]}}}\nmodel: {{path: {job[6]}}}\ntrain: {{epochs: 1}}\n"
    )
    said = run(["train", str(file), *FAST, "--out", str(tmp_path / "run")])
    assert re.search(r"macro F1 [\d.]+ on \d+ held-out examples", said)
    said = run(["fit", str(file)], code=2)
    assert "this is the config of a fine-tuning" in said
    assert "`hotloop train CONFIG --profile test` rehearses a fine-tuning" in said
    assert "`hotloop tune CONFIG` makes it faster" in said
    told = run(["report", str(tmp_path / "run")])
    assert "damaged" not in told
    assert "model.path" in told  # with the other settings that were given
    assert "whole" in run(["checkpoints", "list", str(tmp_path / "run")])


def test_keys_are_those_of_the_training_at_hand_and_else_of_each_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def listed(*words: str) -> list[str]:
        assert run_here(["train", *words, "--keys"]) == 0
        return [line.split()[0] for line in capsys.readouterr().out.splitlines()]

    kinds: list[list[str]] = [[*known_keys(each)] for each in (RunConfig, FinetuneConfig, CausalConfig, ModuleConfig)]  # fmt: skip
    assert listed("--task", "sentiment") == listed("--task", "multilabel") == kinds[1]
    assert listed("--task", "instructions") == kinds[2]
    assert listed("configs/tiny.yaml") == kinds[0]
    (tmp_path / "job.yaml").write_text("task: text\ndata: {file: a}\nmodel: {path: DIR}\n")
    assert listed(str(tmp_path / "job.yaml"), "train.steps=3") == kinds[2]
    assert listed() == [name for keys in kinds for name in ("#", *keys)]
    assert run_here(["train", "--task", "sentimet", "--keys"]) == 2
    assert "did you mean sentiment?" in capsys.readouterr().err


def test_scores_are_those_of_the_counts() -> None:
    confusion = [[3, 1, 0], [2, 2, 0], [0, 0, 0]]
    assert accuracy(confusion) == 5 / 8
    first, second, absent = class_scores(counts_of(confusion), ["a", "b", "c"])
    assert (first.precision, first.recall) == (3 / 5, 3 / 4)
    assert second.f1 == pytest.approx(2 * (2 / 3) * 0.5 / (2 / 3 + 0.5))
    assert absent.f1 is None
    assert mean_f1(counts_of(confusion)) == pytest.approx((first.f1 + second.f1) / 2)
