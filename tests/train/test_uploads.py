"""Checkpoints that are uploaded beside the training, to a real S3 server and to another disk, and runs that continue from there."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from trainings import losses, records, train, weights

import warm_python
from hotloop.checkpoint import remote, store
from hotloop.checkpoint.remote import Remote
from hotloop.checkpoint.upload import Uploader
from hotloop.cli.main import run as hotloop
from hotloop.core.errors import EnvironmentFailed, UsageError
from s3_server import Proxy, answer, s3_server

pytest.importorskip("moto")
pytest.importorskip("s3fs")

Dies = Callable[[int], AbstractContextManager[None]]


@pytest.fixture
def each_uploaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No upload is overtaken by the next save."""
    take = Uploader.take

    def waits(self: Uploader, *args: Any) -> None:
        take(self, *args)
        self.finish()

    monkeypatch.setattr(Uploader, "take", waits)


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, int]]:
    with s3_server() as at:
        yield at


@pytest.fixture
def proxy(server: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """The way to the bucket, for this process and those it starts."""
    found = Proxy(server)
    settings = {
        "AWS_ENDPOINT_URL": found.url,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(remote, "FIRST_WAIT_S", 0.01)
    # Each attempt of the store's own client is made, without the seconds before it.
    monkeypatch.setattr("botocore.retryhandler.delay_exponential", lambda **_: 0.0)
    yield found
    found.close()


@pytest.fixture
def bucket(proxy: Proxy, tmp_path: Path) -> str:
    return f"s3://bucket/{tmp_path.name}"


@pytest.fixture
def disk(tmp_path: Path) -> str:
    return f"file://{tmp_path}/disk"


def there(url: str) -> dict[int, str]:
    """The state of each uploaded checkpoint, by step."""
    return {each.step: each.state for each in Remote(f"{url}/tiny").entries()}


def wholly(url: str) -> list[int]:
    """Steps of the uploaded checkpoints of which every byte verifies."""
    place = Remote(f"{url}/tiny")
    return [e.step for e in place.entries() if e.state == "whole" and place.check(e) is None]


def evaluations(directory: Path) -> list[Any]:
    return [json.loads(line) for line in (directory / "evals.jsonl").read_text().splitlines()]


def requests(proxy: Proxy, method: str) -> list[str]:
    return [each for each in proxy.requests if each.startswith(method)]


@pytest.mark.parametrize("place", ["bucket", "disk"])
def test_empty_machine_continues_from_what_another_one_uploaded_to_the_same_end(
    tiny_config: Path, tmp_path: Path, dies_after: Dies, place: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(place)
    train(tiny_config, tmp_path / "whole")
    with dies_after(9):
        train(tiny_config, tmp_path / "gone", f"checkpoint.upload={url}")
    assert wholly(url) == [8, 4][: len(there(url))]
    said: list[str] = []
    train(tiny_config, tmp_path / "new", f"checkpoint.upload={url}", warn=said.append)
    assert any(note.startswith("downloading step 8") for note in said)
    assert losses(tmp_path / "new") == losses(tmp_path / "whole")  # also of the steps before
    assert evaluations(tmp_path / "new") == evaluations(tmp_path / "whole")
    for name, group in weights(tmp_path / "whole").items():
        for key, value in group.items():
            assert value.equal(weights(tmp_path / "new")[name][key])
    assert wholly(url)[0] == 12


@pytest.mark.usefixtures("each_uploaded")
def test_empty_machine_goes_back_from_a_spike_to_where_the_other_one_would_have(
    tiny_config: Path, tmp_path: Path, plant: Callable[..., None], stops_after: Dies, disk: str
) -> None:
    plant({7 * 4: 1000.0})
    watched = ("stability.spikes=rollback", "stability.window_steps=4", "stability.spike_factor=20")
    settings = (*watched, f"checkpoint.upload={disk}")
    with stops_after(5):
        train(tiny_config, tmp_path / "gone", *settings)
    train(tiny_config, tmp_path / "new", *settings)
    (line,) = (tmp_path / "new/rollbacks.jsonl").read_text().splitlines()
    assert (json.loads(line)["step"], json.loads(line)["back_to"]) == (7, 4)


def test_what_is_here_already_is_not_downloaded_and_not_uploaded_again(
    tiny_config: Path, tmp_path: Path, proxy: Proxy, bucket: str
) -> None:
    train(tiny_config, tmp_path / "run", f"checkpoint.upload={bucket}")
    proxy.requests.clear()
    said: list[str] = []
    train(tiny_config, tmp_path / "run", f"checkpoint.upload={bucket}", warn=said.append)
    assert said == ["already finished: 12 of 12 steps"]
    assert requests(proxy, "PUT") == []
    assert not any("safetensors" in each for each in requests(proxy, "GET"))


def test_downloaded_checkpoint_is_not_uploaded_under_another_name(
    tiny_config: Path, tmp_path: Path, proxy: Proxy, bucket: str
) -> None:
    train(tiny_config, tmp_path / "one", f"checkpoint.upload={bucket}")
    proxy.requests.clear()
    train(tiny_config, tmp_path / "other", f"checkpoint.upload={bucket}")
    assert requests(proxy, "PUT") == []
    assert store.latest(tmp_path / "other" / "checkpoints")[0] is not None


@pytest.mark.parametrize(("fault", "failures"), [("503", 8), ("500", 3), ("cut", 3), ("cut", 8)])
def test_server_errors_and_cut_connections_are_tried_again(
    tiny_config: Path, tmp_path: Path, proxy: Proxy, bucket: str, fault: str, failures: int
) -> None:
    """3 are made good by s3fs itself; 8 are more than it tries."""
    left = failures

    def fails(head: bytes) -> bytes | int | None:
        nonlocal left
        if not (head.startswith(b"PUT") and b"model.safetensors" in head) or left == 0:
            return None
        left -= 1
        names = {"503": ("503 Slow Down", "SlowDown"), "500": ("500 Oh", "InternalError")}
        return 20_000 if fault == "cut" else answer(*names[fault])

    proxy.fault = fails
    out = train(tiny_config, tmp_path / "run", f"checkpoint.upload={bucket}")
    assert left == 0
    assert out.not_uploaded is None
    assert wholly(bucket)[0] == 12


def test_credentials_that_expire_do_not_end_the_training_and_the_next_start_uploads(
    tiny_config: Path, tmp_path: Path, proxy: Proxy, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tiny_config, tmp_path / "whole")
    proxy.fault = lambda head: answer("400 Bad Request", "ExpiredToken") if head.startswith(b"PUT") and b"step-" in head else None  # fmt: skip
    said: list[str] = []
    out = train(
        tiny_config, tmp_path / "run", f"checkpoint.upload={bucket}", "checkpoint.every_steps=2", warn=said.append
    )  # fmt: skip
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    assert out.not_uploaded is not None
    assert "step-00000012" in out.not_uploaded
    assert "ExpiredToken" in out.not_uploaded
    assert "renew the credentials" in out.not_uploaded
    failed = [note for note in said if "training goes on" in note]
    assert len(failed) == 1, failed  # not for each of 6
    assert there(bucket) == {}
    again = ["train", str(tiny_config), f"checkpoint.upload={bucket}", "--out", str(tmp_path / "run")]  # fmt: skip
    assert hotloop([*again, "--json", str(tmp_path / "out.json")]) == 4
    assert "step-00000012" in json.loads((tmp_path / "out.json").read_text())["not_uploaded"]
    assert "the checkpoints here are whole" in capsys.readouterr().err
    proxy.fault = None
    assert hotloop(again) == 0
    assert wholly(bucket) == [12]


def test_older_one_that_cannot_be_deleted_is_a_note_and_the_newest_counts_as_uploaded(
    tiny_config: Path, tmp_path: Path, each_uploaded: None, proxy: Proxy, bucket: str
) -> None:
    def fails(head: bytes) -> bytes | None:
        deletes = (
            head.startswith((b"DELETE", b"POST")) and b"delete" in head.split(b"\r\n")[0].lower()
        )
        return answer("403 Forbidden", "AccessDenied") if deletes else None

    proxy.fault = fails
    said: list[str] = []
    settings = (f"checkpoint.upload={bucket}", "checkpoint.every_steps=2")
    out = train(tiny_config, tmp_path / "run", *settings, warn=said.append)
    assert out.not_uploaded is None
    assert wholly(bucket) == [12, 10, 8, 6, 4, 2]
    stay = [note for note in said if note.startswith("older checkpoints stay")]
    assert len(stay) == 1, said  # not for each of 4
    assert "must read, write, list and delete there" in stay[0]
    proxy.fault = None
    train(tiny_config, tmp_path / "run", *settings)
    assert wholly(bucket) == [12, 10]


@pytest.mark.parametrize(
    ("url", "answered", "what"),
    [
        ("s3://nowhere/runs", None, "make the bucket"),
        ("s3://bucket/x", answer("403 Forbidden", "AccessDenied"), "must read, write, list"),
        ("s3://bucket/x", answer("400 Bad Request", "ExpiredToken"), "renew the credentials"),
        ("nosuch://bucket/x", None, "for example s3://bucket/prefix"),
        ("file:///proc/no/such", None, "choose"),
    ],
)
def test_place_that_cannot_work_is_refused_before_the_first_step(
    tiny_config: Path, tmp_path: Path, proxy: Proxy, url: str, answered: bytes | None, what: str
) -> None:
    proxy.fault = lambda head: answered
    with pytest.raises((EnvironmentFailed, UsageError)) as caught:
        train(tiny_config, tmp_path / "run", f"checkpoint.upload={url}")
    assert what in (caught.value.do or "")
    assert not (tmp_path / "run" / "steps.jsonl").exists()


def test_missing_packages_and_credentials_are_named(
    tiny_config: Path, tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "s3fs", None)
        known = sys.modules["fsspec.registry"].__dict__["_registry"]
        patch.delitem(known, "s3", raising=False)
        with pytest.raises(UsageError) as caught:
            train(tiny_config, tmp_path / "run", f"checkpoint.upload={bucket}")
        assert caught.value.do == "pip install 'hotloop[s3]'"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(EnvironmentFailed) as refused:
        train(tiny_config, tmp_path / "run", f"checkpoint.upload={bucket}")
    assert "give credentials" in (refused.value.do or "")


def test_two_runs_do_not_mix_in_one_place(tiny_config: Path, tmp_path: Path, disk: str) -> None:
    train(tiny_config, tmp_path / "one", f"checkpoint.upload={disk}")
    before = there(disk)
    with pytest.raises(UsageError, match=r"learning_rate: 0\.001`, not 0\.01"):
        train(
            tiny_config,
            tmp_path / "two",
            f"checkpoint.upload={disk}",
            "optimizer.learning_rate=0.01",
        )
    assert there(disk) == before
    claimed = tmp_path / "disk" / "tiny" / "run.json"
    other = json.loads(claimed.read_text()) | {"data": "0" * 64}
    claimed.write_text(json.dumps(other))
    with pytest.raises(UsageError, match="data: 0000"):
        train(tiny_config, tmp_path / "two", f"checkpoint.upload={disk}")
    for content in ("{}", "[" * 2000, "\0", json.dumps(other)[:-9]):
        claimed.write_text(content)
        with pytest.raises(UsageError, match=r"run\.json is damaged"):
            train(tiny_config, tmp_path / "two", f"checkpoint.upload={disk}")
    claimed.unlink()
    with pytest.raises(UsageError, match="says of which run"):
        train(tiny_config, tmp_path / "two", f"checkpoint.upload={disk}")
    assert there(disk) == before


KILLED = """
import os, sys
from pathlib import Path
from hotloop.core.files import write_atomically
os.replace = lambda *_: os.kill(os.getpid(), 9)  # between the file and its name
write_atomically(Path(sys.argv[1], "run.json"), b"{}")
"""


def test_place_is_claimed_after_a_kill_that_left_a_part_of_its_run_json(
    tmp_path: Path, disk: str
) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "disk")], check=False)
    assert killed.returncode == -9
    (left,) = (tmp_path / "disk").iterdir()
    assert left.name.startswith(".run.json.")
    assert Remote(disk).claim(b"{}") == b"{}"
    (tmp_path / "other").mkdir()
    (tmp_path / "other/.profile.json").touch()
    with pytest.raises(UsageError, match="something lies there"):
        Remote(f"file://{tmp_path}/other").claim(b"{}")


def newest(disk: str, step: int = 12) -> Path:
    return next(Path(disk.removeprefix("file://")).glob(f"tiny/step-{step:08d}-*"))


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors.zst", "state.json.zst", "manifest.json"])  # fmt: skip
@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "delete"])
def test_damaged_upload_is_named_and_the_one_before_is_used(
    tiny_config: Path, tmp_path: Path, each_uploaded: None, disk: str, name: str, damage: str
) -> None:
    settings = (f"checkpoint.upload={disk}", "checkpoint.every_steps=6")
    train(tiny_config, tmp_path / "one", *settings)
    assert wholly(disk) == [12, 6]
    path = newest(disk) / name
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
    path.write_bytes(content[: {"truncate": len(content) // 2, "empty": 0}.get(damage)])
    if damage == "delete":
        path.unlink()
    assert wholly(disk) == [6]
    said: list[str] = []
    train(tiny_config, tmp_path / "two", *settings, warn=said.append)
    assert any("step-00000012" in note and "cannot be used" in note for note in said), said
    assert any(note.startswith("downloading step 6") for note in said)
    assert losses(tmp_path / "two") == losses(tmp_path / "one")
    left = [each.name for each in (tmp_path / "two" / "checkpoints").iterdir()]
    assert len(left) == 2, left  # nothing half-downloaded stays


def downloaded(place: Remote, entry: store.Entry, run: Path) -> dict[str, bytes]:
    """Every file of the checkpoint and of the run's records, but for the manifest that is written here."""
    (run / "checkpoints").mkdir(parents=True)
    place.fetch(entry, run / "checkpoints")
    files = [each for each in run.rglob("*") if each.is_file() and each.name != store.MANIFEST]
    return {each.name: each.read_bytes() for each in files}


def test_every_flipped_byte_of_an_upload_is_noticed_or_changes_nothing(
    tiny_config: Path, tmp_path: Path, disk: str
) -> None:
    """Other zstd bytes can unpack to the same file: a match that is copied from another place with the same bytes."""
    train(tiny_config, tmp_path / "one", f"checkpoint.upload={disk}", "checkpoint.every_steps=0")
    place, trained = Remote(f"{disk}/tiny"), store.latest(tmp_path / "one" / "checkpoints")[0]
    assert trained is not None
    original = next(iter(place.entries()))
    uploaded = downloaded(place, original, tmp_path / "whole")
    for path in sorted(newest(disk).iterdir()):
        content = path.read_bytes()
        for position in range(0, len(content), 1 + len(content) // 40):
            path.write_bytes(content[:position] + bytes([content[position] ^ 4]) + content[position + 1 :])  # fmt: skip
            (found,) = place.entries()
            if found.state != "whole" or place.check(found) is not None:
                continue
            assert found.content == original.content
            assert downloaded(place, found, tmp_path / f"{path.name}-{position}") == uploaded
        path.write_bytes(content)
    assert wholly(disk) == [12]


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["files"].update({"../../../escaped": m["files"]["state.json"]}),
        lambda m: m["files"].update({"/tmp/escaped": m["files"]["state.json"]}),
        lambda m: m["files"].update({"..": m["files"]["state.json"]}),
        lambda m: m["records"].update({"../escaped": m["files"]["state.json"]}),
        lambda m: m["records"].update({"data.json": m["files"]["state.json"]}),
        lambda m: m["files"]["model.safetensors"].update(bytes=-1),
        lambda m: m["files"]["model.safetensors"].update(bytes="many"),
        lambda m: m["files"]["state.json"].update(bytes=20),  # unpacks to more
        lambda m: m.update(files=[1, 2]),
        lambda m: m.update(step=13),
        lambda m: m.update(saved_at=1e300),
        lambda m: m.update(saved_at=-1),
        lambda m: m.update(schema="hotloop.checkpoint/2"),
    ],
)
def test_manifest_of_somebody_else_is_passed_over_and_nothing_outside_is_touched(
    tiny_config: Path, tmp_path: Path, disk: str, change: Callable[[Any], Any]
) -> None:
    settings = (f"checkpoint.upload={disk}", "checkpoint.every_steps=6")
    train(tiny_config, tmp_path / "one", *settings)
    path = newest(disk) / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    shutil.copy(path.parent / "state.json.zst", path.parent / "data.json.zst")
    for name in ("..", "step-00000099-zzzzzzzz", "step-00000099-1234567\n", "x"):
        (path.parent.parent / name).mkdir(exist_ok=True)
    said: list[str] = []
    train(tiny_config, tmp_path / "two", *settings, warn=said.append)
    assert any("step-00000012" in note and "cannot be used" in note for note in said), said
    assert losses(tmp_path / "two") == losses(tmp_path / "one")
    assert not (tmp_path / "escaped").exists()
    assert not Path("/tmp/escaped").exists()
    assert (tmp_path / "two" / "data.json").read_text().startswith('{\n "path"')


def test_what_unpacks_to_more_than_it_says_is_not_unpacked(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    bomb = tmp_path / "place" / "bomb.zst"
    bomb.parent.mkdir()
    bomb.write_bytes(zstandard.ZstdCompressor().compress(b"\0" * (1 << 28)))
    place, out = Remote(f"file://{tmp_path}/place"), tmp_path / "out"
    said = remote.StoredFile(1000, "0" * 64, bomb.stat().st_size)
    with pytest.raises(remote.Damaged, match="more than 1000 bytes"):
        place._get("bomb.zst", said, out)
    assert out.stat().st_size <= 1001


def test_overtaken_commit_is_skipped_and_one_that_is_deleted_here_meanwhile_is_uploaded_whole(
    tiny_config: Path, tmp_path: Path, proxy: Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first upload stands still until the last step is saved, when its directory is gone by `keep`."""
    late, take = threading.Event(), Uploader.take

    def taken(self: Uploader, saved: Path, *args: Any) -> None:
        take(self, saved, *args)
        if saved.name.startswith("step-00000010-"):
            late.set()

    def waits(head: bytes) -> None:
        if head.startswith(b"PUT") and b"optimizer.safetensors" in head:
            late.wait(60)

    proxy.fault = waits
    monkeypatch.setattr(Uploader, "take", taken)
    settings = (f"checkpoint.upload={bucket}", "checkpoint.every_steps=2", "checkpoint.compress=false", "train.steps=10")  # fmt: skip
    train(tiny_config, tmp_path / "run", *settings)
    put = [each.split("/step-")[1][:8] for each in requests(proxy, "PUT") if "/manifest.json" in each]  # fmt: skip
    assert put == ["00000002", "00000010"]
    assert wholly(bucket) == [10, 2]
    assert not list((tmp_path / "run" / "checkpoints").glob("step-00000002-*"))


def test_retention_there_is_that_of_here(tiny_config: Path, tmp_path: Path, disk: str) -> None:
    settings = (f"checkpoint.upload={disk}", "checkpoint.every_steps=1", "eval.every_steps=1", "checkpoint.keep_best=2")  # fmt: skip
    steady = ("optimizer.learning_rate=9", "train.steps=16")
    for _ in range(3):  # each start uploads what is the newest: none is skipped for sure
        train(tiny_config, tmp_path / "run", *settings, *steady)
    found = {each["step"]: each["loss"] for each in evaluations(tmp_path / "run")}
    here = store.steps(tmp_path / "run" / "checkpoints")
    best = sorted(found, key=lambda step: (found[step], -step))[:2]
    assert set(here) == {15, 16, *best}
    assert set(best) - {15, 16}, "the learning rate is such that the end is not the best"
    assert {16} <= set(there(disk)) <= set(range(1, 17))
    assert len(there(disk)) <= 4


@pytest.mark.usefixtures("each_uploaded")
def test_start_within_a_streak_deletes_no_upload_from_before_it(
    tiny_config: Path, tmp_path: Path, plant: Callable[..., None], disk: str
) -> None:
    plant({step * 4: float("inf") for step in range(5, 12)})
    settings = (f"checkpoint.upload={disk}", "checkpoint.every_steps=2", "stability.nonfinite=skip")
    for _ in range(2):  # the second one takes the newest up again
        train(tiny_config, tmp_path / "run", *settings)
        assert store.steps(tmp_path / "run" / "checkpoints") == (2, 4, 12)
        assert wholly(disk) == [12, 4, 2]


def test_going_back_leaves_what_was_uploaded_of_later_steps_aside(
    tiny_config: Path, tmp_path: Path, proxy: Proxy, bucket: str, dies_after: Dies
) -> None:
    settings = (f"checkpoint.upload={bucket}", "checkpoint.keep=9")
    train(tiny_config, tmp_path / "run", *settings)
    assert 12 in there(bucket)
    with dies_after(1):
        train(tiny_config, tmp_path / "run", *settings, from_step=4)
    assert there(bucket)[12] == "set aside"
    said: list[str] = []
    train(tiny_config, tmp_path / "run", *settings, warn=said.append)
    assert not any("downloading" in note for note in said)
    assert records(tmp_path / "run")[4].tags[:1] == ("resumed",)
    assert sorted(e.state for e in Remote(f"{bucket}/tiny").entries() if e.step == 12) == ["set aside", "whole"]  # fmt: skip


def test_step_that_is_only_there_can_be_asked_for(
    tiny_config: Path, tmp_path: Path, each_uploaded: None, disk: str
) -> None:
    train(tiny_config, tmp_path / "one", f"checkpoint.upload={disk}", "checkpoint.every_steps=6")
    said: list[str] = []
    train(tiny_config, tmp_path / "two", f"checkpoint.upload={disk}", from_step=6, warn=said.append)
    assert any(note.startswith("downloading step 6") for note in said)
    assert losses(tmp_path / "two") == losses(tmp_path / "one")


def test_limit_of_the_rate_pauses_for_as_long_as_the_bytes_take(
    tiny_config: Path, tmp_path: Path, disk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[float] = []
    monkeypatch.setattr(Uploader, "_sleep", lambda self, seconds: paused.append(seconds))
    still = types.SimpleNamespace(monotonic=lambda: 5.0, time=lambda: 0.0)
    monkeypatch.setattr("hotloop.checkpoint.upload.time", still)
    settings = (f"checkpoint.upload={disk}", "checkpoint.every_steps=0", "checkpoint.compress=false")  # fmt: skip
    train(tiny_config, tmp_path / "run", *settings, "checkpoint.upload_mb_per_s=0.1")
    sent = sum(p.stat().st_size for p in newest(disk).iterdir() if p.name != "manifest.json")
    # No time passes here, so that the last pause is the time that all of it takes.
    assert max(paused) == pytest.approx(sent / 1e5)


def test_bit_that_changes_on_the_way_is_noticed_there_and_the_file_is_sent_again(
    tiny_config: Path, tmp_path: Path, proxy: Proxy, bucket: str
) -> None:
    proxy.flips = 2
    settings = (f"checkpoint.upload={bucket}", "checkpoint.every_steps=0", "checkpoint.compress=false")  # fmt: skip
    assert train(tiny_config, tmp_path / "run", *settings).not_uploaded is None
    assert proxy.flips == 0
    assert len([each for each in requests(proxy, "PUT") if "model.safetensors" in each]) == 3
    assert wholly(bucket) == [12]


def test_interrupt_while_the_last_upload_is_waited_for_leaves_it_to_the_next_start(
    tiny_config: Path, tmp_path: Path, proxy: Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, leave = threading.Event(), Uploader.__exit__

    def waits(head: bytes) -> None:
        if head.startswith(b"PUT") and b"model" in head:
            left.wait(60)

    def leaves(self: Uploader, *how: Any) -> None:
        try:
            leave(self, *how)
        finally:
            left.set()

    proxy.fault = waits
    monkeypatch.setattr(Uploader, "__exit__", leaves)
    settings = (f"checkpoint.upload={bucket}", "checkpoint.every_steps=0")
    said: list[str] = []

    def warn(note: str) -> None:
        said.append(note)
        if note.startswith("uploading"):
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()

    with pytest.raises(KeyboardInterrupt):
        train(tiny_config, tmp_path / "run", *settings, warn=warn)
    assert any("Ctrl-C leaves it to the next start" in note for note in said)
    assert wholly(bucket) == []
    proxy.fault = None
    train(tiny_config, tmp_path / "run", *settings)
    assert wholly(bucket) == [12]


def test_stop_before_a_kill_waits_for_no_upload_beyond_its_window(
    tiny_config: Path, tmp_path: Path, disk: str, stops_after: Dies
) -> None:
    settings = (f"checkpoint.upload={disk}", "checkpoint.every_steps=0")
    slow = ("checkpoint.upload_mb_per_s=0.002", "checkpoint.notice_s=10")
    said: list[str] = []
    with stops_after(5):  # an upload takes far longer than that
        train(tiny_config, tmp_path / "run", *settings, *slow, warn=said.append)
    assert [note for note in said if note.startswith("no time is left to upload")], said
    assert wholly(disk) == []
    assert train(tiny_config, tmp_path / "run", *settings, warn=said.append).not_uploaded is None
    assert "continues from step 5 of 12" in said
    assert wholly(disk)[0] == 12


def test_pickle_in_the_place_of_tensors_is_refused_and_not_run(
    tiny_config: Path, tmp_path: Path, disk: str
) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "ran"),)

    train(tiny_config, tmp_path / "one", f"checkpoint.upload={disk}")
    directory, content = newest(disk), pickle.dumps(Evil())
    (directory / "model.safetensors").write_bytes(content)
    manifest = json.loads((directory / "manifest.json").read_text())
    said = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest["files"]["model.safetensors"] = said
    (directory / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UsageError, match="not a checkpoint that hotloop wrote"):
        train(tiny_config, tmp_path / "two", f"checkpoint.upload={disk}")
    assert not (tmp_path / "ran").exists()


def test_pipe_in_the_place_of_a_file_is_not_waited_for(
    tiny_config: Path, tmp_path: Path, disk: str
) -> None:
    settings = (f"checkpoint.upload={disk}", "checkpoint.every_steps=6")
    train(tiny_config, tmp_path / "one", *settings)
    for name in ("manifest.json", "model.safetensors"):
        (newest(disk) / name).unlink()
        os.mkfifo(newest(disk) / name)
        train(tiny_config, tmp_path / name, *settings)
        assert losses(tmp_path / name) == losses(tmp_path / "one")


def test_proof_of_resume_never_uploads_to_the_place_of_the_run(
    tiny_config: Path, tmp_path: Path
) -> None:
    from hotloop.resume.short_run import short_settings

    settings = short_settings(tiny_config, (f"checkpoint.upload=file://{tmp_path}/x",), steps=None)
    assert settings.config.checkpoint.upload is None


PROGRAM = """
import os, sys
from pathlib import Path
Path(sys.argv[1]).write_text(str(os.getpid()))
from hotloop.checkpoint import remote
remote.FIRST_WAIT_S = 0.01
from hotloop.cli.main import run
sys.exit(run(sys.argv[2:]))
"""


@pytest.mark.usefixtures("without_compiler")
@pytest.mark.at_once(2)
@pytest.mark.parametrize("at", [14, 23, *range(2, 60, 3)])
def test_process_that_is_killed_at_any_request_of_an_upload_continues_and_uploads_the_rest(
    tiny_config: Path, tmp_path: Path, proxy: Proxy, bucket: str, at: int
) -> None:
    """kill -9 when its nth request has come to the server."""
    script, pid = tmp_path / "program.py", tmp_path / "pid"
    script.write_text(PROGRAM)
    seen = 0

    def kills(head: bytes) -> int | None:
        nonlocal seen
        seen += 1
        if seen != at:
            return None
        os.kill(int(pid.read_text()), 9)
        return len(head) // 2  # what was on its way is cut, too

    def command(directory: str) -> Any:
        arguments = [str(script), str(pid), "train", str(tiny_config), f"checkpoint.upload={bucket}", "--out", str(tmp_path / directory)]  # fmt: skip
        return warm_python.run(arguments, env=os.environ, cwd=tmp_path, timeout=120, trainer=True)

    proxy.fault = kills
    first = command("run")
    proxy.fault = None
    if seen < at:
        pytest.skip(f"a whole run makes {seen} requests")
    assert first.returncode == -9, first
    known = wholly(bucket)  # whatever is whole there verifies
    again = command("run")
    assert again.returncode == 0, again
    assert set(known) | {12} >= {wholly(bucket)[0]} == {12}
    assert "half-written" not in there(bucket).values()
    elsewhere = command("elsewhere")
    assert elsewhere.returncode == 0, elsewhere
    assert losses(tmp_path / "elsewhere") == losses(tmp_path / "run")


def test_records_that_grow_while_they_are_uploaded_are_whole_there(
    tiny_config: Path, tmp_path: Path, disk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Remote._send

    def grows(self: Remote, at: str, *args: Any) -> Any:
        with (tmp_path / "one" / "steps.jsonl").open("a") as file:
            file.write("\n")
        return send(self, at, *args)

    monkeypatch.setattr(Remote, "_send", grows)
    train(tiny_config, tmp_path / "one", f"checkpoint.upload={disk}", "checkpoint.every_steps=0")
    assert wholly(disk) == [12]
    assert [Remote(f"{disk}/tiny").check(each) for each in Remote(f"{disk}/tiny").entries()] == [
        None
    ]
