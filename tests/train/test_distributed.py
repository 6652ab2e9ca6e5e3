"""Two ranks of one thread each, on gloo; torchrun really starts those that are interrupted or killed."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from trainings import killed_after, losses, records, train, wait_for_steps, weights

import warm_python
from hotloop.checkpoint import store
from hotloop.checkpoint.state import FILES, random_file
from hotloop.runs.stored_run import read_run

PROGRAM = Path(__file__).with_name("ranks_program.py")
HELD = str(Path(__file__).with_name("held_program.py"))
REDUCTION_ORDER = 1e-5
"""Relative; fp32 sums in another order."""
LLAMA = ("model.family=llama", "model.kv_heads=1", "model.qk_norm=true")
LONG = ("train.steps=60", "eval.every_steps=60", "checkpoint.every_steps=50", "model.dropout=0.1")

ROLLBACK = (
    *("stability.spikes=rollback", "stability.window_steps=4"),
    *("stability.spike_factor=1.0001", "stability.max_rollbacks=1"),
)


def torchrun(*arguments: str, **variables: str) -> subprocess.Popen[str]:
    """One thread per rank, and no matter of the machine's other ports."""
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
            *arguments,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
    )


def held_out(directory: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (directory / "evals.jsonl").read_text().splitlines()]


@dataclass(frozen=True)
class Made:
    """What the two ranks left behind; made once for all tests of this file."""

    root: Path
    config: Path
    names: list[str]

    def directory(self, name: str) -> Path:
        return self.root / name

    def code(self, name: str, rank: int = 0) -> int:
        codes = json.loads((self.root / f"codes-{rank}.json").read_text())
        return int(codes[self.names.index(name)])

    def said(self, name: str, rank: int = 0) -> str:
        return (self.root / f"said-{self.names.index(name)}-{rank}.txt").read_text()


JOBS: dict[str, dict[str, Any]] = {
    "plain": {},
    "llama": {"settings": ("optimizer.name=muon", *LLAMA, "averaging.name=ema", "eval.windows=10")},
    "sgd": {"settings": ("optimizer.name=sgd", "optimizer.learning_rate=0.3", "train.clip_norm=1")},
    "fp16": {"settings": ("train.precision=fp16",)},
    "bf16 gradients": {"settings": ("train.gradient_compression=bf16",)},
    "fp16 gradients": {"settings": ("train.gradient_compression=fp16",)},
    "buckets": {"bucket_mb": 0.004},
    "compiled": {
        "settings": ("train.compile=true",),
        "backend": "aot_eager",
        "bucket_mb": 0.004,
    },
    "less memory": {
        "settings": (
            *("train.compile=blocks", "train.loss=chunked"),
            "train.activation_checkpointing=full",
        ),
        "backend": "aot_eager",
        "bucket_mb": 0.004,
    },
    "slow": {"sick_rank": 1, "slow_s": 0.08},
    "grown": {},
    "long": {"settings": LONG},
    "interrupted": {"settings": LONG},
    "rollback": {"settings": ROLLBACK},
    "beside": {"settings": ("checkpoint.background=true",)},
    "rollback beside": {"settings": (*ROLLBACK, "checkpoint.background=true")},
    "other data": {"settings_of_rank_1": ("data.prepared=null", "data.source=python-stdlib")},
    "drifts": {"sick_rank": 1, "drifts": True},
    "notice": {
        "settings": ("checkpoint.notice_s=60",),
        "sick_rank": 1,
        "told_after": 5,
        "save_takes_s": 600,
    },
    "uneven": {"settings": ("train.grad_accum_steps=3",)},
    "contradicted": {"settings": ("train.grad_accum_steps=2",), "in": "plain"},
    "dies": {"sick_rank": 1, "dies_after": 3},
}
"""By name; the last one ends both processes."""


@pytest.fixture(scope="session")
def made(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # of all workers: one of them makes it for all
    root = root / "two-ranks"
    root.mkdir(exist_ok=True)
    found = Made(root, root / "tiny.yaml", list(JOBS))
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / "done").exists():
            make(found, prepared)
            (root / "done").touch()
    return found


def make(made: Made, prepared: Path) -> None:
    shutil.copytree(prepared, made.root / "data")  # the worker's own may be removed before the end
    made.config.write_text(
        f"""name: tiny
data: {{prepared: {made.root / "data"}}}
model: {{layers: 1, width: 16, heads: 2, context: 16}}
train:
  steps: 12
  microbatch: 2
  grad_accum_steps: 4
  compile: false
  precision: fp32
  num_threads: 1
schedule: {{warmup_steps: 4}}
eval: {{every_steps: 6, windows: 6}}
checkpoint: {{every_steps: 4, keep: 3, background: false}}
logging: {{tensorboard: false}}
"""
    )
    interrupt(made)
    train(made.config, made.directory("grown"))
    killed_after(made.directory("grown"), step=4)
    jobs = []
    for name, job in JOBS.items():
        directory = made.directory(job.get("in", name))
        arguments = ["train", str(made.config), *job.get("settings", ()), "--out", str(directory)]
        jobs.append({**job, "arguments": arguments})
    (made.root / "jobs.json").write_text(json.dumps(jobs))
    command = [str(PROGRAM), str(made.root / "jobs.json")]
    ended = warm_python.run(command, env=os.environ, cwd=made.root, timeout=900, trainer=True)
    assert ended.returncode == 0, ended


def interrupt(made: Made) -> None:
    """Ctrl-C to torchrun in the midst of "interrupted"."""
    directory, hold = made.directory("interrupted"), made.root / "hold"
    hold.touch()
    child = torchrun(
        HELD, "train", str(made.config), *LONG, "--out", str(directory),
        PYTHONPATH=str(Path(__file__).parents[1] / "without_compiler"),
        HOLD=str(hold), HOLD_AFTER="20",
    )  # fmt: skip
    wait_for_steps(child, directory / "steps-1.jsonl", 5)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=300)
    (made.root / "interrupted.txt").write_text(out + err)
    shutil.copytree(directory, made.root / "as interrupted")


@pytest.mark.parametrize("name", ["plain", "llama", "sgd"])
def test_two_ranks_learn_what_one_learns(made: Made, tmp_path: Path, name: str) -> None:
    assert made.code(name) == made.code(name, rank=1) == 0
    train(made.config, tmp_path / "alone", *JOBS[name].get("settings", ()))
    one, two = tmp_path / "alone", made.directory(name)
    assert losses(two) == pytest.approx(losses(one), rel=REDUCTION_ORDER)
    norms = [[record.grad_norm for record in records(run)] for run in (one, two)]
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)
    for file in ("model", "optimizer"):
        alone = weights(one)[file]
        for key, value in weights(two)[file].items():
            assert torch.allclose(value, alone[key], rtol=1e-4, atol=1e-5), key
    assert len(held_out(two)) == 2
    for ours, theirs in zip(held_out(two), held_out(one), strict=True):
        assert ours == pytest.approx(theirs, rel=REDUCTION_ORDER)


def test_every_rank_records_its_steps_and_memory_and_the_first_one_writes_everything_else(
    made: Made,
) -> None:
    run = made.directory("plain")
    # Both ranks know the loss of the whole step and count its work, each saw its own time.
    assert losses(run, 1) == losses(run)
    assert {record.tokens for record in records(run, 1)} == {8 * 16}
    assert [r.wall_s for r in records(run, 1)] != [r.wall_s for r in records(run)]
    names = {path.name for path in run.iterdir()}
    assert names - {".lock"} == {
        *("config.yaml", "data.json", "tokenizer.json", "environment.json", "model.json"),
        "census.json",
        *("steps.jsonl", "steps-1.jsonl", "evals.jsonl", "telemetry.jsonl", "checkpoints"),
        *("sessions.jsonl", "memory-0.json", "memory-1.json"),
    }
    census = json.loads((run / "census.json").read_text())
    assert (census["num_ranks"], census["sent_gradient_dtype"]) == (2, "float32")
    assert "12 steps, loss" in made.said("plain")
    assert made.said("plain", rank=1) == ""


def test_ranks_may_come_by_their_data_in_different_ways(made: Made) -> None:
    assert made.code("other data") == made.code("other data", rank=1) == 0, made.said(
        "other data", rank=1
    )
    assert losses(made.directory("other data")) == losses(made.directory("plain"))


def test_phases_of_every_rank_add_up_with_the_wait_among_them(made: Made) -> None:
    for rank in (0, 1):
        kept = records(made.directory("plain"), rank)
        assert min(min(record.host.values()) for record in kept) >= 0
        assert all(record.host["grad_sync"] > 0 for record in kept)
        phases = sum(sum(record.host.values()) for record in kept)
        assert phases == pytest.approx(sum(record.wall_s for record in kept), rel=5e-3)


@pytest.mark.parametrize(
    ("name", "sent", "tolerance"),
    [
        ("bf16 gradients", "bfloat16", 5e-3),
        ("fp16 gradients", "float16", 5e-3),
        ("fp16", "float32", 5e-3),
        ("compiled", "float32", REDUCTION_ORDER),
        ("less memory", "float32", REDUCTION_ORDER),
    ],
)
def test_technique_stays_within_its_class_on_two_ranks(
    made: Made, name: str, sent: str, tolerance: float
) -> None:
    assert made.code(name) == 0, made.said(name)
    found, plain = losses(made.directory(name)), losses(made.directory("plain"))
    assert found == pytest.approx(plain, rel=tolerance)
    assert (found != plain) or name == "compiled"
    census = json.loads((made.directory(name) / "census.json").read_text())
    assert census["sent_gradient_dtype"] == sent
    assert census["compiled"] == (name in ("compiled", "less memory"))


def test_compiled_model_is_split_where_its_gradients_can_be_sent(made: Made) -> None:
    found = re.search(r"graphs below the buckets: (\d+)", made.said("compiled"))
    assert found is not None
    assert int(found[1]) > 1
    census = json.loads((made.directory("compiled") / "census.json").read_text())
    assert (census["num_graphs"], census["num_graph_breaks"]) == (1, 0)


def test_gradients_in_many_buckets_are_those_of_one(made: Made) -> None:
    assert losses(made.directory("buckets")) == losses(made.directory("plain"))
    assert all(record.host["grad_sync"] > 0 for record in records(made.directory("buckets")))


def test_interrupted_ranks_stop_at_one_step_and_continue_to_the_same_bits(made: Made) -> None:
    said = (made.root / "interrupted.txt").read_text()
    assert said.count("run the same command again to continue") == 1
    cut, whole, continued = (
        made.directory(name) for name in ("as interrupted", "long", "interrupted")
    )
    assert 5 <= len(records(cut)) == len(records(cut, 1)) < 60
    assert f"saved at step {len(records(cut))}" in said
    assert losses(continued) == losses(whole)
    # Dropout draws other numbers on each rank, and goes on where it stopped on each.
    one, other = weights(whole, random_file(1)), weights(continued, random_file(1))
    assert not torch.equal(one["random"]["torch"], one["random-1"]["torch"])
    for file, tensors in one.items():
        for key, value in tensors.items():
            assert torch.equal(other[file][key], value), (file, key)


def test_rank_that_is_told_to_stop_alone_leaves_no_more_time_to_the_others(made: Made) -> None:
    assert made.code("notice") == made.code("notice", rank=1) == 75
    said = made.said("notice") + made.said("notice", rank=1)
    left = r"saving takes 600 s, [1-5]?\d s are left: continuing will start from step 4"
    assert re.search(rf"stopped after step 6 of 12; {left}", said)
    assert store.steps(made.directory("notice") / "checkpoints") == (4,)


def test_run_begun_by_one_process_is_continued_by_two_and_by_one_again(
    made: Made, tmp_path: Path
) -> None:
    grown, alone = made.directory("grown"), tmp_path / "alone"
    train(made.config, alone)
    assert "resumed" in records(grown)[4].tags
    assert [record.step for record in records(grown, 1)] == list(range(4, 12))
    assert losses(grown) == pytest.approx(losses(alone), rel=REDUCTION_ORDER)
    assert losses(grown)[:4] == losses(alone)[:4]
    shrunk = tmp_path / "shrunk"
    shutil.copytree(made.directory("plain"), shrunk)
    killed_after(shrunk, step=4)
    # The same step in other microbatches may continue it, too.
    train(made.config, shrunk, "train.microbatch=8", "train.grad_accum_steps=1")
    assert losses(shrunk) == pytest.approx(losses(alone), rel=REDUCTION_ORDER)
    assert [record.step for record in records(shrunk, 1)] == list(range(4))


def test_all_ranks_go_back_from_a_spike_together(made: Made) -> None:
    assert made.code("rollback") == made.code("rollback", rank=1)
    (line,) = (made.directory("rollback") / "rollbacks.jsonl").read_text().splitlines()
    assert json.loads(line)["steps_passed_over"] > 0
    assert losses(made.directory("rollback")) == losses(made.directory("rollback"), 1)


@pytest.mark.parametrize("name", ["", "rollback "])
def test_ranks_that_save_beside_their_steps_save_the_same(made: Made, name: str) -> None:
    one, other = made.directory(name.strip() or "plain"), made.directory(f"{name}beside")
    assert made.code(other.name) == made.code(other.name, 1) == made.code(one.name)
    for rank in (0, 1):
        assert losses(one, rank) == losses(other, rank)
    steps = {*store.steps(one / "checkpoints")} & {*store.steps(other / "checkpoints")}
    assert steps == ({0} if name else {8, 12})  # those beside the steps begin earlier, too
    for step in steps:
        saved = [store.of_step(each / "checkpoints", step) for each in (one, other)]
        left, right = (store.load(each, (*FILES, random_file(1))) for each in saved)
        for state in (left[1], right[1]):
            del state["python_random"]  # of the processes that make all jobs, one after the other
        assert left[1] == right[1]
        for file, group in left[0].items():
            assert all(torch.equal(value, right[0][file][key]) for key, value in group.items())


def test_slow_rank_is_named_and_the_others_are_seen_to_wait_for_it(made: Made) -> None:
    found = read_run(made.directory("slow")).ranks
    assert found is not None
    assert found.slowest == 1
    first, slow = found.ranks
    # Two microbatches a step, each 80 ms late; other programs may slow the first rank by some of that.
    assert slow.computing_s - first.computing_s > 0.06
    assert first.waiting_s - slow.waiting_s > 0.06


def test_bad_input_is_one_clear_error_of_all_ranks(made: Made) -> None:
    both = [made.said("uneven", rank) for rank in (0, 1)]
    assert sorted(text.count("cannot be shared evenly by 2 processes") for text in both) == [0, 1]
    assert "train.microbatch=1 train.grad_accum_steps=6" in "".join(both)
    assert made.code("uneven") == made.code("uneven", rank=1) == 2
    assert "this directory holds a run with `train.grad_accum_steps: 4`" in made.said(
        "contradicted"
    )
    assert "rank 1 stops because rank 0 did: this directory" in made.said("contradicted", rank=1)
    assert made.code("contradicted") == made.code("contradicted", rank=1) == 2


def test_ranks_whose_weights_drift_apart_save_nothing(made: Made) -> None:
    assert made.code("drifts") == made.code("drifts", rank=1) == 4
    both = made.said("drifts") + made.said("drifts", rank=1)
    assert both.count("ranks 0 and 1 no longer hold the same weights; nothing was saved") == 1
    assert not (made.directory("drifts") / "checkpoints").exists()


def test_rank_that_fails_ends_the_others_with_its_error(made: Made) -> None:
    assert made.code("dies", rank=1) == 70
    assert made.code("dies") == 5
    assert "rank 0 stops because rank 1 did: RuntimeError: planted" in made.said("dies")
    assert len(records(made.directory("dies"))) <= 4


@pytest.mark.usefixtures("without_compiler")
def test_killed_rank_ends_the_others_with_a_word(made: Made, tmp_path: Path) -> None:
    run = tmp_path / "run"
    child = torchrun(
        HELD, "train", str(made.config), *LONG, "train.steps=4000", "eval.every_steps=0", "--out", str(run),
        HOLD="", HOLD_AFTER="0", END_S="0.5",  # torchrun asks the other one to end meanwhile
    )  # fmt: skip
    wait_for_steps(child, run / "steps-1.jsonl", 3)
    os.kill(rank_processes(child.pid)[1], signal.SIGKILL)
    _, err = child.communicate(timeout=300)
    assert child.returncode != 0
    assert err.count("error: another rank ended without a word") == 1
    assert "exitcode  : 4 " in err
    assert "(SIGKILL)" in err


def rank_processes(agent: int) -> dict[int, int]:
    """Rank to process id, of the children of torchrun."""
    children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    found = {}
    for child in children:
        for entry in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            if entry.startswith(b"RANK="):
                found[int(entry.removeprefix(b"RANK="))] = int(child)
    return found


@pytest.mark.usefixtures("without_compiler")
def test_port_in_use_is_said_with_the_remedy(made: Made, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = subprocess.run(
            [sys.executable, "-m", "hotloop", "train", str(made.config), "--out", str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=300,
            env={
                **os.environ,
                **{"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"},
                **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
            },
        )
    assert ended.returncode == 4
    assert f"error: port {port} is in use on this machine" in ended.stderr
    assert "--master-port" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_compiled_ranks_learn_what_one_compiled_process_learns(made: Made, tmp_path: Path) -> None:
    """Through the whole compiler: minutes of CPU where nothing is cached yet."""
    train(made.config, tmp_path / "alone", "train.compile=true")
    child = torchrun("-m", "hotloop", "train", str(made.config), "train.compile=true", "--out", str(tmp_path / "two"))  # fmt: skip
    said = child.communicate(timeout=600)
    assert child.returncode == 0, said
    assert losses(tmp_path / "two") == pytest.approx(
        losses(tmp_path / "alone"), rel=REDUCTION_ORDER
    )
