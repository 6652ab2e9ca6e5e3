"""SIGTERM, and SIGKILL after a window, at every kind of moment of a training; then the same command again.

    python benchmarks/interruption.py DIRECTORY [--windows 2 15 30] [--rounds 1] [--json FILE] [--compile]

Each case is a real run in a process of its own. `held up` is what makes the moment long: a step, or a compiler, of 5 s in C
(where no handler of Python's runs), a save of 5 s beside the steps, an evaluation of 6 s, data that never comes. Told are
the seconds from SIGTERM to the end, the exit code, the steps lost, and whether the newest checkpoint verifies and the
continued run has the losses, evaluations and weights of one that was never stopped. `--compile` sends SIGTERM at moments of
a real `torch.compile` instead.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import select
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch._dynamo

from hotloop.checkpoint import store
from hotloop.cli.main import run as hotloop
from hotloop.core.step import read_steps

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/train"))
from interrupted_program import planted

EVERY = 5
CONFIG = """name: tiny
data: {{source: {text}, tokenizer: bytes}}
model: {{layers: 1, width: 16, heads: 2, context: 16, dropout: 0.1}}
train: {{steps: 24, microbatch: 4, compile: false, precision: fp32, num_threads: 1}}
schedule: {{warmup_steps: 4}}
averaging: {{name: ema}}
eval: {{every_steps: 6, windows: 12}}
checkpoint: {{every_steps: {every}, keep: 9, background: {background}}}
logging: {{tensorboard: false}}
"""
MOMENTS: dict[str, dict[str, Any]] = {
    "compute": {"at": "update", "nth": 14, "c_s": 5},
    "compute, short steps": {"at": "update", "nth": 14},
    "save": {"at": "file", "nth": 8, "save_s": 5},
    "evaluation": {"at": "eval", "nth": 14, "eval_s": 0.5},
    "first step, compiling in C++": {"at": "update", "nth": 1, "c_s": 20},
    "first step, compiling in Python": {"at": "data", "nth": 1, "python_s": 600},
    "data wait": {"at": "data", "nth": 14, "python_s": 600},
}


def begun(arguments: list[str], job: dict[str, Any] | None, said: Path) -> tuple[int, int]:
    """A fork that runs hotloop; its process id, and the end of a pipe that says when the signal was sent."""
    reads, writes = os.pipe()
    if pid := os.fork():
        os.close(writes)
        return pid, reads
    code = 1
    try:
        written = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(written, 1)
        os.dup2(written, 2)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        if job is not None:
            planted({"signals": ["SIGTERM"], "tells": writes, **job})
        code = int(hotloop(arguments))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def ended(pid: int, within_s: float) -> tuple[int, float]:
    """Its exit code, -9 once it had to be killed, and after how many seconds."""
    began, handle = time.monotonic(), os.pidfd_open(pid)
    if not select.select([handle], [], [], within_s)[0]:
        os.kill(pid, signal.SIGKILL)
    os.close(handle)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), time.monotonic() - began


def whole(config: Path, out: Path) -> None:
    pid, reads = begun(["train", str(config), "--out", str(out)], None, out.with_suffix(".txt"))
    os.close(reads)
    code, _ = ended(pid, 600)
    assert code == 0, out.with_suffix(".txt").read_text()


def the_same(one: Path, other: Path) -> bool:
    losses = [[record.loss for record in read_steps(each / "steps.jsonl")] for each in (one, other)]
    evaluations = [(each / "evals.jsonl").read_text() for each in (one, other)]
    found = [store.latest(each / "checkpoints")[0] for each in (one, other)]
    left, right = (
        store.load(each, ("model", "optimizer", "random", "average"))[0] for each in found
    )
    return (
        losses[0] == losses[1]
        and evaluations[0] == evaluations[1]
        and all(torch.equal(t, right[f][n]) for f, group in left.items() for n, t in group.items())
    )


def case(config: Path, reference: Path, out: Path, moment: str, window: float) -> dict[str, Any]:
    said = out.with_suffix(".txt")
    arguments = ["train", str(config), "--out", str(out), f"checkpoint.notice_s={window}"]
    pid, reads = begun(arguments, MOMENTS[moment], said)
    assert os.read(reads, 4), said.read_text()
    os.close(reads)
    code, seconds = ended(pid, window)
    done = len(list(read_steps(out / "steps.jsonl"))) if (out / "steps.jsonl").exists() else 0
    newest, problems = store.latest(out / "checkpoints")
    step = newest.step if newest is not None else 0
    words = said.read_text().strip().splitlines()
    whole(config, out)
    return {
        "moment": moment,
        "window_s": window,
        "exit_code": code,
        "ended_after_s": round(seconds, 2),
        "steps_done": done,
        "continued_from": step,
        "steps_lost": max(done - step, 0),
        "corrupt": len(problems),
        "same_bits": the_same(out, reference),
        "said": next((line for line in words if line.startswith("SIGTERM")), ""),
    }


def compiling(config: Path, out: Path, after_s: float) -> dict[str, Any]:
    """SIGTERM after so many seconds of a loop that compiles, with nothing in any cache."""
    said = out.with_suffix(".txt")
    os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
    arguments = ["train", str(config), "--out", str(out), "train.compile=true"]
    pid, reads = begun(arguments, None, said)
    os.close(reads)
    steps = out / "steps.jsonl"
    while not steps.exists():  # the loop begins, and so does compiling
        time.sleep(0.02)
    time.sleep(after_s)
    os.kill(pid, signal.SIGTERM)
    code, seconds = ended(pid, 60)
    return {
        "sigterm_after_s": round(after_s, 1),
        "exit_code": code,
        "ended_after_s": round(seconds, 2),
        "in_first_step": not steps.read_bytes(),
        "said": (said.read_text().strip().splitlines() or [""])[-3:],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--windows", type=float, nargs="+", default=[2.0, 15.0, 30.0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    given.directory.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(dir=given.directory))
    draw = random.Random(0)
    (root / "text.txt").write_text(
        "\n".join(
            " ".join(draw.choices(["a", "loop", "reads", "the", "batch", "and", "learns"], k=30))
            for _ in range(3000)
        )
    )
    configs = []
    for background in ("false", "true"):
        configs.append(root / f"background-{background}.yaml")
        configs[-1].write_text(
            CONFIG.format(text=root / "text.txt", every=EVERY, background=background)
        )
    gc.freeze()  # a fork that collects would copy every page
    reference = root / "whole"
    whole(configs[0], reference)
    rows = []
    for number in range(given.rounds * (4 if given.compile else len(MOMENTS) * len(given.windows))):
        out = root / f"case-{number}"
        if given.compile:
            row = compiling(configs[0], out, draw.uniform(0, 1.5))
        else:
            moment = list(MOMENTS)[number % len(MOMENTS)]
            window = given.windows[number // len(MOMENTS) % len(given.windows)]
            row = case(configs[moment == "save"], reference, out, moment, window)
        rows.append(row)
        print(json.dumps(row), flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
