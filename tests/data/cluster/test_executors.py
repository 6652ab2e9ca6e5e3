"""Ranks make, to the last byte, what one machine makes, whoever dies on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from hotloop.core.errors import EnvironmentFailed, UsageError
from hotloop.data.cluster import ClusterRequest, parse_request
from hotloop.data.prepare import Preparation
from hotloop.data.prepared import verify_prepared
from hotloop.data.staging import STAGING
from preparing import prepare_text

pytest.importorskip("datatrove")

Prepare = Callable[..., Preparation]
Same = Callable[[Path], bool]


def itself(rank: psutil.Process) -> psutil.Process | None:
    return rank


def its_worker(rank: psutil.Process) -> psutil.Process | None:
    return next((child for child in rank.children() if "spawn_main" in str(child.cmdline())), None)


@pytest.mark.at_once(1)
@pytest.mark.parametrize("ranks", [2, 1])
def test_local_ranks_make_the_same_bytes(
    corpus: Path, tmp_path: Path, in_jobs: Prepare, same_as_alone: Same, ranks: int
) -> None:
    out = tmp_path / "out"
    done = in_jobs(corpus, out, on=parse_request(f"local:{ranks}"))
    assert same_as_alone(out)
    assert done.encoding is not None
    assert done.encoding.jobs == len(done.manifest.jobs) > 3
    assert (done.encoding.on, done.encoding.processes) == (f"local:{ranks}", ranks)
    assert done.encoding.tokens == done.manifest.tokens
    assert not verify_prepared(out).damaged
    assert in_jobs(corpus, out, on=parse_request("local:2")).outcome == "up_to_date"


def the_executor(rank: psutil.Process) -> psutil.Process | None:
    return next((p for p in rank.parents() if "cluster.launch" in " ".join(p.cmdline())), None)


@pytest.mark.at_once(1)
@pytest.mark.parametrize("victim", [itself, its_worker, the_executor])
def test_work_of_a_killed_rank_is_done_again(
    corpus: Path,
    tmp_path: Path,
    in_jobs: Prepare,
    same_as_alone: Same,
    killed_once: Any,
    victim: Callable[[psutil.Process], psutil.Process | None],
) -> None:
    out = tmp_path / "out"
    with killed_once(out, victim) as killed:
        in_jobs(corpus, out, on=parse_request("local:2"))
    assert killed
    assert same_as_alone(out)


@pytest.mark.slow
def test_ray_makes_the_same_bytes_although_a_rank_is_killed(
    corpus: Path, tmp_path: Path, in_jobs: Prepare, same_as_alone: Same, killed_once: Any
) -> None:
    pytest.importorskip("ray")
    out = tmp_path / "out"
    with killed_once(out, itself) as killed:
        done = in_jobs(corpus, out, on=parse_request("ray:2", ["mem_per_cpu_gb=0.1"]))
    assert killed
    assert same_as_alone(out)
    assert done.encoding is not None
    assert done.encoding.jobs == len(done.manifest.jobs)


@pytest.mark.slow
def test_work_of_an_executor_killed_before_its_ranks_begin_is_done_again(
    corpus: Path, tmp_path: Path, in_jobs: Prepare, same_as_alone: Same
) -> None:
    killed: list[int] = []

    def kill(what: str, done: float, total: float | None, note: str = "") -> None:
        if what == "starting ranks" and not killed:
            threading.Thread(target=kill_launch).start()

    def kill_launch() -> None:
        while not killed:
            for child in psutil.Process().children():
                if "hotloop.data.cluster.launch" in child.cmdline():
                    child.kill()
                    killed.append(child.pid)
            time.sleep(0.005)

    in_jobs(corpus, tmp_path / "out", on=parse_request("local:2"), progress=kill)
    assert killed
    assert same_as_alone(tmp_path / "out")


def test_bad_line_is_the_error_that_one_machine_gives(tmp_path: Path, in_jobs: Prepare) -> None:
    source = tmp_path / "texts.jsonl"
    source.write_text('{"text": "a line"}\n' * 200 + '{"text": 5\n' + '{"text": "more"}\n' * 200)
    directory = tmp_path / "many"
    directory.mkdir()
    for number in range(8):
        (directory / f"{number}.txt").write_text(f"text {number} " * 200)
    source.rename(directory / "texts.jsonl")
    errors = []
    for name, on in (("alone", None), ("ranks", parse_request("local:2"))):
        with pytest.raises(UsageError) as caught:
            in_jobs(directory, tmp_path / name, on=on)
        errors.append((caught.value.what, caught.value.where))
    assert errors[0] == errors[1]
    assert "201" in str(errors[0])


def test_executor_that_cannot_start_is_one_clear_error(
    corpus: Path, tmp_path: Path, in_jobs: Prepare
) -> None:
    request = ClusterRequest("local", 2, {"start_method": "no-such-method"})
    with pytest.raises(EnvironmentFailed, match="the ranks did not do") as caught:
        in_jobs(corpus, tmp_path / "out", on=request)
    assert "no-such-method" in str(caught.value.do)


def test_killed_coordinator_leaves_no_rank_and_the_next_one_ends_it(
    corpus: Path, tmp_path: Path, in_jobs: Prepare, same_as_alone: Same
) -> None:
    out = tmp_path / "out"
    program = (
        "import sys, time; from pathlib import Path\n"
        "from hotloop.data import execute; from hotloop.data.prepare import Spec, prepare_text\n"
        "from hotloop.data.cluster import executor; from hotloop.data.cluster import *\n"
        "execute.HERE_BYTES = 0\n"
        "executor.collect = lambda *a: {}\n"  # its ranks make records, and it takes none
        "prepare_text(Spec((sys.argv[1],), job_bytes=1000, validation_fraction=0.2),"
        " Path(sys.argv[2]), on=parse_request('local:2', ['randomize_start_duration=0']))"
    )
    command = [sys.executable, "-c", program, str(corpus), str(out)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as coordinator:
        deadline = time.monotonic() + 300
        while not list((out / STAGING).glob("round-*/rank-*/job-*.json")):
            assert time.monotonic() < deadline
            assert coordinator.poll() is None
            time.sleep(0.005)
        below = psutil.Process(coordinator.pid).children(recursive=True)
        assert below
        os.kill(coordinator.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(below, timeout=120)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
    done = in_jobs(corpus, out, on=parse_request("local:2"))
    assert same_as_alone(out)
    encoded = 0 if done.encoding is None else done.encoding.jobs
    assert encoded < len(done.manifest.jobs)


def test_workers_are_refused_where_ranks_are_asked_for(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--workers has no effect with --on"):
        prepare_text(
            [str(corpus)],
            tmp_path / "out",
            tokenizer="bytes",
            workers=2,
            on=parse_request("local:2"),
        )
