"""A model given by name: the hub is asked once, and what its cache has needs no network."""

import http.server
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest
from encoders import save_encoder, write_csv
from huggingface_hub import constants

Run = Callable[..., str]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
QUIET = ["train.epochs=1", "logging.tensorboard=false"]


@contextmanager
def listening() -> Iterator[tuple[int, list[int]]]:
    """A port that takes connections and ends them, and a list with an entry for each."""
    taken: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def take() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                taken.append(1)  # before whoever asks knows that it ended
                connection.close()

        threading.Thread(target=take, daemon=True).start()
        yield server.getsockname()[1], taken
        server.shutdown(socket.SHUT_RDWR)


def test_a_hub_that_does_not_answer_is_asked_once(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    words = ["train", "--task", "sentiment", "--data", str(write_csv(tmp_path / "a.csv")), *QUIET]
    words += ["--out", str(tmp_path / "run"), "--model", "me/bert"]
    with listening() as (port, taken):
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
        said = run(words, code=2)
        assert "no such model in the cache of transformers" in said
        assert f"http://127.0.0.1:{port} does not answer" in said
        assert len(taken) == 1
        place = tmp_path / "hub/models--me--bert"
        save_encoder("bert", place / "snapshots" / COMMIT)
        (place / "refs").mkdir()
        (place / "refs/main").write_text(COMMIT)
        assert "`me/bert` comes out of the cache" in run(words)
        assert len(taken) == 2
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    shutil.rmtree(tmp_path / "run")
    assert "comes out of the cache" in run(words)
    assert "no such model directory" in run([*words[:-1], "a/b/c"], code=2)


class Hub(http.server.BaseHTTPRequestHandler):
    """Files of `me/bert` as huggingface.co gives them; what it says of other names."""

    files: Path
    others: ClassVar = {"gated": (403, "GatedRepo"), "busy": (503, ""), "bert": (404, "EntryNotFound"), "models": (404, "EntryNotFound"), "weights": (404, "EntryNotFound")}  # fmt: skip

    def do_HEAD(self) -> None:
        path = self.files / self.path.rpartition("/")[2]
        there = self.path.startswith("/me/bert/resolve/") and path.is_file()
        body = path.read_bytes() if there else b""
        status, code = self.others.get(self.path.split("/")[2], (401, "RepoNotFound"))
        self.send_response(200 if there else status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header(*(("ETag", f'"{path.name}"') if there else ("X-Error-Code", code)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_GET = do_HEAD

    def log_message(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("me/bret", "has no model of this name, or a private one"),
        ("me/gated", "only to who has accepted its conditions"),
        ("me/weights", "is no model of transformers: it has no config.json"),
        ("me/busy", "(HTTP 503) does not answer"),
        ("me/offline", "is not asked, as HF_HUB_OFFLINE says"),
        ("models/brt", "has no model of this name"),
        ("./models/brt", "no such model directory"),
        ("models/damaged", "transformers cannot load this model"),
    ],
)
def test_a_model_that_is_none_is_told_before_the_data_is_read(
    name: str, says: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", name == "me/offline")
    (tmp_path / "hub/models--me--bert").mkdir(parents=True)
    bert, damaged = (save_encoder("bert", Path(f"models/{each}")) for each in ("bert", "damaged"))
    (damaged / "config.json").write_text("{")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("_", (Hub,), {"files": bert}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    words = ["train", "--task", "sentiment", "--data", "gone.csv", "--model", name, *QUIET]
    for more in ([], ["--profile", "test"]):
        said = run([*words, *more], code=2)
        assert says in said
        assert "no such file of examples" not in said
        if name == "me/bret":
            assert "did you mean `me/bert`?" in said
        if name.endswith("brt"):
            assert "did you mean `models/bert`?" in said
    server.shutdown()
    server.server_close()
    said = run([*words[:6], str(bert), *QUIET], code=2)
    assert "no such file of examples" in said


@pytest.mark.slow
def test_a_model_of_the_hub_is_loaded_and_then_needs_it_no_more(tmp_path: Path) -> None:
    data, files = write_csv(tmp_path / "a.csv", 40), save_encoder("bert", tmp_path / "bert")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("_", (Hub,), {"files": files}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    names = {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HOME": str(tmp_path / "hf"),
    }
    words = [sys.executable, "-m", "hotloop", "train", "--task", "sentiment", "--model", "me/bert", "--data", str(data), *QUIET]  # fmt: skip

    def train(out: str) -> str:
        environment = os.environ | names | {"HOTLOOP_CACHE": str(tmp_path / "cache")}
        done = subprocess.run([*words, "--out", str(tmp_path / out)], env=environment, capture_output=True, text=True)  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stderr

    assert "asks http://127.0.0.1" in train("one")
    server.shutdown()
    server.server_close()
    assert "comes out of the cache" in train("two")
    one, two = (tmp_path / name / "model/model.safetensors" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()
