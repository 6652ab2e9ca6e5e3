"""`--verify` finds whatever is not as it was written."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotloop.core.errors import UsageError
from hotloop.core.files import read_json, write_json
from hotloop.data.manifest import MANIFEST, TOKENIZER, Manifest, read_manifest, sealed
from hotloop.data.prepared import Prepared, open_prepared, verify_prepared
from preparing import prepare


@pytest.fixture
def out(corpus: Path, tmp_path: Path) -> Path:
    prepare([str(corpus)], tmp_path / "out", tokenizer="bytes")
    return tmp_path / "out"


def complaint(out: Path) -> str:
    try:
        return "\n".join(verify_prepared(out).damaged)
    except UsageError as error:
        return str(error)


def forged(out: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """A manifest that was changed and sealed again."""
    values = json.loads((out / MANIFEST).read_text())
    change(values)
    write_json(out / MANIFEST, values)
    write_json(out / MANIFEST, sealed(read_json(out / MANIFEST, Manifest)))


def test_every_flipped_bit_of_the_manifest_and_the_tokenizer_is_found(out: Path) -> None:
    assert complaint(out) == ""
    chance = random.Random(5)
    for name in (MANIFEST, TOKENIZER):
        content = (out / name).read_bytes()
        for _ in range(300):
            changed = bytearray(content)
            changed[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            (out / name).write_bytes(changed)
            assert complaint(out), bytes(changed)
        (out / name).write_bytes(content)
    assert complaint(out) == ""


@pytest.mark.parametrize("name", [MANIFEST, TOKENIZER])
@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.rstrip("\n"),
        lambda text: text + "\n",
        lambda text: text.replace(" ", "", 1),
    ],
)
def test_spaces_and_line_ends_are_part_of_what_was_written(
    out: Path, name: str, change: Callable[[str], str]
) -> None:
    (out / name).write_text(change((out / name).read_text()))
    assert "as it was written" in complaint(out)


@pytest.mark.parametrize(
    ("old", "new"), [('"skipped"', '"skippee"'), ('"skipped": {}', '"skipped": {}, "more": 1')]
)
def test_unknown_keys_of_a_manifest_are_found(out: Path, old: str, new: str) -> None:
    text = (out / MANIFEST).read_text()
    assert old in text
    (out / MANIFEST).write_text(text.replace(old, new, 1))
    with pytest.raises(UsageError, match="not as it was written"):
        read_manifest(out)


def test_shards_of_something_else_are_named(out: Path) -> None:
    (out / "train-00001.bin").write_bytes(b"123")
    assert complaint(out) == "train-00001.bin: not of this preparation"


@pytest.mark.parametrize("name", [MANIFEST, TOKENIZER, "train-00000.bin", "train-00000.docs"])
def test_pipe_in_place_of_a_file_is_not_waited_for(out: Path, name: str) -> None:
    (out / name).unlink()
    os.mkfifo(out / name)
    assert complaint(out)


def test_manifest_that_was_sealed_again_must_still_fit(out: Path) -> None:
    forged(out, lambda values: values.update(end_of_text=300))
    assert "end of text is not in the vocabulary" in complaint(out)
    forged(out, lambda values: values.update(end_of_text=256))
    assert complaint(out) == ""


def test_directory_prepared_before_engines_were_recorded_is_whole(out: Path) -> None:
    values = json.loads((out / MANIFEST).read_text())
    for job in values["jobs"]:
        assert job.pop("engine").startswith("tokenizers ")
    (out / MANIFEST).write_text(json.dumps(values, indent=1) + "\n")
    assert "not as it was written" in complaint(out)
    # As the version before sealed it: over all fields that it had.
    import hashlib

    canonical = json.dumps(values | {"digest": ""}, sort_keys=True, separators=(",", ":"))
    values["digest"] = hashlib.sha256(canonical.encode()).hexdigest()
    (out / MANIFEST).write_text(json.dumps(values, indent=1) + "\n")
    assert complaint(out) == ""
    assert open_prepared(out).manifest.jobs[0].engine == ""


def test_progress_never_passes_the_end(out: Path) -> None:
    with (out / "train-00000.bin").open("ab") as file:
        file.write(bytes(9 << 20))
    told: list[tuple[float, float | None]] = []
    verify_prepared(out, progress=lambda _, done, total, __: told.append((done, total)))
    assert told
    assert all(total is not None and done <= total for done, total in told)


def test_every_damaged_file_is_named(prepared: Prepared) -> None:
    whole = verify_prepared(prepared.path)
    assert whole.damaged == ()
    assert whole.files == len(list(prepared.path.iterdir())) - 1
    first, second = sorted(prepared.path.glob("train-*.bin"))[:2]
    content = bytearray(first.read_bytes())
    content[0] ^= 1
    first.write_bytes(content)
    second.unlink()
    damaged = verify_prepared(prepared.path).damaged
    assert len(damaged) == 2
    assert damaged[0].startswith(f"{first.name}: its checksum")
    assert damaged[1].startswith(f"{second.name}: No such file")


def test_directory_of_the_first_version_is_refused_with_what_to_do(out: Path, corpus: Path) -> None:
    values = json.loads((out / MANIFEST).read_text())
    (out / MANIFEST).write_text(json.dumps(values | {"schema": "hotloop.prepared/1"}))
    with pytest.raises(UsageError) as caught:
        open_prepared(out)
    assert "again" in (caught.value.do or "")
    prepare([str(corpus)], out, tokenizer="bytes", force=True)
    open_prepared(out)
