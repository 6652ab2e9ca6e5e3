"""Layouts, mixes, masks, reading ahead and streaming, through whole trainings."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
import torch

from hotloop.cli.main import run
from hotloop.core.errors import UsageError
from hotloop.core.settings import load_settings
from hotloop.core.step import read_steps
from hotloop.data.cache import ensure_prepared
from hotloop.data.fitting import bucket_widths
from hotloop.data.mix import Mix
from hotloop.data.prepared import open_prepared
from hotloop.train.joining import Meeting
from hotloop.train.opening import opened_text
from hotloop.train.reading import places_of, read_step, training_batches
from hotloop.train.start import Finished, start


def train(
    config: Path, directory: Path, *overrides: str, stop_after: int | None = None
) -> Finished:
    return start(load_settings(config, overrides), directory, stop_after=stop_after)


def losses(directory: Path) -> list[float | None]:
    return [record.loss for record in read_steps(directory / "steps.jsonl")]


def targets(directory: Path) -> list[int]:
    return [record.tokens for record in read_steps(directory / "steps.jsonl")]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))


Dies = Callable[[int], AbstractContextManager[None]]
LAYOUTS = (
    ("data.document_mask=true",),
    ("data.layout=pack",),
    ("data.layout=pack", "data.document_mask=false"),
    ("data.layout=bucket",),
)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("attention", ["sdpa", "plain"])
def test_every_layout_learns_and_evaluates(
    tiny_config: Path, tmp_path: Path, layout: tuple[str, ...], attention: str
) -> None:
    finished = train(tiny_config, tmp_path / "run", *layout, f"train.attention={attention}")
    found = losses(tmp_path / "run")
    assert all(loss is not None and np.isfinite(loss) for loss in found)
    assert finished.held_out_loss is not None
    assert np.isfinite(finished.held_out_loss)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_interrupted_training_sees_what_an_uninterrupted_one_sees(
    tiny_config: Path, tmp_path: Path, layout: tuple[str, ...], dies_after: Dies
) -> None:
    train(tiny_config, tmp_path / "straight", *layout)
    with dies_after(8):
        train(tiny_config, tmp_path / "broken", *layout)
    train(tiny_config, tmp_path / "broken", *layout)
    assert losses(tmp_path / "broken") == losses(tmp_path / "straight")


@pytest.mark.parametrize("layout", [(), ("data.layout=pack",), ("data.layout=bucket",)])
@pytest.mark.parametrize("depth", [1, 5])
def test_reading_ahead_changes_nothing(
    tiny_config: Path, tmp_path: Path, layout: tuple[str, ...], depth: int
) -> None:
    train(tiny_config, tmp_path / "plain", "data.prefetch=0", *layout)
    train(tiny_config, tmp_path / "ahead", f"data.prefetch={depth}", *layout)
    assert losses(tmp_path / "ahead") == losses(tmp_path / "plain")


@pytest.mark.parametrize("layout", [(), ("data.document_mask=true",), *LAYOUTS[1:]])
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_ranks_take_the_same_samples_and_know_the_targets_of_the_step(
    tiny_config: Path, layout: tuple[str, ...], num_ranks: int, tmp_path: Path
) -> None:
    config = load_settings(
        tiny_config, ["train.microbatch=2", "train.grad_accum_steps=4", *layout]
    ).config
    with opened_text(config, Meeting(), progress=lambda *_: None) as text:
        batches = training_batches(config, text.data)
        for position in (0, 8, 800):
            alone = read_step(config, batches, position, own=range(4), pinned=False)
            shares = [
                read_step(
                    config,
                    batches,
                    position,
                    own=range(rank * 4 // num_ranks, (rank + 1) * 4 // num_ranks),
                    pinned=False,
                )
                for rank in range(num_ranks)
            ]
            assert {share.num_targets for share in shares} == {alone.num_targets}
            together = [m for share in shares for m in share.microbatches]
            for mine, theirs in zip(alone.microbatches, together, strict=True):
                assert torch.equal(mine.tokens, theirs.tokens)
                assert torch.equal(mine.targets, theirs.targets)
            real = sum(int((m.targets >= 0).sum()) for m in alone.microbatches)
            assert alone.num_targets == real > 0


def test_bucket_steps_stay_within_the_budget_and_use_few_shapes(
    tiny_config: Path, tmp_path: Path
) -> None:
    config = load_settings(tiny_config, ["data.layout=bucket"]).config
    budget = config.train.microbatch * config.model.context
    with opened_text(config, Meeting(), progress=lambda *_: None) as text:
        batches = training_batches(config, text.data)
        shapes = set()
        for step in range(200):
            data = read_step(config, batches, step * 4, own=range(1), pinned=False)
            shapes.add(tuple(data.microbatches[0].tokens.shape))
            assert data.microbatches[0].tokens.numel() <= budget
            assert data.num_targets > 0
    assert len(shapes) <= len(bucket_widths(config.model.context))


def test_places_count_from_the_start_of_the_document_or_of_the_row() -> None:
    starts = np.array([[0, 0, 1, 0, 1, 1, 0], [1, 0, 0, 0, 0, 0, 1]], dtype=bool)
    assert places_of(starts).tolist() == [[0, 1, 0, 1, 0, 0, 1], [0, 1, 2, 3, 4, 5, 0]]


@pytest.fixture
def mixed_config(tmp_path: Path) -> Path:
    for name, word in (("a", "alpha beta gamma"), ("b", "one two three four five")):
        (tmp_path / name).mkdir()
        for number in range(30):
            (tmp_path / name / f"{number}.txt").write_text(f"{word} {number} " * 40)
    path = tmp_path / "mixed.yaml"
    path.write_text(
        f"""data:
  - {{source: {tmp_path / "a"}, weight: 3}}
  - {{source: {tmp_path / "b"}}}
model: {{layers: 1, width: 16, heads: 2, context: 16}}
train: {{steps: 12, microbatch: 4, compile: false, precision: fp32, num_threads: 1}}
schedule: {{warmup_steps: 2}}
eval: {{every_steps: 6, windows: 8}}
checkpoint: {{every_steps: 4}}
"""
    )
    return path


def test_a_list_of_corpora_is_trained_on_in_its_shares(mixed_config: Path, tmp_path: Path) -> None:
    config = load_settings(mixed_config, ["data.tokenizer=bytes"]).config
    with opened_text(config, Meeting(), progress=lambda *_: None) as text:
        batches = training_batches(config, text.data)
    assert isinstance(batches, Mix)
    assert np.bincount(batches.sources(2048, 1024)[0]).tolist() == [768, 256]
    finished = train(mixed_config, tmp_path / "run", "data.tokenizer=bytes")
    assert finished.held_out_loss is not None
    stored = load_settings(tmp_path / "run/config.yaml").config
    assert stored.data.mix is not None
    assert [corpus.weight for corpus in stored.data.mix] == [3.0, 1.0]
    # The shares are part of what was learned from.
    changed = json.dumps([corpus.model_dump() | {"weight": 1.0} for corpus in stored.data.mix])
    with pytest.raises(UsageError, match="other data"):
        train(mixed_config, tmp_path / "run", "data.tokenizer=bytes", f"data.mix={changed}")


def test_mix_of_two_tokenizers_is_refused_with_what_to_do(
    mixed_config: Path, tmp_path: Path
) -> None:
    first = ensure_prepared(str(tmp_path / "a"), "bytes")
    second = ensure_prepared(str(tmp_path / "b"), "train:300")
    mix = json.dumps([{"prepared": str(first)}, {"prepared": str(second)}])
    with pytest.raises(UsageError, match="another tokenizer") as caught:
        train(mixed_config, tmp_path / "run", f"data.mix={mix}")
    assert caught.value.where == str(second)
    assert "--tokenizer" in str(caught.value)


def test_sources_of_a_mix_take_the_first_ones_trained_tokenizer(
    mixed_config: Path, tmp_path: Path
) -> None:
    train(mixed_config, tmp_path / "run", "data.tokenizer=train:300", stop_after=2)
    assert targets(tmp_path / "run") == [64, 64]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("data.order=sequential", "data.layout=bucket"), "short ones first"),
        (("data.stream=true",), "needs a `source`"),
        (("data.layout=bucket", "data.document_mask=true"), "no effect"),
        (("data.shuffle_buffer=7",), "no effect"),
        (("data.mix=[]",), "at least 1 item"),
        (("data.mix=[{source: a, prepared: b}]",), "exactly one"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    tiny_config: Path, overrides: tuple[str, ...], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        load_settings(tiny_config, overrides)


@pytest.fixture
def streamed_config(mixed_config: Path, tmp_path: Path) -> Path:
    text = mixed_config.read_text()
    source = (
        f"data: {{source: {tmp_path / 'a'}, tokenizer: bytes, stream: true, shuffle_buffer: 32}}\n"
    )
    path = tmp_path / "streamed.yaml"
    path.write_text(source + text[text.index("model:") :])
    return path


def test_streamed_training_resumes_bit_for_bit_also_once_the_text_is_prepared(
    streamed_config: Path, tmp_path: Path, dies_after: Dies, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(streamed_config, tmp_path / "straight")
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "another"))
    with dies_after(8):
        train(streamed_config, tmp_path / "broken")
    ensure_prepared(str(tmp_path / "a"), "bytes")
    finished = train(streamed_config, tmp_path / "broken")
    assert losses(tmp_path / "broken") == losses(tmp_path / "straight")
    assert finished.held_out_loss is not None


def test_streamed_source_that_is_not_there_is_a_usage_error(
    streamed_config: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="no such source"):
        train(streamed_config, tmp_path / "run", "data.source=nowhere")


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """A directory of JSON lines, some of them broken, beside notes that are not to be read."""
    root = tmp_path / "records"
    root.mkdir()
    for name in ("one", "two"):
        lines = [json.dumps({"body": f"{name} {n} " * (n % 40 + 1), "id": n}) for n in range(200)]
        (root / f"{name}.jsonl").write_text("\n".join([*lines, '{"body": "cut']) + "\n")
    (root / "notes.txt").write_text("not this")
    return root


READING = (
    "data.reading.text_field=body",
    "data.reading.skip_bad=true",
    "data.reading.min_chars=40",
    'data.reading.include=["*.jsonl"]',
)


def test_source_is_read_as_the_settings_say_streamed_or_not(
    streamed_config: Path, records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = "data.order=sequential"
    words = (f"data.source={records}", order, *READING)
    train(streamed_config, tmp_path / "streamed", *words)
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "another"))
    train(streamed_config, tmp_path / "first", "data.stream=false", *words)
    assert losses(tmp_path / "streamed") == losses(tmp_path / "first")
    out = tmp_path / "prepared"
    words = ["--text-field", "body", "--skip-bad", "--min-chars", "40", "--include", "*.jsonl"]
    assert run(["prepare", str(records), "--out", str(out), "--tokenizer", "bytes", *words]) == 0
    train(streamed_config, tmp_path / "second", "data.stream=false", f"data.prepared={out}", order)
    assert losses(tmp_path / "first") == losses(tmp_path / "second")
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["sources"][0]["skipped"]["not in --include"] == 1


def test_list_of_sources_is_one_text(streamed_config: Path, tmp_path: Path) -> None:
    both = f"data.source=[{tmp_path / 'a'}, {tmp_path / 'b'}]"
    settings = load_settings(streamed_config, [both, "data.stream=false"])
    with opened_text(settings.config, Meeting(), progress=lambda *_: None) as text:
        manifest = open_prepared(text.paths[0]).manifest
    assert [source.documents for source in manifest.sources] == [30, 30]
    train(streamed_config, tmp_path / "run", both)


def test_corpora_of_a_mix_are_read_each_in_its_way(
    mixed_config: Path, records: Path, tmp_path: Path
) -> None:
    reading = {"text_field": "body", "skip_bad": True, "format": "jsonl", "include": ["*.jsonl"]}
    mix = [{"source": str(tmp_path / "a")}, {"source": str(records), "reading": reading}]
    settings = load_settings(mixed_config, [f"data.mix={json.dumps(mix)}", "data.tokenizer=bytes"])
    with opened_text(settings.config, Meeting(), progress=lambda *_: None) as text:
        members = [open_prepared(path).manifest for path in text.paths]
    assert [member.documents for member in members] == [30, 400]


@pytest.mark.parametrize("stream", ["true", "false"])
@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("data.reading.separator=file",), "leave `data.reading.separator` out"),
        (READING[:1], "`data.reading.skip_bad`"),
        (READING[3:], "`data.reading.include` and `data.reading.exclude` choose"),
    ],
)
def test_error_of_reading_names_the_settings(
    streamed_config: Path,
    records: Path,
    tmp_path: Path,
    stream: str,
    overrides: tuple[str, ...],
    said: str,
) -> None:
    source = f"data.source={records / 'one.jsonl'}"
    with pytest.raises(UsageError) as caught:
        train(streamed_config, tmp_path / "run", source, f"data.stream={stream}", *overrides)
    assert said in str(caught.value)
    assert "--" not in str(caught.value)


@pytest.mark.parametrize("stream", ["true", "false"])
def test_chosen_end_of_text_ends_the_documents(
    streamed_config: Path, tmp_path: Path, stream: str
) -> None:
    from hotloop.data.tokenizer import byte_tokenizer

    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_bytes(byte_tokenizer().to_json())
    words = [f"data.tokenizer={tokenizer}", "data.end_of_text='!'", f"data.stream={stream}"]
    settings = load_settings(streamed_config, words)
    with opened_text(settings.config, Meeting(), progress=lambda *_: None) as text:
        batches = training_batches(settings.config, text.data)
        ids = batches.batch(0, batches.num_windows).tokens
    assert (ids == ord("!")).sum() > 0
    assert (ids == 256).sum() == 0
