"""Two ranks of one thread each, started by torchrun, that train while the text is being prepared."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from trainings import losses, records, train, wait_for_steps

from hotloop.data.gather import digest_of, salt_of

PROGRAM = Path(__file__).with_name("ranks_program.py")
REDUCTION_ORDER = 1e-5
"""Relative; fp32 sums in another order."""

MANY_SMALL_JOBS = """
import os
import sys
import time

import hotloop.data.jobs as jobs
import hotloop.data.staging as staging

jobs.SMALL_CORPUS_BYTES, jobs.JOB_BYTES, jobs.FIRST_JOB_BYTES = 1000, (1000, 1000), 500
if "--multiprocessing-fork" in sys.orig_argv:  # the process that prepares
    written, count = staging.Staging.write, 0

    def late(self, *args):
        global count
        count += 1
        time.sleep(0.15)
        while count > 8 and os.path.exists(os.environ["HOLD"]):
            time.sleep(0.05)
        written(self, *args)

    staging.Staging.write = late
"""
"""`sitecustomize.py` of every process: a small text is cut as a large one, and comes as slowly.

Most of it does not come before the file HOLD is removed."""


@dataclass(frozen=True)
class Place:
    root: Path
    config: Path

    def torchrun(self, *arguments: str) -> subprocess.Popen[str]:
        launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
        return self.python(*launcher, *arguments)

    def python(self, *arguments: str) -> subprocess.Popen[str]:
        paths = [str(self.root / "customized"), os.environ.get("PYTHONPATH", "")]
        return subprocess.Popen(
            [sys.executable, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "PYTHONFAULTHANDLER": "1",  # a rank that aborts says where
                "PYTHONPATH": os.pathsep.join(path for path in paths if path),
                "HOTLOOP_CACHE": str(self.root / "cache of two"),
                "HOLD": str(self.root / "hold"),
            },
        )


def held_out_text() -> str:
    """Some text that stands on the other side of the split."""
    for number in range(10_000):
        text = f"{number} is held out " * 20
        if int.from_bytes(digest_of(text.encode(), salt_of(0), quick=True)[:8], "little") < 2**57:
            return text
    raise AssertionError


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache of one"))
    (tmp_path / "customized").mkdir()
    (tmp_path / "customized/sitecustomize.py").write_text(MANY_SMALL_JOBS)
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "000.txt").write_text(held_out_text())
    for number in range(1, 67):
        (texts / f"{number:03}.txt").write_text(f"{number} and {number % 7} " * 25)
    path = tmp_path / "streamed.yaml"
    path.write_text(
        f"""data: {{source: {texts}, tokenizer: bytes, stream: true, shuffle_buffer: 32}}
model: {{layers: 1, width: 16, heads: 2, context: 32}}
train:
  steps: 90
  microbatch: 2
  grad_accum_steps: 4
  compile: false
  precision: fp32
  num_threads: 1
schedule: {{warmup_steps: 4}}
eval: {{every_steps: 30, windows: 6}}
checkpoint: {{every_steps: 4}}
logging: {{tensorboard: false}}
"""
    )
    return Place(tmp_path, path)


def process_of(child: subprocess.Popen[str], *words: str) -> psutil.Process:
    """The oldest one below `child` with all words in its command or its environment."""
    for process in psutil.Process(child.pid).children(recursive=True):
        known = [*process.cmdline(), *(f"{k}={v}" for k, v in process.environ().items())]
        if set(words) <= set(known):
            return process
    raise AssertionError(f"no process with {words}")


@pytest.mark.slow
def test_ranks_train_on_growing_text_what_one_process_trains_on_prepared_text(
    place: Place,
) -> None:
    run, alone = place.root / "run", place.root / "alone"
    command = ("-m", "hotloop", "train", str(place.config), "--out", str(run))

    (place.root / "hold").touch()
    child = place.torchrun(*command)
    wait_for_steps(child, run / "steps-1.jsonl", 8)
    process_of(child, "--multiprocessing-fork").kill()
    _, err = child.communicate(timeout=120)
    (place.root / "hold").unlink()
    assert child.returncode != 0
    said = "preparing the text failed: its process was killed"
    assert f"error: {said}" in err, err
    assert f"error: rank 1 stops because rank 0 did: {said}" in err, err
    assert "error: internal" not in err
    assert 8 <= len(records(run)) < 90

    child = place.torchrun(*command)
    wait_for_steps(child, run / "steps-1.jsonl", len(records(run)) + 12)
    process_of(child, "RANK=1").send_signal(signal.SIGKILL)
    _, err = child.communicate(timeout=120)
    assert child.returncode != 0
    # In a sum over the ranks the other one notices by itself; while it waits for text torchrun ends it.
    assert "another rank ended without a word" in err or "interrupted" in err, err
    assert "error: internal" not in err

    # In the order of the text, and prepared anew: the option changes nothing but the place in the cache.
    in_order = ("data.order=sequential", "data.reading.min_chars=1")
    jobs = [
        {"arguments": command[2:]},
        {"arguments": [*command[2:4], *in_order, "--out", str(place.root / "in order")]},
    ]
    (place.root / "jobs.json").write_text(json.dumps(jobs))
    child = place.python(str(PROGRAM), str(place.root / "jobs.json"))
    _, err = child.communicate(timeout=240)
    assert child.returncode == 0, err
    for rank in (0, 1):
        codes = json.loads((place.root / f"codes-{rank}.json").read_text())
        assert codes == [0, 0], (place.root / f"said-{codes.index(0)}-{rank}.txt").read_text()

    train(place.config, alone)
    assert [record.step for record in records(run)] == list(range(90))
    assert [record.step for record in records(run, 1)][-1] == 89
    assert losses(run) == pytest.approx(losses(alone), rel=REDUCTION_ORDER)
    evaluated = [
        [json.loads(line) for line in (directory / "evals.jsonl").read_text().splitlines()]
        for directory in (run, alone)
    ]
    assert [entry["num_targets"] for entry in evaluated[0]] == [192] * 3
    for mine, theirs in zip(*evaluated, strict=True):
        assert mine == pytest.approx(theirs, rel=REDUCTION_ORDER)

    plain = place.root / "prepared before"
    train(place.config, plain, "data.stream=false", "data.order=sequential")
    assert losses(place.root / "in order") == pytest.approx(losses(plain), rel=REDUCTION_ORDER)
    assert losses(plain) != pytest.approx(losses(alone), rel=0.01)
