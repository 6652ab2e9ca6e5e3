"""`hotloop predict`: a file of texts through an exported model."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from encoders import config, rows, save_encoder, tokenizer

from hotloop.finetune import predict

Run = Callable[..., str]


def model_in(place: Path, kind: str = "SequenceClassification", **more: object) -> Path:
    torch.manual_seed(3)
    own = config("bert")
    own.update({"id2label": {0: "bad", 1: "good", 2: "so-so"}, **more})
    getattr(transformers, f"AutoModelFor{kind}").from_config(own).save_pretrained(place)
    tokenizer().save_pretrained(place)
    return place


def answers(said: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in said.splitlines() if line.startswith("{")]


def test_answers_are_those_of_each_text_alone_in_the_order_of_the_file(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predict, "CHUNK", 16)
    place, out = model_in(tmp_path / "model"), tmp_path / "out.jsonl"
    texts = [text for text, _ in rows(40)]
    texts[7] = "  "
    with (tmp_path / "in.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "tweet"), *enumerate(texts)])
    said = run(
        ["predict", str(place), str(tmp_path / "in.csv"), "--column", "tweet", "--out", str(out)]
    )
    assert "1 rows have no text" in said
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [each["id"] for each in found] == [str(number) for number in range(40)]
    assert "predicted" not in found[7]
    model = transformers.AutoModelForSequenceClassification.from_pretrained(place).eval()
    own = transformers.AutoTokenizer.from_pretrained(place)
    for text, each in zip(texts, found, strict=True):
        if text.strip():
            with torch.no_grad():
                chances = model(**own(text, return_tensors="pt", truncation=True, max_length=140)).logits[0].softmax(0)  # fmt: skip
            assert np.allclose(list(each["probabilities"].values()), chances, atol=1e-5)
            assert each["predicted"] == model.config.id2label[int(chances.argmax())]
            assert each["probability"] == max(each["probabilities"].values())


def test_batches_hold_texts_of_about_one_length(tmp_path: Path) -> None:
    own = predict.load_predictor(model_in(tmp_path), torch.device("cpu"), print)
    widths = []
    own.model.register_forward_pre_hook(
        lambda module, arguments, named: widths.append(named["attention_mask"]), with_kwargs=True
    )
    list(predict.predict([own], [text for text, _ in rows(200)]))
    used = sum(int(mask.sum()) for mask in widths)
    assert used / sum(mask.numel() for mask in widths) > 0.9
    assert len(widths) < 60


def test_entities_have_their_place_in_the_text(tmp_path: Path, run: Run) -> None:
    labels = {0: "O", 1: "B-PLACE", 2: "I-PLACE"}
    # Weights so large that words get other tags.
    place = model_in(
        tmp_path / "model", "TokenClassification", id2label=labels, initializer_range=1.0
    )
    text = "It was, I think, superb-ly great."
    (found,) = answers(run(["predict", str(place), "--text", text], code=None))
    assert found["entities"]
    for each in found["entities"]:
        assert text[each["start"] : each["end"]] == each["text"]
    # what transformers' own pipeline says of the first token of each word
    tags = transformers.AutoModelForTokenClassification.from_pretrained(place).eval()
    own = transformers.AutoTokenizer.from_pretrained(place)
    words = ["It", "was", ",", "I", "think", ",", "superb", "-", "ly", "great", "."]
    encoded = own(words, is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        guesses = tags(**encoded).logits[0].argmax(1).tolist()
    wanted = [labels[guesses[encoded.word_ids().index(n)]] for n in range(len(words))]
    assert sum(tag.startswith("B") for tag in wanted) <= len(found["entities"])
    inside = sum(len(predict.word_spans(each["text"])) for each in found["entities"])
    assert inside == sum(tag != "O" for tag in wanted)


def test_csv_keeps_the_columns_of_its_rows(tmp_path: Path, run: Run) -> None:
    place = model_in(tmp_path / "model", problem_type="multi_label_classification")
    (tmp_path / "in.tsv").write_text("label\ttext\nx\ta film\ny\tthe story\n")
    run(["predict", str(place), str(tmp_path / "in.tsv"), "--out", str(tmp_path / "out.csv")])
    with (tmp_path / "out.csv").open() as file:
        found = list(csv.DictReader(file))
    assert [each["label"] for each in found] == ["x", "y"]
    assert set(found[0]) == {"label", "text", "predicted"}


def test_interrupted_it_says_how_far_it_came_and_leaves_no_half_file(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predict, "CHUNK", 2)
    real, calls = predict._encoded, []

    def cut(*arguments: object) -> object:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(predict, "_encoded", cut)
    (tmp_path / "in.txt").write_text("a film\n" * 9)
    out = tmp_path / "out.jsonl"
    said = run(["predict", str(model_in(tmp_path / "model")), str(tmp_path / "in.txt"), "--out", str(out)], code=75)  # fmt: skip
    assert "interrupted: 4 of 9 rows are written" in said
    assert not out.exists()
    assert len((tmp_path / "out.jsonl.part").read_text().splitlines()) == 4


def test_what_cannot_be_predicted_is_one_clear_error(tmp_path: Path, run: Run) -> None:
    place = model_in(tmp_path / "model")
    (tmp_path / "in.csv").write_text("tweet;label\na;b\n")
    assert "give one of them" in run(["predict", str(place)], code=2)
    said = run(["predict", str(place), str(tmp_path / "in.csv")], code=2)
    assert "`tweet;label`" in said
    assert "`--delimiter`" in said
    said = run(["predict", str(place), str(tmp_path / "in.csv"), "--delimiter", ";"], code=2)
    assert "no column `text`" in said
    assert "set `--column`" in said
    assert "no such file" in run(["predict", str(place), str(tmp_path / "gone.csv")], code=2)
    bare = save_encoder("bert", tmp_path / "bare")
    assert "gives neither labels nor entities" in run(["predict", str(bare), "--text", "x"], code=2)
    (place / "model.safetensors").rename(place / "pytorch_model.bin")
    assert "a pickle" in run(["predict", str(place), "--text", "x"], code=2)
    assert "no such model directory" in run(
        ["predict", str(tmp_path / "no"), "--text", "x"], code=2
    )


def test_a_file_of_words_and_tags_is_read_as_sentences(tmp_path: Path, run: Run) -> None:
    place = model_in(
        tmp_path / "model", "TokenClassification", id2label={0: "O", 1: "B-X", 2: "I-X"}
    )
    file, out = tmp_path / "held-out.txt", tmp_path / "out.jsonl"
    file.write_text("-DOCSTART- O\n\nthe O\ngood B-X\n\nbad O\n")
    run(["predict", str(place), str(file), "--out", str(out)])
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(each["text"], each["tags"]) for each in found] == [("the good", ["O", "B-X"]), ("bad", ["O"])]  # fmt: skip
    assert all("entities" in each for each in found)
    file.write_text("a text of this line is one\nand so is this one\n")
    assert "2 rows in" in run(["predict", str(place), str(file), "--out", str(out)])
