"""tiktoken's encodings as tokenizer.json: the same ids, for every engine, or an error that says why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotloop.core.errors import UsageError
from hotloop.data import tiktoken_encoding
from hotloop.data.engines import TRICKY, EngineRefused, check_conversion, load_engine, route
from hotloop.data.prepared import open_prepared
from hotloop.data.sources import ReadOptions
from hotloop.data.sources.plan import plan
from hotloop.data.sources.tree import standard_library_path
from hotloop.data.tiktoken_encoding import Tiktoken, tiktoken_json
from hotloop.data.tokenizer import Tokenizer, fingerprint_of, load_tokenizer, train_tokenizer
from preparing import prepare, prepare_text

tiktoken = pytest.importorskip("tiktoken")

# As tiktoken 0.14 has them.
PATTERNS = {
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++"
    r"[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    # Possessive throughout and known to nobody: goes through the translation of patterns.
    "own": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,4}+| ?[^\s\p{L}\p{N}]++"
    r"[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
}
PLUGIN = """
    import base64, json
    from pathlib import Path

    def _constructor(kept):
        ranks = {base64.b64decode(token): rank for token, rank in kept.pop("ranks")}
        return lambda: {**kept, "mergeable_ranks": ranks}

    _kept = json.loads(Path(__file__).with_name("hotloop_tests.json").read_text())
    ENCODING_CONSTRUCTORS = {entry["name"]: _constructor(entry) for entry in _kept}

    def _broken():
        raise ConnectionError("Failed to resolve 'example.invalid'")

    ENCODING_CONSTRUCTORS["tests_broken"] = _broken
"""


def files_of_the_standard_library(every: int) -> list[str]:
    paths = sorted(standard_library_path().glob("*.py"))[::every]
    return [path.read_bytes().decode(errors="replace") for path in paths]


TEXTS = files_of_the_standard_library(6)


SEAMS = [
    "\n",
    "\r\n",
    " ",
    "    ",
    "            ",
    "\t",
    "\xa0",
    "\u2028",
    "a",
    " def",
    "'s",
    "'S",
    "ſ",
]
SEAMS += ["1", "123456", "!", " ==", "/", "世", "e\u0301", "É", "ǅ", "\x00", "\x85"]
"""Where patterns of the same intent part."""


def trained_ranks() -> dict[bytes, int]:
    """Real merges of source text; ids as in GPT-2, where those of bytes are not the bytes."""
    merges = json.loads(train_tokenizer(TEXTS, 3000).to_json())["model"]["merges"]
    byte_of = {name: byte for byte, name in enumerate(tiktoken_encoding.BYTE_NAMES)}
    order = sorted(range(256), key=lambda byte: (not chr(byte).isprintable() or byte == 32, byte))
    ranks = {bytes([byte]): rank for rank, byte in enumerate(order)}
    for pair in merges:
        ranks.setdefault(bytes(byte_of[c] for c in "".join(pair)), len(ranks))
    # Found whole only, as some tokens of the published encodings are: no merges lead there.
    ranks[" unreachable世".encode()] = len(ranks)
    return ranks


RANKS = trained_ranks()


def encoding_of(name: str) -> dict[str, Any]:
    last = len(RANKS)
    # A gap before and between, as in cl100k.
    special = {"<|endoftext|>": last + 1, "<|fim_prefix|>": last + 2, "<|endofprompt|>": last + 9}
    return {"name": f"tests_{name}", "pat_str": PATTERNS[name], "special_tokens": special}


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory for `sys.path` with encodings as tiktoken's plugins bring them."""
    import base64

    root = tmp_path_factory.mktemp("plugin")
    (root / "tiktoken_ext").mkdir()
    ranks = [(base64.b64encode(token).decode(), rank) for token, rank in RANKS.items()]
    kept = [{**encoding_of(name), "ranks": ranks} for name in PATTERNS]
    (root / "tiktoken_ext" / "hotloop_tests.json").write_text(json.dumps(kept))
    (root / "tiktoken_ext" / "hotloop_tests.py").write_text(textwrap.dedent(PLUGIN))
    registry = tiktoken.registry
    sys.path.append(str(root))
    registry._available_plugin_modules.cache_clear()
    registry.ENCODING_CONSTRUCTORS = None
    yield root
    sys.path.remove(str(root))
    registry._available_plugin_modules.cache_clear()
    registry.ENCODING_CONSTRUCTORS = None


@pytest.fixture(scope="module", params=list(PATTERNS))
def both(request: pytest.FixtureRequest, plugin: Path) -> tuple[Tokenizer, Any]:
    """Ours and tiktoken's."""
    name = f"tests_{request.param}"
    return load_tokenizer(f"tiktoken:{name}"), tiktoken.get_encoding(name)


def converted(tokenizer: Tokenizer, text: str) -> list[int]:
    assert isinstance(tokenizer.library, Tiktoken)
    return tokenizer.library.converted(text)


def test_converted_ids_are_tiktokens_on_source_text(both: tuple[Tokenizer, Any]) -> None:
    tokenizer, encoding = both
    ends = [text.rstrip() + end for text in TEXTS[:3] for end in ("\n        ", "  \n\n    ", " ")]
    for text in [
        *TEXTS,
        *ends,
        *TRICKY,
        *tokenizer.special_tokens,
        "don't DON'T 'ſ ſ'S \u2028",
        "a \n b\n",
    ]:
        assert (
            encoding.encode_ordinary(text) == converted(tokenizer, text) == tokenizer.encode(text)
        )
        assert encoding.decode(tokenizer.encode(text)) == tokenizer.decode(tokenizer.encode(text))


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.one_of(
        st.text(st.characters(max_codepoint=0x2FFF, exclude_categories=["Cs", "Cn"])),
        st.lists(st.sampled_from(SEAMS), max_size=10).map("".join),
    )
)
def test_converted_ids_are_tiktokens_on_any_text(both: tuple[Tokenizer, Any], text: str) -> None:
    tokenizer, encoding = both
    assert encoding.encode_ordinary(text) == converted(tokenizer, text)
    assert tokenizer.decode(encoding.encode_ordinary(text)) == text


PIECES = st.dictionaries(
    st.text("abc", min_size=2, max_size=5), st.integers(256, 300), min_size=1, max_size=25
)


@settings(max_examples=300, deadline=None)
@given(PIECES, st.lists(st.text("abc", max_size=12), max_size=8))
def test_merges_are_recovered_from_ranks_in_any_order(
    pieces: dict[str, int], texts: list[str]
) -> None:
    """Also where a token ranks before what it is made of, and where nothing makes it."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    taken: set[int] = set()
    for piece, rank in pieces.items():
        if rank not in taken:
            ranks[piece.encode()] = rank
            taken.add(rank)
    encoding = tiktoken.Encoding(
        "x", pat_str=r"\w+|\W+", mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 301}
    )
    tokenizer = Tokenizer(json.dumps(tiktoken_encoding.description_of(encoding)), where="x")
    for text in [*texts, " ".join(texts), *pieces]:
        assert converted(tokenizer, text) == encoding.encode_ordinary(text)


def test_gigatoken_takes_the_published_patterns(plugin: Path) -> None:
    pytest.importorskip("gigatoken")
    for name in ("gpt2", "cl100k", "o200k"):
        tokenizer = load_tokenizer(f"tiktoken:tests_{name}")
        routing = route(tokenizer, TEXTS[:20], threads=1)
        found = {tried.engine: (tried.identical, tried.why) for tried in routing.tried}
        assert found["gigatoken"] == (True, "")


def test_spec_and_saved_file_and_file_without_tiktoken_are_one_tokenizer(
    plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = load_tokenizer("tiktoken:tests_cl100k")
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path)
    assert (
        loaded.fingerprint == tokenizer.fingerprint == fingerprint_of(tmp_path / "tokenizer.json")
    )
    assert loaded.end_of_text == tokenizer.end_of_text == len(RANKS) + 1
    assert (
        loaded.vocabulary_size == len(RANKS) + 10 == tiktoken.get_encoding("tests_cl100k").n_vocab
    )
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    without = Tokenizer.load(tmp_path)
    assert without.encode(TEXTS[0]) == tokenizer.encode(TEXTS[0])
    assert without.encode_batch(TEXTS[:3]) == tokenizer.encode_batch(TEXTS[:3], threads=2)
    with pytest.raises(UsageError, match="not installed") as caught:
        check_conversion(without, plan([__file__], ReadOptions()).units, ReadOptions())
    assert "hotloop[tiktoken]" in str(caught.value)
    with pytest.raises(UsageError, match="not installed"):
        load_tokenizer("tiktoken:cl100k_base")


def test_end_of_text_can_be_another_special_token(plugin: Path) -> None:
    chosen = load_tokenizer("tiktoken:tests_gpt2", end_of_text="<|endofprompt|>")
    assert chosen.end_of_text == len(RANKS) + 9
    assert chosen.end_of_text not in chosen.encode("<|endofprompt|>")
    again = Tokenizer(chosen.to_json().decode(), where="again")
    assert (again.end_of_text, again.encode(TEXTS[0])) == (
        chosen.end_of_text,
        chosen.encode(TEXTS[0]),
    )


def test_unknown_name_lists_what_there_is(plugin: Path) -> None:
    with pytest.raises(UsageError, match="no encoding 'cl100k'") as caught:
        load_tokenizer("tiktoken:cl100k")
    assert "cl100k_base" in str(caught.value)


def test_ranks_that_cannot_be_downloaded_are_one_clear_error(plugin: Path) -> None:
    with pytest.raises(UsageError, match="Failed to resolve") as caught:
        load_tokenizer("tiktoken:tests_broken")
    assert "TIKTOKEN_CACHE_DIR" in str(caught.value)


def test_download_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, end = threading.Event(), threading.Event()

    def silent(name: str) -> None:
        asked.set()
        end.wait()

    monkeypatch.setattr(tiktoken, "get_encoding", silent)
    monkeypatch.setattr(tiktoken_encoding, "DOWNLOAD_S", 0.2)
    try:
        with pytest.raises(UsageError, match="no answer"):
            load_tokenizer("tiktoken:gpt2")
        assert asked.wait(120)
    finally:
        end.set()


def damaged(tokenizer: Tokenizer) -> Tokenizer:
    """One whose merges are not the encoding's."""
    values = json.loads(tokenizer.to_json())
    values["model"]["merges"] = values["model"]["merges"][::-1]
    values["model"]["ignore_merges"] = False
    return Tokenizer(json.dumps(values), where="damaged")


def test_conversion_that_differs_on_the_corpus_ends_with_the_text(
    plugin: Path, corpus: Path, tmp_path: Path
) -> None:
    damaged(load_tokenizer("tiktoken:tests_gpt2")).save(tmp_path / "tokenizer.json")
    with pytest.raises(UsageError, match="other ids than tiktoken from token") as caught:
        prepare([str(corpus)], tmp_path / "out", tokenizer=str(tmp_path / "tokenizer.json"))
    assert "def function" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_engine_that_reads_the_file_is_compared_with_tiktoken(plugin: Path) -> None:
    """gigatoken takes the damaged file and gives its ids; the reference still gives tiktoken's."""
    pytest.importorskip("gigatoken")
    tokenizer = load_tokenizer("tiktoken:tests_gpt2")
    routing = route(damaged(tokenizer), TEXTS[:5], threads=1)
    assert routing.engine == "reference"
    found = {tried.engine: tried.why for tried in routing.tried}
    assert found["gigatoken"].startswith("other ids")
    assert damaged(tokenizer).encode(TEXTS[0]) == tokenizer.encode(TEXTS[0])


def test_special_token_that_text_can_spell_is_refused(plugin: Path, corpus: Path) -> None:
    encoding = tiktoken.Encoding(
        "letters",
        pat_str=PATTERNS["gpt2"],
        mergeable_ranks=RANKS,
        special_tokens={"<|endoftext|>": len(RANKS), "zqzqzq": len(RANKS) + 1},
    )
    tokenizer = Tokenizer(json.dumps(tiktoken_encoding.description_of(encoding)), where="x")
    assert len(RANKS) + 1 not in tokenizer.encode("zqzqzq")
    with pytest.raises(UsageError, match="near 'zqzqzq'"):
        check_conversion(tokenizer, plan([str(corpus)], ReadOptions()).units, ReadOptions())


@pytest.mark.parametrize(
    ("ranks", "special", "why"),
    [
        ({b"a": 0, b"b": 1}, {"<|endoftext|>": 2}, "254 bytes have no id"),
        (RANKS, {"def": len(RANKS)}, "'def' is text and a special token"),
    ],
)
def test_encoding_that_no_tokenizer_file_can_hold_is_refused(
    ranks: dict[bytes, int], special: dict[str, int], why: str
) -> None:
    encoding = tiktoken.Encoding(
        "odd", pat_str=PATTERNS["gpt2"], mergeable_ranks=ranks, special_tokens=special
    )
    with pytest.raises(UsageError, match=why):
        tiktoken_encoding.description_of(encoding)


@pytest.mark.parametrize("kept", ["x", {}, {"name": "x", "pattern": "(", "special_tokens": {}}])
def test_damaged_description_in_a_file_is_refused(plugin: Path, kept: object) -> None:
    values = json.loads(tiktoken_json("tests_gpt2"))
    values["decoder"]["tiktoken"] = kept
    with pytest.raises(UsageError):
        Tokenizer(json.dumps(values), where="file")


def test_text_on_which_tiktoken_itself_fails_is_one_clear_error(
    plugin: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tokenizer = load_tokenizer("tiktoken:tests_gpt2")
    text = " " * 3_000_000 + "x"
    with pytest.raises(UsageError, match="tiktoken cannot encode a text"):
        tokenizer.encode(text)
    with pytest.raises(UsageError, match="tiktoken cannot encode a text"):
        tokenizer.encode_batch([text, "x"], threads=2)
    capfd.readouterr()  # its panic is written to standard error


def shards(directory: Path) -> dict[str, bytes]:
    kept = [p for p in directory.iterdir() if p.suffix in (".bin", ".docs")]
    return {path.name: path.read_bytes() for path in kept}


def test_prepared_by_two_workers_and_by_every_engine_is_the_same(
    plugin: Path, tmp_path: Path
) -> None:
    source = tmp_path / "text"
    source.mkdir()
    for number, text in enumerate(TEXTS):
        (source / f"{number}.py").write_text(text)
    wanted = None
    for number, (engine, workers) in enumerate(
        [("reference", 1), ("reference", 2), ("gigatoken", 2), ("gigatoken", 1), ("auto", 2)]
    ):
        out = tmp_path / f"out-{number}"
        try:
            load_engine(
                engine if engine != "auto" else "reference", load_tokenizer("bytes"), threads=1
            )
        except EngineRefused:
            continue
        done = prepare_text(
            [str(source)],
            out,
            tokenizer="tiktoken:tests_o200k",
            engine=engine,
            workers=workers,
            job_bytes=200_000,
        )
        assert len(done.manifest.jobs) > 2
        found = shards(out)
        wanted = wanted or found
        assert found == wanted
    opened = open_prepared(tmp_path / "out-0")
    encoding = tiktoken.get_encoding("tests_o200k")
    ids = opened.train.read(np.array([0]), len(opened.train))[0].tolist()
    end = opened.manifest.end_of_text
    documents = {tuple(encoding.encode_ordinary(path.read_text())) for path in source.iterdir()}
    first = tuple(ids[: ids.index(end)])
    assert first in documents
    assert opened.manifest.tokenizer == "tiktoken:tests_o200k"


def test_command_prepares_with_a_plugin(plugin: Path, corpus: Path, tmp_path: Path) -> None:
    def command(*more: str) -> subprocess.CompletedProcess[str]:
        told = ["--out", str(tmp_path / "one"), "--tokenizer", "tiktoken:tests_o200k", *more]
        return subprocess.run(
            [sys.executable, "-m", "hotloop", "prepare", str(corpus), *told],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(plugin), *sys.path])},
        )

    first = command()
    assert first.returncode == 0, first.stderr
    assert "tiktoken:tests_o200k" in first.stdout
    assert json.loads(command("--json", "-").stdout)["outcome"] == "up_to_date"
    # The file alone is enough, without the plugin.
    prepare([str(corpus)], tmp_path / "two", tokenizer=str(tmp_path / "one" / "tokenizer.json"))
    assert shards(tmp_path / "one") == shards(tmp_path / "two")


def test_interrupted_preparation_goes_on_to_the_same_bytes(
    plugin: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, Any] = {"tokenizer": "tiktoken:tests_gpt2", "job_bytes": 1000}
    prepare_text([str(corpus)], tmp_path / "whole", **made)
    encode, calls = Tiktoken.encode_batch, iter(range(3))

    def interrupted(self: Tiktoken, texts: list[str], *, threads: int) -> list[list[int]]:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return encode(self, texts, threads=threads)

    monkeypatch.setattr(Tiktoken, "encode_batch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare_text([str(corpus)], tmp_path / "out", **made)
    monkeypatch.undo()
    done = prepare_text([str(corpus)], tmp_path / "out", **made)
    assert done.encoding is not None
    assert 0 < done.encoding.jobs < len(done.manifest.jobs)
    assert shards(tmp_path / "out") == shards(tmp_path / "whole")
