"""How the text of a run is named and read, in its settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hotloop.core.data_config import ReadingConfig
from hotloop.core.errors import UsageError
from hotloop.core.settings import load_settings, store_settings


def write(directory: Path, data: str) -> Path:
    path = directory / "config.yaml"
    path.write_text(data)
    return path


def error_of(path: Path, *overrides: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        load_settings(path, overrides)
    return caught.value


READ = """data:
  source: [a.jsonl, b.jsonl]
  reading:
    text_field: body
    min_chars: 10
    skip_bad: true
    encoding_errors: replace
    include: ["*.jsonl"]
  tokenizer: some/tokenizer.json
  end_of_text: "[END]"
"""


def test_reading_is_given_in_the_file_and_by_flag_and_kept_with_the_run(tmp_path: Path) -> None:
    settings = load_settings(write(tmp_path, READ), [r"data.reading.separator=\n--\\n"])
    data = settings.config.data
    assert data.corpora[0].source == ["a.jsonl", "b.jsonl"]
    assert data.reading == data.corpora[0].reading
    assert data.reading.model_dump(exclude_defaults=True) == {
        "text_field": "body",
        "min_chars": 10,
        "skip_bad": True,
        "encoding_errors": "replace",
        "include": ["*.jsonl"],
        "separator": r"\n--\\n",  # as typed, however often it is stored and read
    }
    assert settings.origin("data.reading.separator") == "flag"
    assert settings.origin("data.reading.text_field").endswith("config.yaml:4")
    store_settings(settings, tmp_path / "stored.yaml")
    assert load_settings(tmp_path / "stored.yaml").config == settings.config


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("reading: {text_fields: body}", "unknown key `data.reading.text_fields`"),
        ("reading: {text_field: 3}", "`data.reading.text_field`: input should be a valid string"),
        ("reading: {format: xml}", "`data.reading.format`"),
        ("reading: {min_chars: 9, max_chars: 3}", "`max_chars` 3 is less than `min_chars` 9"),
        ("reading: {max_chars: 0}", "greater than 0"),
        ("reading: {include: '*.py'}", "`data.reading.include`: input should be a valid list"),
        (r"reading: {separator: '\x'}", "cannot read the separator"),
        ("reading: {separator: ''}", "the separator is empty"),
        ("end_of_text: ''", "`data.end_of_text`"),
        ("end_of_text: x", "`data.end_of_text` has no effect"),
        ("end_of_text: x\n  tokenizer: bytes", "`data.end_of_text` has no effect"),
    ],
)
def test_wrong_reading_is_refused_with_its_name_and_place(
    tmp_path: Path, text: str, says: str
) -> None:
    error = error_of(write(tmp_path, f"data:\n  source: texts\n  {text}\n"))
    assert says in error.what
    assert str(error.where).startswith(f"{tmp_path}/config.yaml:3")


def test_prepared_text_was_read_already(tmp_path: Path) -> None:
    error = error_of(write(tmp_path, "data: {prepared: out, reading: {skip_bad: true}}"))
    assert "`data.reading.skip_bad` has no effect" in error.what
    error = error_of(write(tmp_path, "data: {prepared: out, end_of_text: x}"))
    assert "`data.end_of_text` has no effect" in error.what


def test_flag_for_prepared_text_takes_the_place_of_the_files_reading(tmp_path: Path) -> None:
    path = write(tmp_path, READ)
    data = load_settings(path, ["data.prepared=out"]).config.data
    assert (data.prepared, data.reading, data.end_of_text) == ("out", ReadingConfig(), None)
    assert load_settings(path, ["data.source=other"]).config.data.reading.text_field == "body"
    error = error_of(path, "data.prepared=out", "data.reading.skip_bad=false")
    assert "`data.reading.skip_bad` has no effect" in error.what


MIXED = "data: [{source: a, weight: 2, reading: {text_field: body}}, {prepared: b}]"


def test_each_corpus_of_a_mix_is_read_in_its_own_way(tmp_path: Path) -> None:
    settings = load_settings(write(tmp_path, MIXED))
    assert [corpus.reading.text_field for corpus in settings.config.data.corpora] == [
        "body",
        "text",
    ]
    store_settings(settings, tmp_path / "stored.yaml")
    assert load_settings(tmp_path / "stored.yaml").config == settings.config


@pytest.mark.parametrize(
    ("mix", "says"),
    [
        ([{"prepared": "a", "reading": {"skip_bad": True}}], "`reading` has no effect"),
        ([{"source": "a"}, {"source": "b", "read": {}}], "unknown key `data.mix.1.read`"),
        ([{"source": "a", "reading": {"skip": 1}}], "unknown key `data.mix.0.reading.skip`"),
        ([{"source": "a", "reading": {"format": "x"}}], "`data.mix.0.reading.format`"),
        ([{"source": []}], "`data.mix.0.source`: the list is empty"),
        ([{"source": "a"}, {"prepared": "b", "weight": 1e-300}], "the weight 1e-300 of b is less"),
        (
            [{"source": "a", "weight": 1e10}, {"source": "b"}],
            "the weight 1 of b is less than 1e-09",
        ),
        ([{"source": "a", "weight": 1e308}, {"source": "b", "weight": 1e308}], "too large"),
    ],
)
def test_wrong_corpus_of_a_mix_is_named(tmp_path: Path, mix: object, says: str) -> None:
    assert says in error_of(write(tmp_path, f"data: {json.dumps(mix)}")).what


def test_reading_beside_a_mix_has_no_effect(tmp_path: Path) -> None:
    error = error_of(write(tmp_path, "data: {mix: [{source: a}], reading: {skip_bad: true}}"))
    assert "`data.reading.skip_bad` has no effect" in error.what
    assert "reading: {...}" in str(error.do)


def test_mix_cannot_be_streamed_and_says_so(tmp_path: Path) -> None:
    error = error_of(write(tmp_path, MIXED), "data.stream=true")
    assert "`stream` cannot be mixed" in error.what


def test_small_share_is_a_share(tmp_path: Path) -> None:
    mix = json.dumps([{"source": "a"}, {"source": "b", "weight": 1e-8}])
    corpora = load_settings(write(tmp_path, f"data: {mix}")).config.data.corpora
    assert corpora[1].weight == 1e-8


def test_empty_list_of_sources_is_said_to_be_empty(tmp_path: Path) -> None:
    error = error_of(write(tmp_path, "data: {source: []}"))
    assert "`data.source`: the list is empty" in error.what
    error = error_of(write(tmp_path, "data: {source: a}"), "data.source=[]")
    assert "`data.source`: the list is empty" in error.what
