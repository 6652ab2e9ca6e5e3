"""The same bytes from any number of workers, any engine, and after any number of kills."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from hotloop.core.errors import EnvironmentFailed
from hotloop.data import engines, execute
from hotloop.data.engines import EngineDiffers, Reference
from hotloop.data.manifest import JobRecord
from hotloop.data.staging import STAGING, Staging
from preparing import contents, in_jobs

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def workers_for_small_corpora(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "HERE_BYTES", 0)


def test_bytes_do_not_depend_on_the_number_of_workers(corpus: Path, tmp_path: Path) -> None:
    for workers in (1, 2, 3):
        done = in_jobs(corpus, tmp_path / str(workers), workers=workers, tokenizer="train:300")
        assert done.encoding is not None
        assert done.encoding.processes == workers
        assert done.encoding.jobs == len(done.manifest.jobs) > 3
    one = contents(tmp_path / "1")
    assert one == contents(tmp_path / "2") == contents(tmp_path / "3")


@pytest.mark.parametrize("tokenizer", ["bytes", "train:400"])
def test_bytes_do_not_depend_on_the_engine(corpus: Path, tmp_path: Path, tokenizer: str) -> None:
    pytest.importorskip("gigatoken")
    (corpus / "tricky.txt").write_text("<|endoftext|> a<|endoftext|>\n\n\u00a0\u200b\x00 x" * 50)
    in_jobs(corpus, tmp_path / "reference", engine="reference", tokenizer=tokenizer)
    done = in_jobs(corpus, tmp_path / "fast", engine="gigatoken", tokenizer=tokenizer)
    assert done.encoding is not None
    assert done.encoding.engine == "gigatoken"
    assert {job.engine.split()[0] for job in done.manifest.jobs} == {"gigatoken"}
    slow, fast = contents(tmp_path / "reference"), contents(tmp_path / "fast")
    assert slow.pop("manifest.json") != fast.pop("manifest.json")  # names the engine
    assert slow == fast


def test_only_what_has_changed_is_done_again(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    small = {"job_bytes": 250}  # which file is in which job follows from its path
    jobs = len(in_jobs(corpus, out, **small).manifest.jobs)
    (corpus / "file_020.py").write_text("print('changed')\n" * 9)
    again = in_jobs(corpus, out, **small)
    assert again.outcome == "updated"
    assert again.encoding is not None
    assert 0 < again.encoding.jobs < jobs / 2
    (corpus / "file_007.py").unlink()
    (corpus / "new.py").write_text("x = 1\n" * 100)
    assert in_jobs(corpus, out, **small).outcome == "updated"
    assert in_jobs(corpus, out, **small).outcome == "up_to_date"
    in_jobs(corpus, tmp_path / "fresh", **small)
    assert contents(out) == contents(tmp_path / "fresh")


def test_jobs_whose_shards_are_damaged_are_done_again(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    write = Staging.write

    def stop(staging: Staging, number: int, record: JobRecord) -> None:
        write(staging, number, record)
        if len(list((out / STAGING).glob("job-*.json"))) >= 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Staging, "write", stop)
        with pytest.raises(KeyboardInterrupt):
            in_jobs(corpus, out, workers=1)
    records = [json.loads(path.read_text()) for path in sorted((out / STAGING).glob("job-*.json"))]
    lost, cut, altered, _ = (out / STAGING / record["shards"][0]["file"] for record in records)
    lost.unlink()
    cut.write_bytes(cut.read_bytes()[:-2])
    content = bytearray(altered.read_bytes())
    content[len(content) // 2] ^= 1
    altered.write_bytes(content)
    done = in_jobs(corpus, out)
    assert done.encoding is not None
    assert done.encoding.jobs == len(done.manifest.jobs) - 1
    in_jobs(corpus, tmp_path / "fresh")
    assert contents(out) == contents(tmp_path / "fresh")


def test_killed_worker_is_one_clear_error_and_its_work_is_done_again(
    corpus_of: Callable[[Path, int], Path], tmp_path: Path
) -> None:
    corpus = corpus_of(tmp_path / "corpus", 400)  # more than is done before the first report
    out = tmp_path / "out"
    killed: list[int] = []

    def kill(what: str, done: float, total: float | None, note: str = "") -> None:
        if what == "encoding" and not killed:
            for child in psutil.Process().children():
                if "spawn_main" in str(child.cmdline()):
                    child.kill()
                    killed.append(child.pid)

    with pytest.raises(EnvironmentFailed, match="ended before its work was done"):
        in_jobs(corpus, out, progress=kill)
    in_jobs(corpus, out)
    in_jobs(corpus, tmp_path / "fresh")
    assert contents(out) == contents(tmp_path / "fresh")


def test_no_worker_outlives_a_killed_parent(corpus: Path, tmp_path: Path) -> None:
    program = (
        "import sys, time, psutil; from pathlib import Path\n"
        "from hotloop.data import execute; from hotloop.data.prepare import Spec, prepare_text\n"
        "execute.HERE_BYTES = 0\n"
        "def hang(what, done, total, note=''):\n"
        "    if what == 'encoding':\n"
        "        below = psutil.Process().children()\n"
        "        print(*[p.pid for p in below if 'spawn_main' in str(p.cmdline())], flush=True)\n"
        "        time.sleep(60)\n"
        "prepare_text(Spec((sys.argv[1],), job_bytes=1000), Path(sys.argv[2]), workers=2, progress=hang)"
    )
    command = [sys.executable, "-c", program, str(corpus), str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(workers) == 2
        os.kill(parent.pid, signal.SIGKILL)
    deadline = time.monotonic() + 120
    while any(map(psutil.pid_exists, workers)):
        assert time.monotonic() < deadline, "a worker goes on without its parent"
        time.sleep(0.02)


def test_workers_do_not_load_torch(corpus: Path, tmp_path: Path) -> None:
    maps: list[str] = []

    def look(what: str, done: float, total: float | None, note: str = "") -> None:
        if what == "encoding":
            for child in psutil.Process().children():
                if "spawn_main" in str(child.cmdline()):
                    maps.extend(entry.path for entry in child.memory_maps())

    in_jobs(corpus, tmp_path / "out", progress=look)
    assert any("tokenizers" in path for path in maps)
    assert not [path for path in maps if "libtorch" in path]


def test_kills_at_random_instants_end_in_the_same_bytes() -> None:
    specification = importlib.util.spec_from_file_location(
        "prepare_kills", ROOT / "benchmarks" / "prepare_kills.py"
    )
    assert specification is not None
    assert specification.loader is not None
    kills = importlib.util.module_from_spec(specification)
    sys.modules["prepare_kills"] = kills
    specification.loader.exec_module(kills)
    found = kills.run(3, 51, "reference", "bytes")
    assert {trial["victims"] for trial in found["trials"]} == {"parent", "all", "worker"}
    assert found["hit_a_running_one"] >= 1
    assert found["identical"] == 3


def lying(after: int) -> ModuleType:
    """An engine that gives one wrong id in every text from its `after`-th batch on."""

    class Lying(Reference):
        name = "lying"
        calls = 0

        def encode(self, texts: Any, contents: Any) -> Any:
            ids, lengths = super().encode(texts, contents)
            self.calls += 1
            if self.calls > after:
                ids[:] = ids[::-1].copy()
            return ids, lengths

    module = ModuleType("lying")
    module.load = lambda tokenizer, threads: Lying(tokenizer)  # type: ignore[attr-defined]
    return module


def test_engine_with_other_ids_is_not_chosen_and_the_difference_is_shown(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotloop.data.execute.ROUTED_BYTES", 0)
    monkeypatch.setitem(sys.modules, "lying", lying(after=0))
    monkeypatch.setattr(engines, "ENGINES", {"reference": engines.ENGINES["reference"]})
    monkeypatch.setitem(engines.ENGINES, "lying", "lying")
    done = in_jobs(corpus, tmp_path / "out", job_bytes=None)
    assert done.encoding is not None
    assert done.encoding.engine == "reference"
    assert done.encoding.routing is not None
    tried = {entry.engine: entry for entry in done.encoding.routing.tried}
    assert not tried["lying"].identical
    assert "instead of" in tried["lying"].why


def test_engine_that_goes_wrong_later_stops_the_run_and_nothing_it_made_is_kept(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lying", lying(after=0))
    monkeypatch.setitem(engines.ENGINES, "lying", "lying")
    monkeypatch.setattr("hotloop.data.execute.HERE_BYTES", 1 << 30)
    with pytest.raises(EngineDiffers, match="lying gives other ids") as caught:
        in_jobs(corpus, tmp_path / "out", engine="lying")
    assert caught.value.where is not None
    assert caught.value.where.startswith(str(corpus))
    assert not (tmp_path / "out").exists()
