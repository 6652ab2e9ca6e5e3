"""Several labels, numbers, entities, and a label with entities: each from a file to a model that transformers loads."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from encoders import rows, save_encoder, tagged, write_conll

Run = Callable[..., str]
FAST = ["optimizer.learning_rate=3e-3", "train.microbatch=16", "logging.tensorboard=false", "checkpoint.background=false"]  # fmt: skip


@pytest.fixture
def bert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    return save_encoder("bert", tmp_path / "bert")


def trained(
    run: Run, tmp_path: Path, task: str, data: Path, *more: str
) -> tuple[str, dict[str, Any]]:
    """What was said, and `task.json`."""
    out = tmp_path / "run"
    words = ["train", "--task", task, "--data", str(data), "--model", str(tmp_path / "bert")]
    said = run([*words, *FAST, *more, "--out", str(out)])
    return said, json.loads((out / "task.json").read_text())


def test_entities_are_found_and_the_model_gives_the_same_ones_in_transformers(
    bert: Path, tmp_path: Path, run: Run
) -> None:
    data = write_conll(tmp_path / "places.conll")
    said, task = trained(run, tmp_path, "entities", data, "train.epochs=12")
    assert task["f1"] > 0.9
    assert f"F1 {task['f1']:.4f}" in said
    assert [each["label"] for each in task["by_class"]] == ["PERSON", "PLACE"]
    place = tmp_path / "run/model"
    model = transformers.AutoModelForTokenClassification.from_pretrained(place).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(place)
    assert set(model.config.id2label.values()) == {"O", "B-PERSON", "I-PERSON", "B-PLACE", "I-PLACE"}  # fmt: skip
    words, tags = tagged(1)[0]
    found = tokenizer(words, is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        guesses = model(**found).logits[0].argmax(1).tolist()
    first = [found.word_ids().index(number) for number in range(len(words))]
    assert [model.config.id2label[guesses[at]] for at in first] == tags


def test_several_labels_are_learned_each_by_itself(bert: Path, tmp_path: Path, run: Run) -> None:
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "bad", "good"])
        for text, _ in rows(160):
            own = set(text.split())
            writer.writerow([text, int("awful" in own), int("great" in own)])
    _, task = trained(
        run, tmp_path, "multilabel", path, "data.label=[bad, good]", "train.epochs=12"
    )
    assert task["micro_f1"] > 0.7
    assert task["classes"] == ["bad", "good"]
    config = transformers.AutoConfig.from_pretrained(tmp_path / "run/model")
    assert config.problem_type == "multi_label_classification"


def test_numbers_are_learned(bert: Path, tmp_path: Path, run: Run) -> None:
    path = tmp_path / "a.jsonl"
    value = {"bad": -1.0, "so-so": 0.0, "good": 1.5}
    path.write_text(
        "".join(json.dumps({"text": t, "stars": value[label]}) + "\n" for t, label in rows())
    )
    _, task = trained(run, tmp_path, "regression", path, "data.label=stars", "train.epochs=15")
    assert task["r2"] > 0.4
    assert task["mae"] < 0.7
    config = transformers.AutoConfig.from_pretrained(tmp_path / "run/model")
    assert (config.problem_type, config.id2label) == ("regression", {0: "stars"})
    held_out = tmp_path / "b.jsonl"  # of equal numbers, which have no r2
    held_out.write_text('{"text": "good", "stars": 1.5}\n' * 2)
    more = f"data.held_out={held_out}", "eval.metric=r2", "eval.export=best", "train.epochs=1"
    shutil.rmtree(tmp_path / "run")
    _, task = trained(run, tmp_path, "regression", path, "data.label=stars", *more)
    assert task["r2"] is None


def test_a_label_and_entities_are_learned_by_one_encoder(
    bert: Path, tmp_path: Path, run: Run
) -> None:
    path, held_out = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    lines = []
    for words, tags in tagged(160):
        label = "somebody" if "B-PERSON" in tags else "nobody"
        lines.append(json.dumps({"words": words, "tags": tags, "label": label}) + "\n")
    path.write_text("".join(lines[16:]))
    held_out.write_text("".join(lines[:16]))
    config = tmp_path / "both.yaml"
    config.write_text(
        f"task: [tokens, classification]\ndata: {{file: {path}, held_out: {held_out}}}\n"
        f"model: {{path: {bert}}}\ntrain: {{epochs: 12}}\n"
    )
    said = run(["train", str(config), *FAST, "--out", str(tmp_path / "run")])
    task = json.loads((tmp_path / "run/task.json").read_text())
    assert task["entities"]["f1"] > 0.9
    assert task["accuracy"] > 0.7
    assert f"mean F1 {task['mean_f1']:.4f}; of entities" in said
    # predict counts as the evaluation did
    said = run(
        ["predict", str(tmp_path / "run"), str(held_out), "--out", str(tmp_path / "c.jsonl")]
    )
    assert f"accuracy {task['accuracy']:.4f}, macro F1 {task['macro_f1']:.4f} on 16 labelled rows" in said  # fmt: skip
    assert f"F1 {task['entities']['f1']:.4f} on 16 labelled rows" in said
    first = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "run/model")
    each = transformers.AutoModelForTokenClassification.from_pretrained(
        tmp_path / "run/model-entities"
    )
    own, others = dict(first.bert.named_parameters()), dict(each.bert.named_parameters())
    assert others
    assert all(torch.equal(own[name], weight) for name, weight in others.items())
