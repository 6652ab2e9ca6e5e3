"""`hotloop predict`: a file of texts through an exported model."""

import csv
import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import decoders
import numpy as np
import pytest
import torch
import transformers
from encoders import config, rows, save_encoder, tagged, tokenizer
from tokenizers import pre_tokenizers

from hotloop.core.errors import UsageError
from hotloop.core.finetune_config import ExamplesConfig
from hotloop.finetune import predict
from hotloop.finetune.entities import entities_of
from hotloop.finetune.input_rows import InputRow, input_rows, reading_of
from hotloop.finetune.tables import read_text_file

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
    assert "without an answer: 1 row" in said
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
    list(predict.predict([own], [InputRow({}, text) for text, _ in rows(200)]))
    used = sum(int(mask.sum()) for mask in widths)
    assert used / sum(mask.numel() for mask in widths) > 0.9
    assert len(widths) < 60


def test_entities_have_their_place_in_the_text(tmp_path: Path, run: Run) -> None:
    labels = {0: "B-PLACE", 1: "O", 2: "I-PLACE"}
    # Weights so large that words get other tags.
    place = model_in(
        tmp_path / "model", "TokenClassification", id2label=labels, initializer_range=1.0
    )
    text = "It was, I think, superb-ly great: oslo, anna, oslo anna, paris."
    (found,) = answers(run(["predict", str(place), "--text", text], code=None))
    # what transformers itself says of the first token of each word
    tags = transformers.AutoModelForTokenClassification.from_pretrained(place).eval()
    own = transformers.AutoTokenizer.from_pretrained(place)
    spans = [each.span() for each in re.finditer(r"\w+|[^\w\s]", text)]
    encoded = own([text[a:b] for a, b in spans], is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        chances, guesses = tags(**encoded).logits[0].softmax(1).max(1)
    first = [encoded.word_ids().index(number) for number in range(len(spans))]
    wanted = entities_of([labels[int(guesses[at])] for at in first])
    assert len({last - begin for _, begin, last in wanted}) > 1  # of one word and of several
    assert len(found["entities"]) == len(wanted)
    for each, (kind, begin, last) in zip(found["entities"], wanted, strict=True):
        place_in_text = (each["label"], each["start"], each["end"])
        assert place_in_text == (kind, spans[begin][0], spans[last][1])
        assert text[each["start"] : each["end"]] == each["text"]
        least = min(float(chances[at]) for at in first[begin : last + 1])
        assert each["probability"] == pytest.approx(least, abs=1e-5)


def test_a_label_is_there_where_it_is_more_likely_than_not_and_a_number_is_the_models(
    tmp_path: Path, run: Run
) -> None:
    text = rows(1)[0][0]
    for kind, names in (
        ("multi_label_classification", ["a", "b", "c", "d"]),
        ("regression", ["x"]),
    ):
        settings = {"problem_type": kind, "id2label": dict(enumerate(names))}
        place = model_in(tmp_path / kind, **settings)
        (found,) = answers(run(["predict", str(place), "--text", text], code=None))
        model = transformers.AutoModelForSequenceClassification.from_pretrained(place).eval()
        with torch.no_grad():
            own = transformers.AutoTokenizer.from_pretrained(place)
            logits = model(**own(text, return_tensors="pt")).logits[0]
        if kind == "regression":
            assert found["predicted"] == pytest.approx(float(logits[0]), abs=1e-5)
            continue
        likely = [name for name, logit in zip(names, logits, strict=True) if logit > 0]
        assert 0 < len(likely) < len(names)
        assert float(logits.abs().max()) < 0.4  # between 0.4 and 0.6 all of them
        assert found["predicted"] == likely


def test_a_run_knows_its_columns_and_an_option_wins(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    file, place = tmp_path / "tweets.csv", str(tmp_path / "run")
    with file.open("w", newline="") as stream:
        lines = [(text, "great", label, "bad") for text, label in rows(60)]
        table = csv.writer(stream, delimiter=";")
        table.writerows([("tweet", "text", "mood", "label"), *lines])
    bert = save_encoder("bert", tmp_path / "bert")
    words = ["train", "--task", "sentiment", "--data", str(file), "--model", str(bert), "--out", place]  # fmt: skip
    run(
        [*words, "data.text=tweet", "data.label=mood", "data.delimiter=;", "train.steps=1", "logging.tensorboard=false"]
    )  # fmt: skip

    def chances(*options: str, file: Path = file) -> tuple[list[object], str]:
        said = run(["predict", place, str(file), "--out", str(tmp_path / "out.jsonl"), *options])
        lines = (tmp_path / "out.jsonl").read_text().splitlines()
        return [json.loads(line)["probabilities"] for line in lines], said

    own, said = chances()
    asked, said_too = chances("--column", "tweet", "--label", "mood")
    assert own == asked
    assert "on 60 labelled rows" in said
    assert said == said_too
    tabs = tmp_path / "tweets.tsv"  # has its own, whatever the run's csv had
    tabs.write_text(file.read_text().replace(";", "\t"))
    assert chances(file=tabs)[0] == own
    file.write_text(whole := file.read_text().replace(";", "|"))
    assert chances("--delimiter", "|")[0] == own
    file.write_text(whole.replace("|", ";"))
    others, said = chances("--column", "text", "--label", "label")
    assert others == [others[0]] * 60  # each is `great`
    assert f"accuracy {json.loads((tmp_path / 'out.jsonl').read_text().splitlines()[0])['predicted'] == 'bad':.4f}" in said  # fmt: skip
    file.write_text(file.read_text().replace("tweet", "post", 1))
    assert "no column `tweet`" in run(["predict", place, str(file)], code=2)


def test_csv_keeps_the_columns_of_its_rows(tmp_path: Path, run: Run) -> None:
    place = model_in(tmp_path / "model", problem_type="multi_label_classification")
    (tmp_path / "in.tsv").write_text("label\ttext\nx\ta film\ny\tthe story\n")
    run(["predict", str(place), str(tmp_path / "in.tsv"), "--out", str(tmp_path / "out.CSV")])
    with (tmp_path / "out.CSV").open() as file:
        found = list(csv.DictReader(file))
    assert [each["label"] for each in found] == ["x", "y"]
    assert set(found[0]) == {"label", "text", "predicted"}


@pytest.fixture
def cut_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """Ctrl-C comes after so many chunks of two rows; returns how many texts each of them had."""
    real = predict._encoded
    monkeypatch.setattr(predict, "CHUNK", 2)

    def cutting(most: int) -> list[int]:
        sizes: list[int] = []

        def cut(own: predict.Predictor, texts: list[str], spans: object) -> object:
            if len(sizes) == most:
                raise KeyboardInterrupt
            sizes.append(len(texts))
            return real(own, texts, spans)  # type: ignore[arg-type]

        monkeypatch.setattr(predict, "_encoded", cut)
        return sizes

    return cutting


@pytest.mark.parametrize("suffix", [".jsonl", ".CSV"])
def test_interrupted_it_says_how_far_it_came_and_the_same_command_continues(
    suffix: str, tmp_path: Path, run: Run, cut_after: Callable[[int], list[int]]
) -> None:
    place, file = model_in(tmp_path / "model", problem_type="multi_label_classification"), tmp_path / "in.jsonl"  # fmt: skip
    given = [{"text": f"{text}\n\r", "label": label.split("-")} for text, label in rows(9)]
    file.write_text("".join(json.dumps(each) + "\n" for each in given))
    whole, out = (tmp_path / f"{name}{suffix}" for name in ("whole", "out"))
    cut_after(9)
    told = run(["predict", str(place), str(file), "--out", str(whole)])
    words = ["predict", str(place), str(file), "--out", str(out)]
    cut_after(2)
    said = run(words, code=75)
    assert "interrupted: 4 of 9 rows are written" in said
    assert "the same command continues" in said
    assert not out.exists()
    part = tmp_path / f"out{suffix}.part"
    part.write_bytes(part.read_bytes() + b'{"text": "a torn li')  # as kill -9 leaves it
    cut_after(1)
    said = run(words, code=75)
    assert "continues after 4 of 9 rows" in said
    assert "interrupted: 6 of 9 rows" in said
    sizes = cut_after(9)
    again = run(words)
    assert sizes == [2, 1]
    assert out.read_bytes() == whole.read_bytes()
    assert not list(tmp_path.glob("*.part*"))
    scores = told[told.index("accuracy") : told.index(" labelled rows")]
    assert scores.endswith("on 7")
    assert scores in again  # of all rows, also of those of before


@pytest.mark.parametrize(("to", "then"), [(["--out", "out.csv"], "continues"), ([], "starts over")])
def test_interrupted_early_it_says_how_to_go_on(
    to: list[str], then: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text("a film\n")
    monkeypatch.setattr(predict, "load_predictors", cut)
    said = run(["predict", str(model_in(tmp_path / "model")), "in.txt", *to], code=75)
    assert "interrupted before the first answers of this call" in said
    assert f"the same command {then}" in said


def test_what_is_left_of_other_texts_or_another_model_is_not_continued(
    tmp_path: Path, run: Run, cut_after: Callable[[int], list[int]]
) -> None:
    place, file = model_in(tmp_path / "model"), tmp_path / "in.txt"
    words = ["predict", str(place), str(file), "--out", str(tmp_path / "out.jsonl")]
    file.write_text("a film\n" * 9)
    cut_after(1)
    run(words, code=75)
    file.write_text("a film\n" * 8 + "the story\n")
    cut_after(1)
    assert "is of other texts or of another model" in run(words, code=75)
    model_in(place, initializer_range=1.0)
    sizes = cut_after(9)
    assert "is of other texts or of another model" in run(words)
    assert sum(sizes) == 9


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_labels_beside_the_texts_are_scored_as_an_evaluation_would(
    kind: str, tmp_path: Path, run: Run
) -> None:
    place = model_in(tmp_path / "model", **({"id2label": {0: "x"}} if kind == "regression" else {}))
    given = [(text, label if kind == "classification" else str(len(label))) for text, label in rows(30)]  # fmt: skip
    given[3:6] = [("a film", ""), ("a film", "odd"), ("", given[5][1])]
    file, out = tmp_path / "in.csv", tmp_path / "out.jsonl"
    with file.open("w", newline="") as stream:
        csv.writer(stream).writerows([("text", "mood"), *given])
    words = ["predict", str(place), str(file), "--label", "mood", "--out", str(out)]
    said = run(words)
    pairs = [
        (each["mood"], each["predicted"])
        for number, each in enumerate(map(json.loads, out.read_text().splitlines()))
        if number not in (3, 4, 5)
    ]
    if kind == "regression":
        error = np.mean([abs(float(true) - found) for true, found in pairs])
        assert f"mean absolute error {error:.4f}" in said
    else:
        right = sum(true == found for true, found in pairs)
        assert f"accuracy {right / 27:.4f}, macro F1" in said
        assert "does not know `odd`: 1 row" in said
    assert "on 27 labelled rows" in said
    assert "no column `gone`" in run([*words[:4], "gone"], code=2)
    assert "labelled" not in run(words[:3])  # there is no `label`


@pytest.mark.parametrize("form", ["columns", "words", "spans"])
def test_tags_beside_the_words_are_scored_as_whole_entities(
    form: str, tmp_path: Path, run: Run
) -> None:
    names = {0: "O", **dict(enumerate(("B-PLACE", "I-PLACE", "B-PERSON", "I-PERSON"), 1))}
    place = model_in(
        tmp_path / "model", "TokenClassification", id2label=names, initializer_range=1.0
    )
    sentences = [*tagged(30), (["superb-ly", "great"], ["O", "B-PLACE"])]  # its first word is three
    sentences[4][1][:] = ["B-ODD"] * len(sentences[4][1])
    file = tmp_path / ("in.txt" if form == "columns" else "in.jsonl")
    if form == "columns":
        file.write_text("\n\n".join("\n".join(f"{w} {t}" for w, t in zip(*each, strict=True)) for each in sentences))  # fmt: skip
    elif form == "words":
        file.write_text("".join(json.dumps({"words": w, "tags": t}) + "\n" for w, t in sentences))
    else:
        lines = []
        for words, tags in sentences:
            begins = [len(" ".join([*words[:n], ""])) for n in range(len(words))]
            spans = [
                {"start": begins[a], "end": begins[b] + len(words[b]), "label": kind}
                for kind, a, b in entities_of(tags)
            ]
            lines.append(json.dumps({"text": " ".join(words), "spans": spans}) + "\n")
        lines[7] = json.dumps({"text": "a film", "spans": [{"start": 1, "end": 4, "label": "PLACE"}]}) + "\n"  # fmt: skip
        file.write_text("".join(lines))
    said = run(["predict", str(place), str(file), "--out", str(tmp_path / "out.jsonl")])
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    counts, num = [0, 0, 0], 0
    for number, (words, tags) in enumerate(sentences):
        if number == 4 or (number == 7 and form == "spans"):
            continue
        begins = [len(" ".join([*words[:n], ""])) for n in range(len(words))]
        wanted = {(kind, begins[a], begins[b] + len(words[b])) for kind, a, b in entities_of(tags)}
        given = {(e["label"], e["start"], e["end"]) for e in found[number]["entities"]}
        counts = [a + len(b) for a, b in zip(counts, (wanted & given, wanted, given), strict=True)]
        num += 1
    assert counts[0]
    assert f"F1 {2 * counts[0] / (counts[1] + counts[2]):.4f} on {num} labelled rows" in said
    assert "does not know `ODD`: 1 row" in said


def test_what_cannot_be_predicted_is_one_clear_error(tmp_path: Path, run: Run) -> None:
    place = model_in(tmp_path / "model")
    (tmp_path / "in.csv").write_text("tweet;label\na;b\n")
    assert "give one of them" in run(["predict", str(place)], code=2)
    said = run(["predict", str(place), str(tmp_path / "in.csv")], code=2)
    assert "`tweet;label`" in said
    assert "`'--delimiter=;'`" in said
    (tmp_path / "right.csv").write_text("text\nhello\n")
    words = ["predict", str(place), str(tmp_path / "right.csv")]
    said = run([*words, "--out", "/proc/out.csv"], code=4)
    assert "cannot write the answers" in said
    said = run(["predict", str(place), str(tmp_path / "in.csv"), "--delimiter", ";;"], code=2)
    assert "for a tab, write `tab`" in said
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
    file.write_text("-DOCSTART- O\n\n#the O\ngood B-X\n\nbad O\n")
    run(["predict", str(place), str(file), "--out", str(out)])
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(each["text"], each["tags"]) for each in found] == [("#the good", ["O", "B-X"]), ("bad", ["O"])]  # fmt: skip
    assert all("entities" in each for each in found)
    file.write_text("the O\n\nbad O\n#love\n")
    said = run(["predict", str(place), str(file), "--out", str(out)], code=2)
    assert "1 column here, and 2 in the lines before" in said
    file.write_text("a text of this line is one\nand so is this one\n")
    assert "2 rows in" in run(["predict", str(place), str(file), "--out", str(out)])


@pytest.mark.parametrize(
    ("name", "settings", "content"),
    [
        # what a table is to the run, whatever it is called
        ("a.txt", "task: classification\ndata: {file: b.txt}", "text,label\nthe good,x\n"),
        ("a.CSV", "task: classification\ndata: {file: b.csv, delimiter: ;}", "text;label\nthe good;x\n"),
        ("a.tsv", "task: tokens\ndata: {file: b.tsv}", "#id 1\nthe\tO\ngood\tB-X\n"),
        ("a.jsonl", "task: tokens\ndata: {file: b.jsonl}", '{"text": "The good.", "words": ["the", "good"], "tags": ["O", "B-X"]}\n'),
    ],
)  # fmt: skip
def test_a_file_like_that_of_the_run_is_read_like_it(
    name: str, settings: str, content: str, tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text(f"{settings}\nmodel: {{path: m}}\n")
    path = tmp_path / name
    path.write_text(content)
    config, of_words = reading_of(tmp_path, path)
    (row,) = input_rows(read_text_file(path), config, label=None, of_words=of_words)
    assert row.text == "the good"
    assert row.tags == (("O", "B-X") if "task: tokens" in settings else None)


def test_lines_end_where_the_file_ends_them(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    texts = ["one\u2028line", "a \x85 second", "a third\x0c"]
    path.write_bytes("\r\n".join(texts).encode())
    found = input_rows(read_text_file(path), ExamplesConfig(file=""), label=None)
    assert [each.text for each in found] == texts
    path.write_text("10\u00a0000 O\nOslo\u2028 B-LOC\n")
    (found_too,) = input_rows(read_text_file(path), ExamplesConfig(file=""), label=None)
    assert found_too.tags == ("O", "B-LOC")


def test_other_schemes_of_tags_give_the_same_entities(tmp_path: Path) -> None:
    names = ("O", "B-X", "I-X", "E-X", "S-X", "[CLS]")
    place = model_in(tmp_path, "TokenClassification", id2label=dict(enumerate(names)))
    own = predict.load_predictor(place, torch.device("cpu"), print)
    text, tags = "the good film was bad of it", (0, 1, 3, 4, 4, 5, 3)
    spans = [each.span() for each in re.finditer(r"\w+", text)]
    logits = torch.nn.functional.one_hot(torch.tensor(tags), len(names)).float()
    found = predict._entities(own, logits, np.arange(len(tags)), spans, text)["entities"]
    assert [each["text"] for each in found] == ["good film", "was", "bad", "it"]
    place = model_in(tmp_path / "bare", "TokenClassification")
    with pytest.raises(UsageError, match="none of this model's labels is a tag of an entity: bad"):
        predict.load_predictor(place, torch.device("cpu"), print)


def test_texts_are_read_by_the_tokens_that_were_learned(tmp_path: Path) -> None:
    """Of a label beside entities those of words, and else without the spaces around a text."""
    bytewise = decoders.tokenizer()
    bytewise.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    names, read, both = {0: "O", 1: "B-X", 2: "I-X"}, [], []
    for kind in ("SequenceClassification", "TokenClassification"):
        place = model_in(tmp_path / kind, kind, id2label=names, vocab_size=328)
        own = predict.load_predictor(place, torch.device("cpu"), print)
        own.model.register_forward_pre_hook(
            lambda module, arguments, named: read.append(named["input_ids"].tolist()),
            with_kwargs=True,
        )
        both.append(replace(own, tokenizer=bytewise))
    list(predict.predict(both, [InputRow({}, text := "what,is the sky")]))
    words = bytewise([["what", ",", "is", "the", "sky"]], is_split_into_words=True)["input_ids"]
    assert read == [words, words]
    plain = decoders.tokenizer()
    list(predict.predict([replace(both[0], tokenizer=plain)], [InputRow({}, f"  {text} ")]))
    assert read[2:] == [[plain(text)["input_ids"]]]
    assert read[2] != words


def run_with(place: Path, longest: int, **more: object) -> Path:
    """As a fine-tuning leaves it."""
    model_in(place / "model", **more)
    (place / "config.yaml").write_text(
        f"task: classification\ndata: {{file: gone.csv}}\nmodel: {{path: gone, max_tokens: {longest}}}\n"
    )
    return place


def test_a_run_reads_as_much_of_a_text_as_it_has_learned_from_and_its_model_all(
    tmp_path: Path, run: Run
) -> None:
    place = run_with(tmp_path / "run", 8, initializer_range=1.0)
    texts = ["the film was a great story", "the film was a great story and awful"]
    words = [word for text in texts for word in ("--text", text)]
    said = run(["predict", str(place), *words], code=None)
    one, other = (each["probabilities"] for each in answers(said))
    assert one == other
    assert "as long as what is read of a text (8 tokens), and perhaps cut: 2 texts" in " ".join(said.split())  # fmt: skip
    said = run(["predict", str(place / "model"), *words], code=None)
    short, long = (each["probabilities"] for each in answers(said))
    assert short == pytest.approx(one, abs=1e-5)
    assert long != pytest.approx(one, abs=1e-3)
    assert "perhaps cut" not in said


def test_a_run_reads_as_far_as_it_has_learned_whatever_length_its_tokenizer_names(
    tmp_path: Path, run: Run
) -> None:
    place = run_with(tmp_path / "run", 12, initializer_range=1.0)
    short = tokenizer()
    short.model_max_length = 6
    short.save_pretrained(place / "model")
    text = "the film was a great story"
    (found,) = answers(run(["predict", str(place), "--text", text], code=None))
    (bare,) = answers(run(["predict", str(place / "model"), "--text", text], code=None))
    model = transformers.AutoModelForSequenceClassification.from_pretrained(place / "model").eval()
    for answer, longest in ((found, 12), (bare, 6)):
        ids = short(text, truncation=True, max_length=longest, return_tensors="pt")["input_ids"]
        assert ids.shape[1] == min(longest, 8)
        with torch.no_grad():
            chances = model(input_ids=ids).logits[0].softmax(0)
        assert np.allclose(list(answer["probabilities"].values()), chances, atol=1e-5)


def test_a_text_without_a_token_has_no_answer_and_is_counted(tmp_path: Path, run: Run) -> None:
    """Of a tokenizer that adds no special tokens."""
    bare = tokenizer().backend_tokenizer
    bare.post_processor = None
    own = transformers.PreTrainedTokenizerFast(tokenizer_object=bare, unk_token="[UNK]", pad_token="[PAD]")  # fmt: skip
    file, out = tmp_path / "in.csv", tmp_path / "out.csv"
    file.write_text("text,label\na film,good\n\u200b,bad\nthe story,bad\n")
    own.save_pretrained(model_in(tmp_path / "model"))
    said = run(["predict", str(tmp_path / "model"), str(file), "--out", str(out)])
    assert "without a token of this model, and so without an answer: 1 text" in said
    assert "on 2 labelled rows" in said
    with out.open() as table:
        found = [each["predicted"] for each in csv.DictReader(table)]
    assert [bool(each) for each in found] == [True, False, True]
    place = model_in(tmp_path / "tags", "TokenClassification", id2label={0: "O", 1: "B-X", 2: "I-X"})  # fmt: skip
    own.save_pretrained(place)
    file = tmp_path / "in.jsonl"
    file.write_text('{"text": "\\u200b", "spans": []}\n{"text": "a film", "spans": []}\n')
    said = run(["predict", str(place), str(file), "--out", str(tmp_path / "out.jsonl")])
    assert "without a token of this model, and so without an answer: 1 text" in said
    assert "on 1 labelled row" in said


@pytest.mark.parametrize(("pad_id", "has_token"), [(5, True), (-1, True), (None, True), (None, False)])  # fmt: skip
def test_a_decoder_that_labels_texts_finds_the_last_token_of_each(
    pad_id: int | None, has_token: bool, tmp_path: Path
) -> None:
    """By its own pad token, which need not be that of the tokenizer; without any, texts are computed one at a time."""
    own, settings = tokenizer(), config("gpt2")
    if not has_token:
        own.pad_token = None
    settings.update({"id2label": {0: "bad", 1: "good"}, "pad_token_id": pad_id, "initializer_range": 1.0})  # fmt: skip
    torch.manual_seed(0)
    model = transformers.GPT2ForSequenceClassification(settings).eval()
    model.save_pretrained(tmp_path)
    own.save_pretrained(tmp_path)
    texts = ["the film was", "a film", "the story was great", "it"]
    predictor = predict.load_predictor(tmp_path, torch.device("cpu"), print)
    (found,) = predict.predict([predictor], [InputRow({}, text) for text in texts])
    for text, each in zip(texts, found, strict=True):
        ids = torch.tensor([own(text)["input_ids"]])
        with torch.no_grad():
            states = model.transformer(ids).last_hidden_state[0, -1]
            chances = model.score(states).softmax(0)
        assert list(each["probabilities"].values()) == pytest.approx(chances.tolist(), abs=1e-5)


def test_a_class_called_none_is_scored(tmp_path: Path, run: Run) -> None:
    place = model_in(tmp_path / "model", id2label={0: "none", 1: "good", 2: "NA"})
    (tmp_path / "in.csv").write_text("text,label\na film,none\nb,NA\nc,null\n")
    said = run(["predict", str(place), str(tmp_path / "in.csv"), "--out", str(tmp_path / "o.csv")])
    assert "on 2 labelled rows" in said


def test_a_table_has_the_columns_of_all_rows(tmp_path: Path, run: Run) -> None:
    place = model_in(tmp_path / "model")
    (tmp_path / "in.jsonl").write_text('{"text": "a film"}\n{"text": "b", "id": 7}\n')
    run(["predict", str(place), str(tmp_path / "in.jsonl"), "--out", str(tmp_path / "out.csv")])
    with (tmp_path / "out.csv").open() as file:
        assert [each["id"] for each in csv.DictReader(file)] == ["", "7"]
    words = ["predict", str(place), str(tmp_path / "in.jsonl"), "--out"]
    assert "not written as .gz" in run([*words, str(tmp_path / "out.csv.gz")], code=2)


def test_bytes_that_are_no_text_are_one_clear_error(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(model_in(tmp_path / "model"))
    for content, code in ((b"a \xff film\n", 2), (b"\xef\xbb\xbfa film\n", None)):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        said = run(["predict", place, "-"], code=code)
        assert ("not UTF-8 text" in said) == (code == 2)
    assert answers(said)[0]["text"] == "a film"  # without the mark
    assert "not UTF-8 text" in run(["predict", place, "--text", "a \udcff"], code=2)


def test_an_adapter_says_how_it_becomes_a_whole_model(tmp_path: Path, run: Run) -> None:
    (tmp_path / "adapter_config.json").write_text('{"task_type": "SEQ_CLS"}')
    said = run(["predict", str(tmp_path), "--text", "a"], code=2)
    assert "this is an adapter of peft, and no whole model" in said
    assert "AutoPeftModelForSequenceClassification" in said
    words = ["train", "--task", "sentiment", "--data", "a.csv", "--model", str(tmp_path)]
    assert "this is an adapter, and no whole model" in run(words, code=2)
