"""Files of labelled texts as they are found: few examples of many labels, labels that look like none, packed files."""

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F
from encoders import config, rows, save_encoder, tokenizer, write_csv
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)

from hotloop.core.errors import UsageError
from hotloop.core.finetune_config import ExamplesConfig
from hotloop.finetune.examples import Examples, read_dataset, split
from hotloop.finetune.job import settings_of
from hotloop.finetune.tokens import tokenized
from hotloop.finetune.words import encode_words, tokenized_words

Run = Callable[..., str]


def examples_with(*sizes: int) -> Examples:
    """That many examples of each label, in turns."""
    pairs = [(f"{label} {n}", str(label)) for label, size in enumerate(sizes) for n in range(size)]
    pairs.sort(key=lambda pair: int(pair[0].split()[1]))
    texts, labels = zip(*pairs, strict=True)
    return Examples(texts, labels, lines=tuple(range(len(pairs))))


@pytest.mark.parametrize(
    ("sizes", "fraction", "held_out"),
    [
        ((5,) * 77, 0.1, 38),  # half an example of each is none
        ((6,) * 77, 0.1, 46),  # and six tenths were one of each, 77
        ((14,) * 77, 0.1, 108),
        ((5, 5), 0.1, 1),
        ((1,) * 50 + (100,), 0.1, 10),  # what is alone is trained on
        ((2,) * 10, 0.9, 10),
    ],
)
def test_of_many_small_labels_as_many_examples_are_held_out_as_asked(
    sizes: tuple[int, ...], fraction: float, held_out: int
) -> None:
    given = examples_with(*sizes)
    train, out, _ = split(given, fraction, 0)
    assert len(out) == held_out
    assert sorted((*train.texts, *out.texts)) == sorted(given.texts)
    assert [given.texts[number] for number in out.lines] == [*out.texts]
    assert {*train.labels} == {*given.labels}
    for label, num in Counter(out.labels).items():
        assert abs(num - fraction * sizes[int(label)]) < 1 or sizes[int(label)] == 2
    assert split(given, fraction, 0) == split(given, fraction, 0)
    if len({*sizes}) == 1 < held_out < len(sizes):
        assert split(given, fraction, 1)[1].labels != out.labels  # drawn


def test_only_what_was_held_out_badly_is_held_out_otherwise_now(tmp_path: Path) -> None:
    """The fingerprints were recorded by the version before: a run of it continues where its part is the same, and only there."""
    write_csv(tmp_path / "a.csv", 60)
    found = read_dataset(ExamplesConfig(file=str(tmp_path / "a.csv")))
    assert found.fingerprint == "3fa19b9320f7073a644081140cf24713cd8c1f54136601ed24f1ee320a1ef047"
    few = examples_with(*(5,) * 8)
    lines = "".join(f"{text},{label}\n" for text, label in zip(few.texts, few.labels, strict=True))
    (tmp_path / "b.csv").write_text("text,label\n" + lines)
    found = read_dataset(ExamplesConfig(file=str(tmp_path / "b.csv")))
    assert len(found.held_out) == 4
    assert found.fingerprint != "6c711cd3b67642a468e3055945b3d435b813c2de589a8a46c2dfe0d7ec48592b"
    for sizes in ((35, 35, 35), (100, 40, 8), (60, 60, 3, 3)):
        _, out, shared = split(examples_with(*sizes), 0.1, 0)
        assert not shared
        parts = {str(label): round(0.1 * size) for label, size in enumerate(sizes)}
        assert Counter(out.labels) == Counter(parts)


def test_labels_that_read_like_none_are_taken_where_the_option_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label\n" + "a,none\nb,NA\nc,null\n" * 4)
    with pytest.raises(UsageError, match=r"no label \(`none`\)\n.*\n.*`'data.no_label=\[\]'`"):
        read_dataset(ExamplesConfig(file=str(path)))
    words = ["task=classification", f"data.file={path}", "model.path=x", "data.no_label=[]"]
    config = settings_of("classification", None, words).config
    assert read_dataset(config.data).classes == ("NA", "none", "null")
    path.write_text("text,label\na,none\nb,yes\nc,\n")
    with pytest.raises(
        UsageError, match=r"no label\n.*:4, column `label`\n  give that example one, or remove it$"
    ):
        read_dataset(
            ExamplesConfig(file=str(path), no_label=[])
        )  # an empty one is none, whatever the option


def test_whole_numbers_are_the_outputs_of_the_model_that_they_name(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(
        "".join(json.dumps({"text": f"t{n}", "label": n % 12}) + "\n" for n in range(48))
    )
    found = read_dataset(ExamplesConfig(file=str(path)))
    assert found.classes == tuple(str(n) for n in range(12))
    path.write_text("".join(json.dumps({"text": f"t{n}", "label": [n % 12]}) + "\n" for n in range(48)))  # fmt: skip
    several = read_dataset(ExamplesConfig(file=str(path)), task="multilabel")
    assert several.classes == tuple(str(n) for n in range(12))
    path.write_text("".join(json.dumps({"text": f"t{n}", "label": f"{n % 12}x"}) + "\n" for n in range(48)))  # fmt: skip
    assert read_dataset(ExamplesConfig(file=str(path))).classes[1:3] == ("10x", "11x")


TEXTS = [{"text": "caf\u00e9, two\u2028lines", "label": 0}, {"text": "\U0001f600 it was", "label": 1}] * 2  # fmt: skip
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in TEXTS)


def test_the_same_examples_are_read_out_of_every_kind_of_file(tmp_path: Path) -> None:
    csv_text = "label,text\n" + '0,"caf\u00e9, two\u2028lines"\n1,\U0001f600 it was\n' * 2
    contents = {
        "a.jsonl": LINES.encode(),
        "crlf.jsonl": LINES.replace("\n", "\r\n").encode(),
        "mark.jsonl": b"\xef\xbb\xbf" + LINES.encode(),
        "lines.json": LINES.encode(),
        "list.json": json.dumps(TEXTS, indent=1).encode(),
        "mark.csv": b"\xef\xbb\xbf" + csv_text.encode(),
        "crlf.csv": csv_text.replace("\n", "\r\n").encode(),
        "a.CSV.gz": gzip.compress(csv_text.encode()),
        "a.tsv.gz": gzip.compress(b"\xef\xbb\xbf" + csv_text.replace('"', "").replace("0,", "0\t").replace("1,", "1\t").replace("label,", "label\t").encode()),
        "a.jsonl.gz": gzip.compress(LINES.encode()),
    }  # fmt: skip
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    pq.write_table(pa.Table.from_pylist(TEXTS), tmp_path / "a.parquet")
    for name in (*contents, "a.parquet"):
        found = read_dataset(ExamplesConfig(file=str(tmp_path / name), held_out=0.0)).train
        assert found.texts == ("caf\u00e9, two\u2028lines", "\U0001f600 it was") * 2, name
        assert found.labels == ("0", "1") * 2, name


def test_half_a_character_is_read_as_the_sign_for_one(tmp_path: Path) -> None:
    """As the last one of a text that was cut. Nothing behind takes it; what is whole stays as it is."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "so \\ud83d", "label": "x"}\n{"text": "\\ud83d\\ude00 \\\\ud83d", "label": "y"}\n')  # fmt: skip
    found = read_dataset(ExamplesConfig(file=str(path), held_out=0.0)).train
    assert found.texts == ("so \ufffd", "\U0001f600 \\ud83d")


def line(text: Any, label: Any) -> str:
    return json.dumps({"text": text, "label": label}) + "\n"


@pytest.mark.parametrize(
    ("name", "content", "task", "wanted"),
    [
        ("a.csv", "text,label,text\na,x,b\n", "classification", r"two columns are called `text`\n.*:1"),
        ("a.jsonl", line(["a", "b"], "x"), "classification", r"a list in place of a text\n.*:1, column `text`"),
        ("a.jsonl", line("a", "x") + line("b", ["x"]), "classification", r"the label is a list\n.*:2.*\n.*multilabel"),
        ("a.jsonl", line("a", [0, 1, 0]), "multilabel", r"0 or 1 for each label \(`\[0, 1, 0\]`\), and no list of labels\n.*:1"),
        ("a.csv", "text,label\na,\"['x', 'y']\"\n", "multilabel", r"a list as text \(`\['x', 'y'\]`\)\n.*:2"),
        ("a.csv", "text,label\na,x\nb,NaN\n", "multilabel", r"no labels \(`NaN`\)\n.*:3"),
        ("a.csv", "", "classification", r"no examples in this file\n.*a.csv\n.*it is empty, or has the names of its columns alone"),
        ("a.csv", "text,label\na,x\nb,y\ntext,label\n", "classification", r"the first line again\n.*:4"),
        ("a.tsv", 'text\tlabel\n"a\tx\nb\ty\nhe "is"\tx\n', "classification", r"damaged csv: .*\n.*:2\n.*quote"),
        ("a.json", "[1, 2]", "classification", r"damaged json: not a list of objects\n.*:1\n.*each line is an object"),
        ("a.json", '[{"text": "a"', "classification", r"damaged json: "),
        ("a.json", '{"data":\n []}', "classification", r"damaged json: "),
        ("a.csv.gz", gzip.compress(b"text,label\na,x\n", mtime=0)[:-9], "classification", r"cannot read the examples: "),
        ("a.parquet", b"PAR1 and no more", "classification", r"cannot read the examples: "),
        ("a.csv", "text,label\na,x\n".encode("utf-16"), "classification", r"not UTF-8 text: byte 0xff\n.*a\.csv:1\n.*save it as UTF-8"),
        ("a.csv", "text,label\na,x\ncafé,y\n".encode("latin-1"), "classification", r"not UTF-8 text: byte 0xe9\n.*a\.csv:3\n"),
        ("a.jsonl", '{"text": "a", "label": "x"}\n{"text": "café", "label": "y"}\n'.encode("latin-1"), "classification", r"byte 0xe9\n.*a\.jsonl:2\n"),
    ],
)  # fmt: skip
def test_odd_files_are_one_clear_error(
    name: str, content: str | bytes, task: Any, wanted: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError, match=wanted):
        read_dataset(ExamplesConfig(file=str(path)), task=task)


def test_a_directory_in_place_of_a_file_is_named_as_one(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"a directory, not a file of examples\n.*\n.*name a file in it"
    ):
        read_dataset(ExamplesConfig(file=str(tmp_path)))


@pytest.mark.parametrize("sign", ["|", ",", ";", ":", "#", "tab"])
def test_the_delimiter_that_an_error_names_is_taken_as_it_is_named(
    sign: str, tmp_path: Path
) -> None:
    stands, path = "\t" if sign == "tab" else sign, tmp_path / "a.txt"
    path = tmp_path / ("a.tsv" if sign == "," else "a.csv")
    path.write_text(f"text{stands}label\n" + f"a{stands}x\nb{stands}y\n" * 2)
    if sign in "|,;tab":
        with pytest.raises(UsageError) as raised:
            read_dataset(ExamplesConfig(file=str(path)))
        assert f"data.delimiter={sign}" in str(raised.value)
    words = ["task=classification", f"data.file={path}", "model.path=x", f"data.delimiter={sign}"]
    found = read_dataset(settings_of("classification", None, words).config.data)
    assert found.train.texts + found.held_out.texts in {("a", "b", "a", "b")}


def test_labels_in_a_list_may_be_missing_and_of_two_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(line("a", [0, None, 1]) + line("b", [1]) + line("c", None))
    found = read_dataset(ExamplesConfig(file=str(tmp_path / "a.jsonl"), held_out=0.0), task="multilabel")  # fmt: skip
    assert found.train.labels == (("0", "1"), ("1",), ())


def without_special_tokens() -> PreTrainedTokenizerFast:
    made = tokenizer().backend_tokenizer
    made.post_processor = None
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]", pad_token="[PAD]")


def test_a_text_without_a_token_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a tokenizer that sees nothing in it and adds nothing; made anew, and out of the cache."""
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path))
    own, place = without_special_tokens(), {"file": "a.csv", "lines": (2, 5)}
    texts = Examples(("a film", "\u200b\u200b"), ("x", "y"), **place)
    words = Examples((("a", "film"), ("\u200b",)), (), **place)
    for _ in range(2):
        with pytest.raises(
            UsageError, match=r"no token of the text '\\u200b\\u200b'\n.*a.csv:5\n.*remove"
        ):
            tokenized(own, "one", texts, 8)
        with pytest.raises(UsageError, match=r"no token of the text '\\u200b'\n.*a.csv:5\n"):
            tokenized_words(own, "one", words, 8)


def test_texts_that_are_cut_at_their_beginning_are_not_taken_out_of_the_cache_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path))
    own, text = tokenizer(), "the film was great and lovely"
    ends, begins = [], []
    for side, found in (("right", ends), ("left", begins)):
        own.truncation_side = side
        found += tokenized(own, "one", Examples((text,), ("x",)), 5)[0].tolist()
        found += tokenized_words(own, "one", Examples((tuple(text.split()),), ()), 5)[0][0].tolist()
    assert own.decode(ends, skip_special_tokens=True) == "the film was the film was"
    assert own.decode(begins, skip_special_tokens=True) == "great and lovely great and lovely"


def test_words_are_not_taken_out_of_the_cache_of_others_that_have_the_same_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path))
    for texts in (
        (("film", ""), ("story",)),
        (("film",), ("", "story")),
        (("film", "story"), ("a",)),
        (("film",), ("story", "a")),
        (("film\0story",), ("a",)),
    ):
        found = tokenized_words(tokenizer(), "one", Examples(texts, ((),) * 2), 9)
        for own, wanted in zip(found, encode_words(tokenizer(), texts, 9), strict=True):
            assert [each.tolist() for each in own] == [each.tolist() for each in wanted]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A file with the examples of each label together, as they often are."""
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    sentences = [text for text, _ in rows(60)]
    lines = [f'"{text}",{number // 5}' for number, text in enumerate(sentences)]
    (tmp_path / "a.csv").write_text("\n".join(["text,label", *lines]))
    model = save_encoder("bert", tmp_path / "bert")
    words = ["train", "--task", "classification", "--data", str(tmp_path / "a.csv"), "--model", str(model)]  # fmt: skip
    return [*words, "train.steps=1", "logging.tensorboard=false", "--out", str(tmp_path / "run")]


def test_classes_that_no_held_out_example_has_are_counted_and_those_there_are_evaluated(
    job: list[str], tmp_path: Path, run: Run
) -> None:
    said = run(job)
    assert "54 examples to train on and 6 held out, of 12 classes" in said
    assert "of 6 of the 12 classes no example is held out: their recall is not measured" in said
    task = json.loads((tmp_path / "run/task.json").read_text())
    assert task["classes"] == [str(n) for n in range(12)]
    assert sum(map(sum, task["confusion"])) == 6
    config = json.loads((tmp_path / "run/model/config.json").read_text())
    assert config["label2id"]["10"] == 10


def test_few_of_the_held_out_examples_are_taken_from_all_over_a_sorted_file(
    job: list[str], tmp_path: Path, run: Run
) -> None:
    said = run([*job, "data.held_out=0.4", "eval.windows=6", "eval.every_steps=1"])
    assert "no example is held out" not in said
    confusion = json.loads((tmp_path / "run/task.json").read_text())["confusion"]
    assert [sum(row) for row in confusion] == [1, 0] * 6


def test_a_head_for_another_number_of_labels_is_replaced_and_one_for_others_is_kept_and_a_note_says_so(
    job: list[str], tmp_path: Path, run: Run
) -> None:
    for number, first, notes in (
        (5, 0, (True, False)),
        (12, 0, (False, False)),
        (12, 1, (False, True)),
    ):
        settings = config("bert")
        settings.id2label = {n: str((n + first) % number) for n in range(number)}
        place = tmp_path / f"trained{number}-{first}"
        AutoModelForSequenceClassification.from_config(settings).save_pretrained(place)
        tokenizer().save_pretrained(place)
        job[job.index("--model") + 1], job[-1] = str(place), str(tmp_path / f"run{number}-{first}")
        said = run(job)
        assert ("new, with random weights: classifier" in said) == notes[0]
        assert ("the head is kept, whose outputs were 1, 2, 3, 4" in said) == notes[1]


def test_a_decoder_learns_from_the_last_token_of_each_text_whatever_its_pad_token(
    job: list[str], tmp_path: Path, run: Run
) -> None:
    """Its config has another one than the tokenizer, and its head looks for the token before the padding."""
    settings = config("gpt2")
    settings.update({"pad_token_id": 5, "initializer_range": 1.0})
    AutoModel.from_config(settings).save_pretrained(tmp_path / "gpt2")
    tokenizer().save_pretrained(tmp_path / "gpt2")
    job[job.index("--model") + 1] = str(tmp_path / "gpt2")
    run([*job, "train.precision=fp32"])
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run/model").eval()
    own = AutoTokenizer.from_pretrained(tmp_path / "run/model")
    out = read_dataset(ExamplesConfig(file=str(tmp_path / "a.csv"))).held_out
    losses = []
    for text, label in zip(out.texts, out.labels, strict=True):
        with torch.no_grad():
            logits = model(own(text, return_tensors="pt").input_ids).logits
        losses.append(float(F.cross_entropy(logits, torch.tensor([int(label)]))))
    evaluated = json.loads((tmp_path / "run/evals.jsonl").read_text().splitlines()[-1])["loss"]
    assert evaluated == pytest.approx(sum(losses) / len(losses), rel=1e-4)
