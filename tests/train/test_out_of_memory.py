"""Trainings that really run out of memory say where it went, before they end or after the kernel has ended them."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hotloop.report.html import render_html
from hotloop.runs.run_page import page_of
from hotloop.runs.stored_run import read_run
from hotloop.trial.memory_group import memory_group

WIDE = (
    "train.microbatch=16",
    "train.grad_accum_steps=2",
    "model.context=256",
    "model.layers=8",
    "model.width=512",
)
SMALL_HEAP = ("train.host_memory=default",)


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "hotloop", "train", *words]


@pytest.mark.slow
def test_a_refused_allocation_is_told_with_owners_and_the_command_that_says_what_fits(
    tiny_config: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    words = command(str(tiny_config), *WIDE, *SMALL_HEAP, "--out", str(out))
    limited = ["/bin/sh", "-c", 'ulimit -v 3000000 && exec "$@"', "sh", *words]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=900)
    assert done.returncode == 4, done.stderr
    assert done.stderr.startswith("error: out of memory") or "\nerror: out of memory" in done.stderr
    assert "Traceback" not in done.stderr
    assert "RLIMIT_AS" in done.stderr
    assert "weights" in done.stderr
    assert "train.microbatch=8 train.grad_accum_steps=4: " in done.stderr
    assert f"hotloop fit {tiny_config} train.microbatch=16" in done.stderr
    assert "--memory 3072M --prove`" in done.stderr
    assert "(neither predicted nor measured here)" in done.stderr
    found = read_run(out)
    proof = shlex.join(["hotloop", "fit", str(out / "config.yaml"), "--memory", "3072M", "--prove"])
    assert f"<code>{proof}</code>" in render_html(page_of(found))
    assert found.out_of_memory is not None
    assert found.out_of_memory.certainty == "said"
    assert found.out_of_memory.where.startswith(("forward of step ", "backward of step "))


@pytest.mark.usefixtures("without_compiler")
def test_a_killed_training_is_told_by_the_next_one_and_by_its_report(
    tiny_config: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    words = command(str(tiny_config), *SMALL_HEAP, "--out", str(out))
    with memory_group(450 << 20) as group:
        if group is None:
            pytest.skip("no memory control group can be made here")
        large = [*words, *WIDE]
        done = subprocess.run(group.command(large), capture_output=True, text=True, timeout=900)
        assert done.returncode == -9, done.stderr
        found = read_run(out)
        ended = found.out_of_memory
        assert ended is not None
        assert ended.certainty == "killed"
        assert ended.limit_bytes == 450 << 20
        assert ended.profile is not None
        assert ended.profile.parts["weights"] > 0
        assert ended.ways[0].startswith("train.microbatch=8 train.grad_accum_steps=4")
        again = [*words, *WIDE, "--stop-after", "1"]
        done = subprocess.run(group.command(again), capture_output=True, text=True, timeout=900)
        assert "killed" not in done.stderr  # who only measures says nothing of others
        assert read_run(out).out_of_memory is not None
        done = subprocess.run(group.command(large), capture_output=True, text=True, timeout=900)
        assert "the process before this one: the kernel killed it for its memory" in done.stderr


@pytest.mark.slow
def test_a_training_that_ends_well_shows_its_memory_by_owner_and_phase(
    tiny_config: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    more = (*WIDE[:3], "model.width=256", "averaging.name=ema")
    subprocess.run(command(str(tiny_config), *more, "--out", str(out)), check=True, timeout=900)
    note = json.loads((out / "memory-0.json").read_text())
    found = read_run(out)
    assert found.out_of_memory is None
    assert found.memory is not None
    weights = note["owners"]["weights"]
    assert weights > 0
    assert note["owners"]["gradients"] == note["owners"]["averaged weights"] == weights
    assert note["owners"]["optimizer"] >= 2 * weights
    assert sum(found.memory.parts.values()) == found.memory.peak_bytes == note["peak_bytes"]
    assert {"forward", "backward"} & found.memory.phases.keys()
