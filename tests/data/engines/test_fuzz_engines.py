"""Engines give the reference's ids for strings made to go wrong, of every category of Unicode."""

from __future__ import annotations

import importlib
import itertools
import json
from pathlib import Path
from types import ModuleType

import pytest

from hotloop.data.engines.giga_token import GigaToken, is_composed, of_old_characters
from preparing import prepare_text

for package in ("gigatoken", "sentencepiece", "tiktoken"):
    pytest.importorskip(package)

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def fuzzer(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("fuzz_engines")


@pytest.mark.at_once(1)
@pytest.mark.parametrize("strings", [1_000, 100_000])
def test_gigatoken_and_reference_agree(fuzzer: ModuleType, strings: int) -> None:
    """`strings` for every kind of tokenizer; 500 show each guard that is taken away and any show."""
    assert len(fuzzer.KINDS) >= 10
    for kind, tried in fuzzer.fuzz(list(fuzzer.KINDS), seed=16, strings=strings).items():
        assert tried.differ == 0, f"{kind}: {tried.example!a}"
        assert tried.strings >= strings
        assert tried.own > 0.4 * strings, kind


@pytest.mark.at_once(1)
@pytest.mark.parametrize(("kind", "one_in"), [("o200k", 10), ("o200k", 1), ("DeepSeek", 1)])
def test_every_character_is_of_the_same_category_to_both(
    fuzzer: ModuleType, kind: str, one_in: int
) -> None:
    tried = fuzzer.compare_every_character(kind, one_in)
    assert tried.differ == 0, f"{tried.example!a}"
    assert tried.own == tried.strings > 500_000 / one_in


@pytest.mark.parametrize("kind", ["GPT-2", "Qwen 2, NFC, added tokens", "tiktoken cl100k"])
def test_without_the_guard_the_same_strings_show_a_difference(
    fuzzer: ModuleType, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        GigaToken, "_proven", property(lambda self: lambda *_: True, lambda *_: None), raising=False
    )
    tried = fuzzer.fuzz([kind], seed=16, strings=1_000)[kind]
    assert tried.own == tried.strings
    assert tried.differ


def test_every_category_stands_beside_every_other(fuzzer: ModuleType) -> None:
    import unicodedata

    strings = fuzzer.StrangeText(3, "some text").strings(40_000)
    pairs = {
        (unicodedata.category(one), unicodedata.category(other))
        for text in strings
        for one, other in itertools.pairwise(text)
    }
    categories = {category for pair in pairs for category in pair}
    assert len(categories) == 29
    assert len(pairs) == 29 * 29


@pytest.mark.parametrize(
    ("text", "old"),
    [
        ("plain\x00\x0b", True),
        ("naïve Привет 世界 한국어 हिन्दी ไทย עברית", True),
        ("✅ ✨ 🎉👨‍👩‍👧 🇩🇪 ₿ ẞ", True),
        ("\u1715\u0322", False),
        ("\u0295", False),
        ("\U00032481", False),
        ("\u0378", False),
        ("\uffff", False),
    ],
)
def test_only_characters_of_old_versions_of_unicode_are_given_to_engines(
    text: str, old: bool
) -> None:
    assert of_old_characters(text, text.encode()) is old


def test_marks_in_another_order_are_not_composed() -> None:
    assert is_composed("é")
    assert not is_composed("e\u0301")
    assert not is_composed("\u1e0b\u0323")


@pytest.mark.at_once(1)
@pytest.mark.parametrize("kind", ["Qwen 2, NFC, added tokens", "GPT-2"])
def test_rare_documents_are_prepared_as_by_the_reference(
    fuzzer: ModuleType, kind: str, tmp_path: Path
) -> None:
    rare = ["\u1715\u0322 q", "\x0bnot at the start", "1\U00032481's", "a <tool_call> b", "e\u0301"]
    source = tmp_path / "text.jsonl"
    with source.open("w") as file:
        for text in [fuzzer.REAL[:300], *rare, fuzzer.REAL[-300:]] * 50:
            file.write(json.dumps({"text": text}) + "\n")
    fuzzer.made(kind).save(tmp_path / "tokenizer.json")
    shards = []
    for name in ("gigatoken", "reference"):
        out, spec = tmp_path / name, str(tmp_path / "tokenizer.json")
        done = prepare_text([str(source)], out, tokenizer=spec, engine=name)
        shards.append(
            [path.read_bytes() for path in sorted(out.iterdir()) if path.name != "manifest.json"]
        )
        used = {job.engine.split()[0] for job in done.manifest.jobs}
        assert used == {name if name == "gigatoken" else "tokenizers"}
    assert shards[0] == shards[1]
