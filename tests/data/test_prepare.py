"""A prepared directory is whole, the same every time, and never half there."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hotloop.core.errors import EnvironmentFailed, UsageError
from hotloop.data import gather
from hotloop.data import prepare as prepare_module
from hotloop.data.engines import Reference
from hotloop.data.manifest import SHARD_NAME
from hotloop.data.prepared import open_prepared
from hotloop.data.sources import ReadOptions, Report
from hotloop.data.sources.plan import plan
from hotloop.data.sources.read import read_unit
from hotloop.data.stream import TokenStream
from hotloop.data.tokenizer import Tokenizer
from preparing import contents, prepare, prepare_text

Corpus = Callable[[Path, int], Path]


def documents_of(stream: TokenStream, directory: Path, end_of_text: int) -> list[str]:
    tokenizer = Tokenizer.load(directory)
    ids = stream.read(np.array([0]), len(stream))[0]
    assert ids[-1] == end_of_text
    pieces = np.split(ids, np.flatnonzero(ids == end_of_text) + 1)[:-1]
    return [tokenizer.decode(piece[:-1]) for piece in pieces]


@pytest.mark.parametrize("tokenizer", ["bytes", "train:400"])
def test_decoded_shards_are_the_source(corpus: Path, tmp_path: Path, tokenizer: str) -> None:
    out = tmp_path / "out"
    manifest = prepare([str(corpus)], out, tokenizer=tokenizer, validation_fraction=0.2)
    opened = open_prepared(out)
    train = documents_of(opened.train, out, manifest.end_of_text)
    held_out = documents_of(opened.validation, out, manifest.end_of_text)
    units = plan([str(corpus)]).units
    source = [d.text for unit in units for d in read_unit(unit, ReadOptions(), Report())]
    assert sorted(train + held_out) == sorted(source)
    assert train == [text for text in source if text not in held_out]
    assert manifest.documents == len(source)
    assert manifest.source_bytes == sum(len(text.encode()) for text in source)


def test_same_input_gives_the_same_bytes(corpus: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        prepare([str(corpus)], tmp_path / name, tokenizer="train:300", seed=3)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    prepare([str(corpus)], tmp_path / "three", tokenizer="train:300", seed=4)
    assert contents(tmp_path / "three") != contents(tmp_path / "one")


@pytest.mark.parametrize("cut", [{"shard_tokens": 500}, {"job_bytes": 700}])
def test_batching_jobs_and_shard_size_do_not_change_the_tokens(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: dict[str, int]
) -> None:
    prepare([str(corpus)], tmp_path / "one", tokenizer="bytes")
    monkeypatch.setattr(Reference, "batch_bytes", 100)
    prepare_text([str(corpus)], tmp_path / "two", tokenizer="bytes", **cut)  # type: ignore[arg-type]
    one, two = open_prepared(tmp_path / "one"), open_prepared(tmp_path / "two")
    assert two.manifest.train.shards > one.manifest.train.shards == 1
    if "shard_tokens" in cut:
        assert all(shard.tokens <= 500 or shard.documents == 1 for shard in two.manifest.shards)
    whole = np.array([0])
    assert np.array_equal(
        one.train.read(whole, len(one.train)), two.train.read(whole, len(two.train))
    )


@pytest.mark.parametrize(("count", "held_out"), [(1, 0), (2, 1), (5, 1)])
def test_one_of_two_or_more_documents_is_held_out(
    tmp_path: Path, corpus_of: Corpus, count: int, held_out: int
) -> None:
    corpus_of(tmp_path / "corpus", count)
    manifest = prepare([str(tmp_path / "corpus")], tmp_path / "out", tokenizer="bytes")
    assert manifest.validation.documents == held_out
    assert manifest.train.documents == count - held_out


@pytest.mark.parametrize("seed", range(4))
def test_what_was_encoded_is_counted_once(tmp_path: Path, corpus_of: Corpus, seed: int) -> None:
    """Also where the split had to be another, and the work was done again."""
    corpus_of(tmp_path / "corpus", 2)
    done = prepare_text([str(tmp_path / "corpus")], tmp_path / "out", tokenizer="bytes", seed=seed)
    assert done.encoding is not None
    assert done.encoding.bytes == done.manifest.source_bytes


@pytest.mark.parametrize("fraction", [0.3, 0.999999])
def test_fraction_held_out_is_near_what_was_asked_and_never_all(
    tmp_path: Path, corpus_of: Corpus, fraction: float
) -> None:
    corpus_of(tmp_path / "corpus", 200)
    manifest = prepare(
        [str(tmp_path / "corpus")],
        tmp_path / "out",
        tokenizer="bytes",
        validation_fraction=fraction,
    )
    assert abs(manifest.validation.documents / 200 - fraction) < 0.12
    assert manifest.train.documents >= 1


def test_equal_documents_are_on_one_side_of_the_split(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"text {k % 20}"}) for k in range(200)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    out = tmp_path / "out"
    manifest = prepare([str(tmp_path / "a.jsonl")], out, tokenizer="bytes", validation_fraction=0.3)
    opened = open_prepared(out)
    train = set(documents_of(opened.train, out, manifest.end_of_text))
    held_out = set(documents_of(opened.validation, out, manifest.end_of_text))
    assert train
    assert held_out
    assert not train & held_out


def test_zero_fraction_holds_nothing_out(corpus: Path, tmp_path: Path) -> None:
    prepare([str(corpus)], tmp_path / "out", tokenizer="bytes", validation_fraction=0)
    assert len(open_prepared(tmp_path / "out").validation) == 0


def test_tokenizer_is_trained_on_a_bounded_sample_of_training_text(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    train = prepare_module.train_tokenizer

    def remember(texts: tuple[str, ...], size: int) -> Tokenizer:
        seen.extend(texts)
        return train(texts, size)

    monkeypatch.setattr(prepare_module, "train_tokenizer", remember)
    monkeypatch.setattr(gather, "SAMPLE_BYTES", 2000)
    monkeypatch.setattr(gather, "SAMPLE_DOCUMENT_BYTES", 200)
    out = tmp_path / "out"
    manifest = prepare([str(corpus)], out, tokenizer="train:300", validation_fraction=0.3)
    assert 500 < sum(len(text.encode()) for text in seen) <= 2000
    held_out = documents_of(open_prepared(out).validation, out, manifest.end_of_text)
    assert not any(text.startswith(tuple(seen)) for text in held_out)


def test_vocabulary_beyond_65536_is_stored_in_four_bytes(corpus: Path, tmp_path: Path) -> None:
    from hotloop.data.tokenizer import byte_tokenizer

    values = json.loads(byte_tokenizer().to_json())
    values["model"]["vocab"]["unused"] = 70_000
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    out = tmp_path / "out"
    manifest = prepare([str(corpus)], out, tokenizer=str(tmp_path / "tokenizer.json"))
    assert (manifest.id_type, manifest.vocabulary_size) == ("uint32", 70_001)
    opened = open_prepared(out)
    assert (out / "train-00000.bin").stat().st_size == 4 * len(opened.train)
    documents_of(opened.train, out, manifest.end_of_text)


def test_identical_preparation_is_kept_and_another_needs_force(
    corpus: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert prepare_text([str(corpus)], out, tokenizer="bytes").outcome == "written"
    stamp = (out / "manifest.json").stat().st_mtime_ns
    assert prepare_text([str(corpus)], out, tokenizer="bytes").outcome == "up_to_date"
    assert (out / "manifest.json").stat().st_mtime_ns == stamp
    before = contents(out)
    with pytest.raises(UsageError, match="other tokenizer"):
        prepare([str(corpus)], out, tokenizer="train:300")
    with pytest.raises(UsageError, match="other options"):
        prepare([str(corpus)], out, tokenizer="bytes", seed=1)
    with pytest.raises(UsageError, match="other sources"):
        prepare([str(corpus / "file_000.py")], out, tokenizer="bytes")
    assert contents(out) == before
    prepare([str(corpus)], out, tokenizer="train:300", force=True)
    prepare([str(corpus)], tmp_path / "fresh", tokenizer="train:300")
    assert contents(out) == contents(tmp_path / "fresh")


def test_result_may_stand_inside_its_source(corpus: Path) -> None:
    out = corpus / "prepared"
    prepare([str(corpus)], out, tokenizer="bytes")
    assert prepare_text([str(corpus)], out, tokenizer="bytes").outcome == "up_to_date"


def test_directory_with_other_things_is_refused_and_left_alone(
    corpus: Path, tmp_path: Path
) -> None:
    for name in ("notes.txt", "train-00000.bin", "manifest.json"):
        out = tmp_path / f"out-{name}"
        out.mkdir()
        (out / name).write_text("{}")
        for force in (False, True):
            with pytest.raises(UsageError):
                prepare([str(corpus)], out, tokenizer="bytes", force=force)
        assert contents(out) == {name: b"{}"}
    with pytest.raises(UsageError, match="a file stands where"):
        prepare([str(corpus)], corpus / "file_000.py", tokenizer="bytes")


@pytest.mark.parametrize("content", [None, "", b"caf\xe9"])
def test_bad_source_leaves_nothing_behind(tmp_path: Path, content: str | bytes | None) -> None:
    source = tmp_path / "source.txt"
    if content is not None:
        source.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError) as caught:
        prepare([str(source)], tmp_path / "new" / "out", tokenizer="train:300")
    assert caught.value.where == str(source)
    assert not (tmp_path / "new").exists()


def test_directory_without_text_is_refused_with_what_was_skipped(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus/a.png").write_bytes(b"\0")
    with pytest.raises(UsageError, match="holds no text: all was left out \\(1 binary\\)"):
        prepare([str(tmp_path / "corpus")], tmp_path / "out", tokenizer="bytes")


@pytest.mark.parametrize(
    "options", [{"validation_fraction": 1.0}, {"seed": -1}, {"tokenizer": "train:3"}]
)
def test_impossible_option_is_refused_before_anything_is_read(
    tmp_path: Path, options: dict[str, object]
) -> None:
    with pytest.raises(UsageError):
        prepare(["nowhere"], tmp_path / "out", **{"tokenizer": "bytes", **options})  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_source_that_changes_while_it_is_read_is_refused(corpus: Path, tmp_path: Path) -> None:
    def change(what: str, done: float, total: float | None, note: str = "") -> None:
        if what == "training the tokenizer":
            (corpus / "file_000.py").write_text("something else")

    with pytest.raises(UsageError, match="changed while it was read"):
        prepare([str(corpus)], tmp_path / "out", tokenizer="train:300", progress=change)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_failed_write_is_one_clear_error_and_leaves_nothing(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    out = tmp_path / "out"

    def fail(_: int) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises(EnvironmentFailed) as caught:
            prepare([str(corpus)], out, tokenizer="bytes")
    assert caught.value.exit_code == 4
    assert not out.exists()
    prepare([str(corpus)], out, tokenizer="bytes")


def test_failed_replacement_keeps_the_old_preparation(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    prepare([str(corpus)], out, tokenizer="bytes")
    before = contents(out)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr("hotloop.data.shards.HashedFile.write", fail)
    with pytest.raises(EnvironmentFailed, match="no space left"):
        prepare([str(corpus)], out, tokenizer="train:300", force=True)
    assert contents(out) == before


def test_really_full_disk_leaves_nothing_behind(corpus: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24k", "none", str(disk)]
    try:
        mounted = os.geteuid() == 0 and not subprocess.run(mount, capture_output=True).returncode
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("needs the right to mount a small disk")
    try:
        with pytest.raises(EnvironmentFailed, match="no space left"):
            prepare([str(corpus)], disk / "out", tokenizer="train:600")
        assert list(disk.iterdir()) == []
        with pytest.raises(EnvironmentFailed, match="no space left"):
            prepare([str(corpus)], disk, tokenizer="train:600")  # the mount point itself
        assert list(disk.iterdir()) == []
        subprocess.run(["mount", "-o", "remount,size=1m", str(disk)], check=True)
        prepare([str(corpus)], disk, tokenizer="train:600")
        open_prepared(disk)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_unwritable_directory_is_one_clear_error(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o555)
    with pytest.raises(EnvironmentFailed, match="permission denied"):
        prepare([str(corpus)], tmp_path / "locked" / "out", tokenizer="bytes")


@pytest.mark.parametrize("out", ["corpus/file_000.py/out", "/proc/hotloop/out"])
def test_directory_that_cannot_be_made_is_one_clear_error(
    corpus: Path, tmp_path: Path, out: str
) -> None:
    with pytest.raises(EnvironmentFailed):
        prepare([str(corpus)], tmp_path / out, tokenizer="bytes")


def test_interrupt_goes_through_and_leaves_nothing(corpus: Path, tmp_path: Path) -> None:
    def interrupt(what: str, done: float, total: float | None, note: str = "") -> None:
        if what == "encoding":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare([str(corpus)], tmp_path / "out", tokenizer="bytes", progress=interrupt)
    assert not (tmp_path / "out").exists()


KILLED = """
import os, signal, sys
from pathlib import Path
from hotloop.data.prepare import Spec, prepare_text
source, out, moment = sys.argv[1:]
replaced = 0
replace = os.replace

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def dying_replace(old, new):
    global replaced
    if Path(new).parent == Path(out):
        if replaced == int(moment):
            die()
        replaced += 1
    replace(old, new)

def progress(what, done, total, note=""):
    if what == moment:
        die()

if moment.isdigit():
    os.replace = dying_replace
prepare_text(Spec((source,), "train:300"), Path(out), force=True, progress=progress)
"""


@pytest.mark.parametrize("moment", ["training the tokenizer", "encoding", "0", "3", "5"])
@pytest.mark.parametrize("over_an_old_one", [False, True])
def test_killed_run_is_never_taken_for_finished_and_rerunning_gives_the_same_bytes(
    corpus: Path, tmp_path: Path, moment: str, over_an_old_one: bool
) -> None:
    out, fresh = tmp_path / "out", tmp_path / "fresh"
    if over_an_old_one:
        prepare([str(corpus)], out, tokenizer="bytes")
    done = subprocess.run([sys.executable, "-c", KILLED, str(corpus), str(out), moment])
    assert done.returncode == -signal.SIGKILL
    if over_an_old_one and not moment.isdigit():
        assert open_prepared(out).manifest.tokenizer == "bytes"  # not touched yet
    else:
        with pytest.raises(UsageError, match=r"no manifest\.json"):
            open_prepared(out)
    prepare([str(corpus)], out, tokenizer="train:300", force=over_an_old_one)
    prepare([str(corpus)], fresh, tokenizer="train:300")
    assert contents(out) == contents(fresh)
    assert all(
        SHARD_NAME.fullmatch(path.name) or path.name in ("manifest.json", "tokenizer.json")
        for path in out.iterdir()
    )


def test_two_at_once_both_succeed(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    program = (
        "import sys; from pathlib import Path; from hotloop.data.prepare import Spec, prepare_text;"
        "print(prepare_text(Spec((sys.argv[1],), 'train:300'), Path(sys.argv[2])).outcome)"
    )
    command = [sys.executable, "-c", program, str(corpus), str(out)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outcomes = sorted(process.communicate(timeout=300)[0].strip() for process in running)
    assert outcomes == ["up_to_date", "up_to_date", "written"]
    open_prepared(out)


@pytest.mark.parametrize("content", [None, "[]", "{"])
def test_lost_or_damaged_manifest_is_mended_with_force(tmp_path: Path, content: str | None) -> None:
    (tmp_path / "text.txt").write_text("some words and some more. " * 200)
    out = tmp_path / "out"
    prepare([str(tmp_path / "text.txt")], out, tokenizer="bytes")
    before = (out / "manifest.json").read_bytes()
    if content is None:
        (out / "manifest.json").unlink()
    else:
        (out / "manifest.json").write_text(content)
    with pytest.raises(UsageError) as caught:
        prepare([str(tmp_path / "text.txt")], out, tokenizer="bytes")
    assert "--force" in (caught.value.do or "")
    prepare([str(tmp_path / "text.txt")], out, tokenizer="bytes", force=True)
    assert (out / "manifest.json").read_bytes() == before
