"""Trainings that really run out of memory while a config is tuned: what is tried in their place, and what is believed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFIG = """
name: tiny
data: {source: text.txt, tokenizer: bytes}
model: {layers: 4, width: 64, heads: 16, context: 128}
train: {steps: 400, microbatch: 1, attention: plain, precision: fp32, compile: false, loss: plain, clip: builtin,
        host_memory: default, gelu: tanh, num_threads: 1}
optimizer: {fused: false}
"""
TUNED = """
import json, resource
from dataclasses import asdict
from hotloop.cli.tune_config import of_config
from hotloop.doctor.fix_status import tried_fix
from hotloop.tune import program
from hotloop.tune.campaign import Campaign
from hotloop.tune.options import Option

class Soak(Campaign):
    def all(self):
        for value in self.values:
            self.tried[value.name] = tried_fix(value, "kept", "faster")
        self.stack = [*self.values]
        self._soaked()
        return self._ledger(None)

def tuned(batch, megabytes, **how):
    given = {"vary": (f"train.microbatch={batch}",), "parity": (), "accept": ("train.microbatch",), "accumulate_with": ()}
    asked = of_config(("tiny.yaml",), None, given, 600.0)
    examined, _ = asked.examined(3600.0, None)
    limit = megabytes << 20 if megabytes else resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    rounds = [[each for each in asked.rounds[1] if each.name == "train.microbatch"]]
    ledger = program.tune(examined, rounds, str, work=asked.work, **how)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    print(json.dumps([[each.name, each.status, each.why] for each in ledger.fixes]))

tuned(32, 1200, most_pairs=1)
tuned(32, 1200, campaign=Soak)
tuned(2, 0, campaign=Soak)
"""


@pytest.mark.slow
def test_a_microbatch_that_is_too_large_is_tried_with_checkpointing_and_a_soak_ends_as_its_training(
    tmp_path: Path,
) -> None:
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    (tmp_path / "text.txt").write_text("\n".join(f"line {n} of a text" for n in range(30_000)))
    env = {**os.environ, "HOTLOOP_CACHE": str(tmp_path.parent / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", TUNED], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    lines = [each for each in done.stdout.splitlines() if each.startswith("[[")]
    assert len(lines) == 3, done.stderr
    tried, failed, survived = map(json.loads, lines)
    larger, checkpointing = "train.microbatch=32", "train.activation_checkpointing"
    ways = [f"{larger} {checkpointing}={each}" for each in ("selective", "full")]
    assert [name for name, _, _ in tried] == [larger, *ways]  # which is too much as well
    for _, status, why in tried:
        assert status == "failed"
        assert why.startswith("ended with exit code 4: it ran out of memory")
    ((_, status, why),) = failed
    assert status == "rejected"
    assert "but the soak failed (40 steps with an evaluation and a save): ended with exit" in why
    soaked = "faster; soaked (40 steps with an evaluation and a save)"
    assert survived == [["train.microbatch=2", "kept", soaked]]
