"""Layouts, mixes, masks, reading ahead and streaming, through whole trainings."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
import torch
from trainings import losses, records, train

from hotloop.cli.main import run
from hotloop.core.errors import UsageError
from hotloop.core.ranks import Ranks
from hotloop.core.settings import load_settings
from hotloop.data.loader import Mix
from hotloop.data.piece_index import bucket_widths
from hotloop.data.prepare import ensure_prepared
from hotloop.data.prepared import open_prepared
from hotloop.data.spec import Spec
from hotloop.train.batches import places_of, read_step, training_batches
from hotloop.train.opened_text import opened_text
from hotloop.train.rendezvous import Rendezvous
from hotloop.train.same_run import refuse_uneven
from hotloop.train.start import start


def targets(directory: Path) -> list[int]:
    return [record.tokens for record in records(directory)]


pytestmark = pytest.mark.usefixtures("own_cache")

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
    with opened_text(config, Rendezvous(), progress=lambda *_: None) as text:
        batches = training_batches(config, text)
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
                assert all(map(torch.equal, mine, theirs))
            real = sum(int((targets >= 0).sum()) for _, targets, *_ in alone.microbatches)
            assert alone.num_targets == real > 0


def test_bucket_steps_stay_within_the_budget_and_use_few_shapes(
    tiny_config: Path, tmp_path: Path
) -> None:
    config = load_settings(tiny_config, ["data.layout=bucket"]).config
    budget = config.train.microbatch * config.model.context
    with opened_text(config, Rendezvous(), progress=lambda *_: None) as text:
        batches = training_batches(config, text)
        shapes = set()
        for step in range(200):
            data = read_step(config, batches, step * 4, own=range(1), pinned=False)
            tokens, *_ = data.microbatches[0]
            shapes.add(tuple(tokens.shape))
            assert tokens.numel() <= budget
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
    with opened_text(config, Rendezvous(), progress=lambda *_: None) as text:
        batches = training_batches(config, text)
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
    first = ensure_prepared(Spec((str(tmp_path / "a"),)))
    second = ensure_prepared(Spec((str(tmp_path / "b"),), "train:300"))
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
    ensure_prepared(Spec((str(tmp_path / "a"),)))
    finished = train(streamed_config, tmp_path / "broken")
    assert losses(tmp_path / "broken") == losses(tmp_path / "straight")
    assert finished.held_out_loss is not None


def test_streamed_source_that_is_not_there_is_a_usage_error(
    streamed_config: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="no such source"):
        train(streamed_config, tmp_path / "run", "data.source=nowhere")


@pytest.fixture
def lines(tmp_path: Path) -> Path:
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
    streamed_config: Path, lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = "data.order=sequential"
    words = (f"data.source={lines}", order, *READING)
    train(streamed_config, tmp_path / "streamed", *words)
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "another"))
    train(streamed_config, tmp_path / "first", "data.stream=false", *words)
    assert losses(tmp_path / "streamed") == losses(tmp_path / "first")
    out = tmp_path / "prepared"
    words = ["--text-field", "body", "--skip-bad", "--min-chars", "40", "--include", "*.jsonl"]
    assert run(["prepare", str(lines), "--out", str(out), "--tokenizer", "bytes", *words]) == 0
    train(streamed_config, tmp_path / "second", "data.stream=false", f"data.prepared={out}", order)
    assert losses(tmp_path / "first") == losses(tmp_path / "second")
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["sources"][0]["skipped"]["not in --include"] == 1


def test_list_of_sources_is_one_text(streamed_config: Path, tmp_path: Path) -> None:
    both = f"data.source=[{tmp_path / 'a'}, {tmp_path / 'b'}]"
    settings = load_settings(streamed_config, [both, "data.stream=false"])
    with opened_text(settings.config, Rendezvous(), progress=lambda *_: None) as text:
        manifest = text.members[0].manifest
    assert [source.documents for source in manifest.sources] == [30, 30]
    train(streamed_config, tmp_path / "run", both)


def test_corpora_of_a_mix_are_read_each_in_its_way(
    mixed_config: Path, lines: Path, tmp_path: Path
) -> None:
    reading = {"text_field": "body", "skip_bad": True, "format": "jsonl", "include": ["*.jsonl"]}
    mix = [{"source": str(tmp_path / "a")}, {"source": str(lines), "reading": reading}]
    settings = load_settings(mixed_config, [f"data.mix={json.dumps(mix)}", "data.tokenizer=bytes"])
    with opened_text(settings.config, Rendezvous(), progress=lambda *_: None) as text:
        members = [member.manifest for member in text.members]
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
    lines: Path,
    tmp_path: Path,
    stream: str,
    overrides: tuple[str, ...],
    said: str,
) -> None:
    source = f"data.source={lines / 'one.jsonl'}"
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
    with opened_text(settings.config, Rendezvous(), progress=lambda *_: None) as text:
        batches = training_batches(settings.config, text)
        ids = batches.batch(0, batches.num_sequences).tokens
    assert (ids == ord("!")).sum() > 0
    assert (ids == 256).sum() == 0


SPLIT = ("train.microbatch=2", "train.grad_accum_steps=2")


def test_buckets_are_resumed_with_the_same_microbatch_only(
    tiny_config: Path, tmp_path: Path, dies_after: Dies
) -> None:
    """A batch is one microbatch: another size of it is another order."""
    for name, layout in (("bucket", "bucket"), ("pack", "pack")):
        with dies_after(8):
            train(tiny_config, tmp_path / name, f"data.layout={layout}")
    with pytest.raises(UsageError, match=r"`train.microbatch: 4`, not 2") as caught:
        train(tiny_config, tmp_path / "bucket", "data.layout=bucket", *SPLIT)
    assert "part of the order" in str(caught.value)
    assert train(tiny_config, tmp_path / "bucket", "data.layout=bucket").steps == 12
    assert train(tiny_config, tmp_path / "pack", "data.layout=pack", *SPLIT).steps == 12


def notes_of(config: Path, directory: Path, *overrides: str) -> list[str]:
    notes: list[str] = []
    start(load_settings(config, overrides), directory, warn=notes.append)
    return notes


@pytest.mark.parametrize("stream", ["true", "false"])
def test_much_text_in_no_window_is_said(
    streamed_config: Path, tmp_path: Path, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = len(open_prepared(ensure_prepared(Spec((str(tmp_path / "a"),)))).train)
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "another"))
    context = next(n for n in range(512, 1024, 2) if (ids - 1) % n > 0.011 * ids)
    words = (f"data.stream={stream}", "eval.every_steps=0", f"model.context={context}")
    left = (ids - 1) % context
    (note,) = [
        n for n in notes_of(streamed_config, tmp_path / "much", *words) if "no sequence" in n
    ]
    assert note.startswith(f"the last {left} of {ids} tokens")
    assert not any("no sequence" in n for n in notes_of(streamed_config, tmp_path / "little"))


@pytest.mark.parametrize("stream", ["true", "false"])
def test_held_out_text_of_less_than_a_window_is_said(
    streamed_config: Path, tmp_path: Path, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = open_prepared(ensure_prepared(Spec((str(tmp_path / "a"),))))
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "another"))
    context = len(prepared.validation) // 2 * 2 + 2
    assert context < len(prepared.train) // 4
    words = (
        f"data.stream={stream}",
        f"model.context={context}",
        "train.steps=3",
        "train.microbatch=1",
    )
    notes = notes_of(streamed_config, tmp_path / "run", *words)
    assert len([note for note in notes if "nothing is evaluated" in note]) == 1


def test_corpus_of_a_mix_that_holds_out_too_little_is_named(
    mixed_config: Path, tmp_path: Path
) -> None:
    (tmp_path / "small").mkdir()
    text = "a text that is long enough for a few sequences and held out by nobody " * 9
    for number, words in enumerate(["few", "is", text]):
        (tmp_path / "small" / f"{number}.txt").write_text(words)
    mix = json.dumps([{"source": str(tmp_path / "a")}, {"source": str(tmp_path / "small")}])
    words = (f"data.mix={mix}", "data.tokenizer=bytes")
    (note,) = [n for n in notes_of(mixed_config, tmp_path / "run", *words) if "evaluated" in n]
    assert "prepared/small-" in note
    assert "prepared/a-" not in note


@pytest.mark.parametrize("stream", ["true", "false"])
def test_damaged_entry_of_the_cache_is_prepared_again_with_a_word(
    streamed_config: Path, tmp_path: Path, stream: str
) -> None:
    path = ensure_prepared(Spec((str(tmp_path / "a"),)))
    shard = path / "train-00000.bin"
    whole = shard.read_bytes()
    shard.unlink()
    shard.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    notes = notes_of(streamed_config, tmp_path / "run", f"data.stream={stream}")
    assert [note for note in notes if "prepared again" in note and str(shard) in note]
    assert shard.read_bytes() == whole


def test_bad_limit_of_the_cache_is_refused_before_anything_is_made(
    streamed_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOTLOOP_CACHE_LIMIT", "1e3")
    with pytest.raises(UsageError, match="no size"):
        train(streamed_config, tmp_path / "run")
    assert not (tmp_path / "cache").exists()
    assert not (tmp_path / "run").exists()


def test_another_split_of_the_step_is_not_called_the_same_for_buckets(tiny_config: Path) -> None:
    two = Ranks(rank=1, num_ranks=2, local_rank=1, num_local_ranks=2)
    for layout, same in (("pack", True), ("bucket", False)):
        with pytest.raises(UsageError) as caught:
            refuse_uneven(load_settings(tiny_config, [f"data.layout={layout}"]), two)
        assert ("is the same step" in str(caught.value)) is same
