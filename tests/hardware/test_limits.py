from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from hotloop.core.errors import EnvironmentFailed
from hotloop.core.files import read_json, write_json
from hotloop.core.measurement import COMPARABLE_KEYS, Environment
from hotloop.hardware import device, limits
from hotloop.hardware.device import (
    fast_dtypes,
    pick_device,
    read_environment,
    why_compile_cannot_run,
)


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A control-group tree of our own, and 8 CPUs to schedule on."""
    monkeypatch.setattr(limits, "_CGROUP", tmp_path)
    monkeypatch.setattr(limits, "num_cpus", lambda: 8)
    return tmp_path


def test_quota_of_version_2_counts_and_not_the_machines_cpus(groups: Path) -> None:
    (groups / "cpu.max").write_text("150000 100000\n")
    assert limits.cpu_quota() == 1.5
    assert limits.default_threads() == 1


def test_processes_of_one_machine_share_its_cpus(
    groups: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (groups / "cpu.max").write_text("700000 100000\n")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert limits.default_threads(2) == 1  # not launched: what torchrun will be given
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setattr(limits, "_parent_has", lambda variable: False)  # set by torchrun
    assert [limits.default_threads(n) for n in (1, 2, 3, 8)] == [1, 3, 2, 1]
    monkeypatch.setattr(limits, "_parent_has", lambda variable: True)  # set by the user
    assert limits.default_threads(2) == 1


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
@pytest.mark.parametrize("set_by_user", [False, True])
def test_what_torchrun_set_is_told_from_what_the_user_set(set_by_user: bool) -> None:
    program = (
        "import os, subprocess, sys\n"
        "os.environ['OMP_NUM_THREADS'] = '1'\n"  # as torchrun does for its children
        "subprocess.run([sys.executable, '-c', 'from hotloop.hardware import limits;"
        'print(limits._parent_has("OMP_NUM_THREADS"))\'], check=True)\n'
    )
    variables = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    if set_by_user:
        variables["OMP_NUM_THREADS"] = "1"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=variables, timeout=240
    )
    assert ended.stdout.strip() == str(set_by_user), ended.stderr


def test_no_quota_means_all_cpus(groups: Path) -> None:
    (groups / "cpu.max").write_text("max 100000\n")
    assert limits.cpu_quota() == 8.0


def test_memory_limit_is_the_smaller_of_group_and_machine(groups: Path) -> None:
    machine = limits.memory_limit_bytes()
    (groups / "memory.max").write_text("1000000\n")
    assert limits.memory_limit_bytes() == 1_000_000
    (groups / "memory.max").write_text(f"{machine * 10}\n")
    assert limits.memory_limit_bytes() == machine
    (groups / "memory.high").write_text("800000\n")  # beyond which the kernel slows it down
    assert limits.memory_limit_bytes() == 800_000


def test_memory_left_counts_the_cache_of_the_groups_inside(groups: Path) -> None:
    (groups / "memory.limit_in_bytes").write_text("1000000\n")
    (groups / "memory.usage_in_bytes").write_text("900000\n")
    (groups / "memory.stat").write_text("inactive_file 0\ntotal_inactive_file 300000\n")
    assert limits.memory_left_bytes() == 400_000
    for name, number in (("current", 500_000), ("max", 1_000_000), ("high", 550_000)):
        (groups / f"memory.{name}").write_text(f"{number}\n")
    assert limits.memory_left_bytes() == 350_000  # 50 kB to `high`, and the cache


def test_environment_survives_its_file_and_knows_what_matters(tmp_path: Path) -> None:
    environment = read_environment("cpu")
    write_json(tmp_path / "environment.json", environment)
    assert read_json(tmp_path / "environment.json", Environment) == environment
    for key in ("device", "cpu_model", "platform", "python", "torch"):
        assert key in COMPARABLE_KEYS
        assert getattr(environment, key)


def test_cpu_knows_its_dtypes_and_missing_compiler_is_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu = pick_device("cpu")
    assert "float32" in fast_dtypes(cpu)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert "was not found" in (why_compile_cannot_run(cpu) or "")


def test_cuda_without_a_gpu_is_the_environments_failure() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    with pytest.raises(EnvironmentFailed):
        pick_device("cuda:0")


def test_looking_for_a_compiler_leaves_the_environment_as_it_is() -> None:
    """A run is gone on with in its own environment, and Inductor sets a variable when it is imported."""
    program = (
        "import os, torch; from hotloop.hardware.device import why_compile_cannot_run as why; "
    )
    program += "was = dict(os.environ); why(torch.device('cpu')); assert dict(os.environ) == was"
    env = {name: text for name, text in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    subprocess.run([sys.executable, "-c", program], env=env, check=True)


def test_a_compiler_that_works_is_asked_once_and_one_that_fails_again(tmp_path: Path) -> None:
    compiler, asked, works = (tmp_path / name for name in ("c++", "asked", "works"))
    compiler.write_text(f"#!/bin/sh\necho >> {asked}\ntest -e {works}\n")
    compiler.chmod(0o755)
    why = partial(device._why_it_does_not_compile, (str(compiler),), "")
    assert why() == why() == f"the compiler {compiler} fails: no message"
    works.touch()
    assert why() is why() is None
    assert len(asked.read_text().splitlines()) == 3
