"""Examples of the other tasks that cannot be learned from: what, where, what to do."""

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from hotloop.core.errors import UsageError
from hotloop.core.finetune_config import ExamplesConfig
from hotloop.finetune.examples import read_dataset
from hotloop.finetune.tagged import word_spans

SPAN = {"text": "we met Anna Lee in Oslo.", "spans": [{"start": 7, "end": 15, "label": "PER"}, {"start": 19, "end": 23, "label": "LOC"}]}  # fmt: skip


def line(**more: Any) -> str:
    return json.dumps(SPAN | more) + "\n"


def span(begin: Any, end: Any, label: Any = "PER") -> dict[str, Any]:
    return {"spans": [{"start": begin, "end": end, "label": label}]}


CONLL = "EU B-ORG\nrejects O\n\n"
BEFORE = "28ba8efeecc02163", "e1bdc40e626f867f", "e28754cafd4451d3", "05d992d137726fca"


@pytest.mark.parametrize(
    ("name", "content", "task", "settings", "wanted"),
    [
        ("a.conll", CONLL + "Oslo\n", "tokens", {}, r"1 column here, and 2 in the lines before\n.*:4"),
        ("a.conll", CONLL + "so O\n#love\n", "tokens", {}, r"1 column here, and 2 in the lines before\n.*:5"),
        ("a.conll", CONLL + "Oslo x B-LOC\n", "tokens", {}, r"3 columns here, and 2 .*\n.*:4"),
        ("a.conll", CONLL + "Oslo\tB-LOC\nx NN\n", "tokens", {}, r"`NN` is no tag\n.*:5"),
        ("a.conll", "EU O\n\nx O\n", "tokens", {}, r"no text has an entity"),
        ("a.conll", "\n\n", "tokens", {}, r"no examples in this file"),
        ("a.conll", CONLL, "classification+tokens", {}, r"needs jsonl"),
        ("a.jsonl", '{"words": ["a", "b"], "tags": ["O"]}\n', "tokens", {}, r"2 words and 1 tag\n.*:1"),
        ("a.jsonl", '{"words": ["a"], "tags": [3]}\n', "tokens", {}, r"`tags` is not a list of words\n.*:1"),
        ("a.jsonl", '{"words": ["a"]}\n', "tokens", {}, r"no `tags`\n.*:1\n.*data.tags"),
        ("a.jsonl", '{"tokens": ["a"]}\n', "tokens", {}, r"neither `words` .*\n.*:1\n.*there: `tokens`"),
        ("a.jsonl", line() + line(**span(8, 15)), "tokens", {}, r"span 8 to 15, `nna Lee`, does not begin and end where words do\n.*:2"),
        ("a.jsonl", line(**span(7, 99)), "tokens", {}, r"not within its text of 24 characters\n.*:1"),
        ("a.jsonl", line(**span("7", 15)), "tokens", {}, r"a span without start, end or label\n.*:1"),
        ("a.jsonl", line(spans=SPAN["spans"] * 2), "tokens", {}, r"spans of `PER` and `PER` overlap at character 7\n.*:1"),
        ("a.jsonl", line(), "classification+tokens", {}, r"no `label`\n.*:1\n.*data.label"),
        ("a.jsonl", line() * 3, "tokens", {"held_out": "other.jsonl"}, r"have the label `MISC`, which no training example has\n.*other.jsonl:2\n.*LOC, PER"),
        ("a.csv", "text,label\na,x\nb,x|y\n", "multilabel", {"held_out": "other.jsonl"}, r"have the label `z`, which no training example has\n.*other.jsonl:2\n"),
        ("a.csv", "text,label\na,1\nb,nan\n", "regression", {}, r"no number \(`nan`\)\n.*:3, column `label`"),
        ("a.csv", "text,label\na,1\nb,-1e39\n", "regression", {}, r"no number that fp32 holds \(`-1e39`\)\n.*:3, column `label`"),
        ("a.csv", "text,label\na,good\n", "regression", {}, r"no number \(`good`\)\n.*:2"),
        ("a.csv", "text,label\na,1\nb,1\n", "regression", {}, r"all examples have the number 1"),
        ("a.csv", "text,x,y\na,1,2\n", "multilabel", {"label": ["x", "y"]}, r"neither 0 nor 1 \(`2`\)\n.*:2, column `y`"),
        ("a.csv", "text,x\na,1\n", "multilabel", {"label": ["x", "y"]}, r"no column `y`"),
        ("a.csv", "text,label\na,x|y\nb,y|x\n", "multilabel", {}, r"all examples have the labels .*\n.*\n.*data.separator"),
        ("a.csv", "text,label\na,\nb,\n", "multilabel", {}, r"have the labels none"),
        ("a.jsonl", '{"text": "a", "label": {"x": 1.0, "y": 0.0}}\n', "multilabel", {}, r"neither a label nor a list of labels \(`.'x': 1.0, 'y': 0.0.`\)\n.*:1, column `label`\n.*data.label=\[first,second\]"),
        ("a.jsonl", '{"text": "a", "label": ["x", ["y"]]}\n', "multilabel", {}, r"neither a label nor a list of labels .*\n.*:1, column `label`\n.*a list of the labels that hold"),
        ("a.jsonl", '{"text": "a", "label": [{"name": "x"}]}\n', "multilabel", {}, r"neither a label nor a list of labels .*\n.*:1, column `label`"),
        ("a.csv", "text,label\na,good\nnot bad, really,good\n", "classification", {}, r"3 columns here, and 2 in the first line\n.*:3\n.*in quotes"),
    ],
)  # fmt: skip
def test_bad_examples_are_one_clear_error(
    name: str,
    content: str,
    task: Any,
    settings: dict[str, Any],
    wanted: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(content)
    other = line(label="x") + line(**span(7, 15, "MISC"), label="z")
    Path("other.jsonl").write_text(other)
    with pytest.raises(UsageError, match=wanted):
        read_dataset(ExamplesConfig(file=name, **settings), task=task)


def test_a_kind_of_entity_is_no_label_of_a_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(line(label="good") + line(label="bad"))
    (tmp_path / "b.jsonl").write_text(line(label="bad") + line(label="PER"))
    config = ExamplesConfig(file=str(tmp_path / "a.jsonl"), held_out=str(tmp_path / "b.jsonl"))
    with pytest.raises(
        UsageError, match=r"have the label `PER`, which no training .*\n.*b.jsonl:2"
    ):
        read_dataset(config, task="classification+tokens")


def test_a_text_in_a_table_may_be_of_any_length(tmp_path: Path) -> None:
    text = "so " * 50_000
    (tmp_path / "a.csv").write_text(f"text,label\n{text},x\nshort,y\n")
    found = read_dataset(ExamplesConfig(file=str(tmp_path / "a.csv"), held_out=0.0))
    assert found.train.texts == (text.strip(), "short")


def test_columns_words_and_spans_hold_the_same_examples(tmp_path: Path) -> None:
    words, tags = ("we", "met", "Anna", "Lee", "in", "Oslo", "."), ("O", "O", "B-PER", "I-PER", "O", "B-LOC", "O")  # fmt: skip
    pairs = list(zip(words, tags, strict=True))
    (tmp_path / "a.conll").write_text(
        "-DOCSTART- O\n\n# a text\n" + "".join(f"{w} {t}\n" for w, t in pairs)
    )
    (tmp_path / "b.tsv").write_text(
        "".join(f"{w}\tNN\t{t.replace('B-', 'I-')}\n" for w, t in pairs)
    )
    (tmp_path / "c.jsonl").write_text(
        json.dumps({"words": words, "tags": tags}) + '\n{"words": [], "tags": []}\n'
    )
    (tmp_path / "d.jsonl").write_text(
        line(**{"spans": [{"start": 6, "end": 15, "label": "PER"}, SPAN["spans"][1]]})
    )
    for name in ("a.conll", "b.tsv", "c.jsonl", "d.jsonl"):
        config = ExamplesConfig(file=str(tmp_path / name), held_out=0.0)
        found = read_dataset(config, task="tokens")
        assert found.train.texts == (words,), name
        assert found.train.labels == (tags,), name
        assert found.train.num_empty == (name == "c.jsonl")
        assert found.kinds == ("LOC", "PER")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("नमस्ते, राम दिल्ली गया।", "नमस्ते|,|राम|दिल्ली|गया|।"),
        (unicodedata.normalize("NFD", "José était là!"), unicodedata.normalize("NFD", "José|était|là|!")),
        ("می\u200cخواهم بروم", "می\u200cخواهم|بروم"),
        ("我在北京。", "我|在|北|京|。"),
        ("東京タワー v2へ", "東|京|タ|ワ|ー|v2|へ"),
        ("ไปกรุง 12", "ไ|ป|ก|รุ|ง|12"),
        ("so_much ❤\ufe0f \u0301x", "so_much|❤\ufe0f|\u0301|x"),
        ("서울에 갔다", "서울에|갔다"),
    ],
)  # fmt: skip
def test_marks_belong_to_their_word_and_scripts_without_spaces_have_one_a_character(
    text: str, words: str
) -> None:
    assert "|".join(text[begin:end] for begin, end in word_spans(text)) == words


def test_a_run_of_the_same_words_continues_and_one_of_other_words_does_not(tmp_path: Path) -> None:
    """The fingerprints were recorded by the version before."""
    text, kinds = "我在 北京 吗", {"spans": [{"start": 3, "end": 5, "label": "LOC"}]}
    spaced = ["我", "在", "北", "京"], ["O", "O", "B-LOC", "I-LOC"]
    for number, (row, is_same) in enumerate([
        (SPAN, True),
        ({"text": "été à Oslo", "spans": [{"start": 6, "end": 10, "label": "LOC"}]}, True),
        ({"text": text, **kinds}, False),
        ({"words": spaced[0], "tags": spaced[1], "text": text}, True),
    ]):  # fmt: skip
        path = tmp_path / f"{number}.jsonl"
        path.write_text(json.dumps(row) + "\n")
        found = read_dataset(ExamplesConfig(file=str(path), held_out=0.0), task="tokens")
        assert (found.fingerprint[:16] == BEFORE[number]) == is_same
        if not is_same:
            assert found.train.texts == (("我", "在", "北", "京", "吗"),)
            assert found.train.labels == (("O", "O", "B-LOC", "I-LOC", "O"),)


def test_a_comment_stands_between_sentences_and_ends_with_no_tag(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text("# id 1\n#Paris B-LOC\n# O\n\n# id\nso O\n#now O\n")
    found = read_dataset(ExamplesConfig(file=str(path), held_out=0.0), task="tokens")
    assert found.train.texts == (("#Paris", "#"), ("so", "#now"))


def test_several_labels_stand_in_one_column_or_each_in_its_own(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\none,x|y\ntwo,\nthree, y \n")
    (tmp_path / "b.csv").write_text("text,x,y\none,1,true\ntwo,0,0\nthree,0,1.0\n")
    (tmp_path / "c.jsonl").write_text(
        '{"text": "one", "label": ["x", "y"]}\n{"text": "two", "label": []}\n{"text": "three", "label": "y"}\n'
    )
    for name, label in (("a.csv", "label"), ("b.csv", ["x", "y"]), ("c.jsonl", "label")):
        config = ExamplesConfig(file=str(tmp_path / name), label=label, held_out=0.0)
        found = read_dataset(config, task="multilabel")
        assert found.train.labels == (("x", "y"), (), ("y",)), name
        assert found.classes == ("x", "y")


def test_a_delimiter_at_the_end_of_a_line_is_no_column(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\none,x,\ntwo,y, \n")
    found = read_dataset(ExamplesConfig(file=str(tmp_path / "a.csv"), held_out=0.0))
    assert found.train.labels == ("x", "y")


def test_a_limit_draws_examples_and_keeps_all_labels(tmp_path: Path) -> None:
    rows = "".join(f"t{n},{n % 3}\n" for n in range(90))
    (tmp_path / "a.csv").write_text("text,label\n" + rows)
    config = ExamplesConfig(file=str(tmp_path / "a.csv"), limit=20, held_out=0.5)
    found = read_dataset(config)
    assert (len(found.train), len(found.held_out)) == (20, 20)
    assert not set(found.train.texts) & set(found.held_out.texts)
    assert found.classes == ("0", "1", "2")
    assert found == read_dataset(config)
