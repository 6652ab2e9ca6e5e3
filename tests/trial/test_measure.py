from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hotloop.core.census import Census
from hotloop.core.child import STEP_CLOCK_SAMPLES
from hotloop.core.errors import CommandFailed, UsageError
from hotloop.core.files import read_json
from hotloop.core.measurement import Measurement, Plan
from hotloop.core.memory_use import is_for_memory
from hotloop.core.step import StepRecord
from hotloop.hardware.environment import read_host
from hotloop.trial.arm import Arm, refuse_missing
from hotloop.trial.measure import drop_torn_libraries, load_measurement, measure
from hotloop.trial.memory_group import memory_group
from hotloop.trial.process import Finished
from hotloop.trial.process_measurement import measurement_of


def run(arm: Arm, directory: Path, *, warmup: int = 0, steps: int = 1) -> Measurement:
    return measure(
        arm, directory=directory / "trial", plan=Plan(warmup, steps, 300), seed="0",
        cache=directory / "cache", workdir=None,
    )  # fmt: skip


def losses_printed(directory: Path) -> list[float]:
    lines = (directory / "trial" / "log.txt").read_text().splitlines()
    return [float(line.split()[1]) for line in lines if line.startswith("loss ")]


def test_foreign_script_is_clocked_with_its_own_losses_and_ended_without_its_ending(
    tmp_path: Path, training: Callable[..., Arm]
) -> None:
    ending = tmp_path / "saved.pt"
    measured = run(training(ending=ending), tmp_path, warmup=5, steps=20)
    assert [record.step for record in measured.records] == list(range(25))
    assert [record.loss for record in measured.records] == losses_printed(tmp_path)
    assert all(record.wall_s > 0 for record in measured.records)
    assert [r.step for r in measured.counted()] == list(range(5, 25))
    assert not ending.exists()
    assert "ended by itself" not in (tmp_path / "trial" / "log.txt").read_text()
    assert measured.returncode is None  # ended after its last counted step
    census = measured.census
    assert census is not None
    assert (census.device, census.num_threads, census.optimizer) == ("cpu", 1, "AdamW")
    assert census.parameter_dtypes == ("float32",)
    assert census.host_peak_bytes
    assert census.tree_bytes is not None
    assert census.tree_bytes < 1.5 * census.host_peak_bytes
    assert measured.environment.python == sys.version.split()[0]
    assert load_measurement(tmp_path / "trial" / "measurement.json") == measured


@pytest.mark.parametrize(
    ("taken", "samples"),
    [
        ((8, 8, 8, 8, 8, 3), [8, 8, 8, 8, 8, 3]),
        ((16, 8, 8, None, 16, 8), [8] * 6),  # asked ahead: an epoch ends with the fourth step
        ((8, None, None, 8, None, None), [8, None, None, 8, None, None]),  # several of one batch
        ((None,) * 6, [None] * 6),
    ],
)
def test_samples_of_a_loader_that_is_asked_ahead_are_those_of_all_steps(
    tmp_path: Path, taken: tuple[int | None, ...], samples: list[int | None]
) -> None:
    steps = (StepRecord(number, 0.1, samples=each) for number, each in enumerate(taken))
    (tmp_path / "steps-0.jsonl").write_text("".join(each.to_json() + "\n" for each in steps))
    (tmp_path / "clock-0.json").write_text('{"stopped": true}')
    measured = measurement_of(
        Arm("plain", ("python",), "step_clock"), ("python",), Plan(1, 5, 60.0), read_host(),
        Finished(0, 1.0, 0.0), tmp_path, tmp_path / "log.txt",
    )  # fmt: skip
    assert [each.samples for each in measured.records] == samples


RANKS = """
import os, sys, torch
from torch import distributed
from torch.utils.data import DataLoader
torch.set_num_threads(1)
distributed.init_process_group("gloo")
rank = distributed.get_rank()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, batch in enumerate(DataLoader(torch.randn(600, 4), batch_size=6 - 2 * rank)):
    if rank == 1 and step == int(sys.argv[1]):
        raise ValueError("no apples")
    model(batch).sum().backward()
    distributed.all_reduce(model.weight.grad)
    optimizer.step()
"""


@pytest.mark.usefixtures("without_compiler")
def test_the_work_and_memory_of_all_ranks_are_counted_and_one_that_fails_is_quoted(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    launch = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    command, env = (*launch, str(tmp_path / "train.py"), "50"), {STEP_CLOCK_SAMPLES: "1"}
    arm = Arm("two", command, "step_clock", env=env)
    measured = run(arm, tmp_path, warmup=2, steps=8)
    assert [each.samples for each in measured.records] == [6 + 4] * 10
    census = measured.census
    assert census is not None
    first = read_json(tmp_path / "trial/run/census-0.json", Census).tree_bytes
    assert (census.tree_bytes or 0) > 1.5 * (first or 0) > 0
    with pytest.raises(CommandFailed, match="ended with exit code 1") as caught:
        run(replace(arm, command=(*command[:-1], "5")), tmp_path / "fails", warmup=2, steps=8)
    assert (caught.value.do or "").endswith("[rank1]: ValueError: no apples")


@pytest.mark.parametrize(("claims", "samples"), [(1, 8), (2, 16), (4, 32)])
def test_a_rank_that_left_no_record_is_taken_to_have_had_as_many_samples(
    tmp_path: Path, claims: int, samples: int
) -> None:
    for rank in range(claims):
        (tmp_path / f"claim-{rank}").touch()
    for rank in range(min(claims, 2)):  # the second was cut off
        steps = [StepRecord(number, 0.1, samples=8) for number in range(4 - rank)]
        lines = "".join(each.to_json() + "\n" for each in steps)
        (tmp_path / f"steps-{rank}.jsonl").write_text(lines)
    measured = measurement_of(
        Arm("plain", ("python",), "step_clock"), ("python",), Plan(1, 3, 60.0), read_host(),
        Finished(0, 1.0, 0.0), tmp_path, tmp_path / "log.txt",
    )  # fmt: skip
    assert [each.samples for each in measured.records] == [samples] * 4


def test_script_that_ends_too_early_says_how_many_steps_it_made(
    tmp_path: Path, training: Callable[..., Arm]
) -> None:
    with pytest.raises(CommandFailed, match="made 7 steps, 25 were asked for") as caught:
        run(training(steps=7, ending=tmp_path / "x"), tmp_path, warmup=5, steps=20)
    assert "ended by itself" in str(caught.value)
    assert not (tmp_path / "trial" / "measurement.json").exists()


def test_a_launcher_that_takes_the_end_after_the_last_step_for_a_failure_is_passed_over(
    tmp_path: Path, python: Callable[..., Arm], training: Callable[..., Arm]
) -> None:
    """As what executes a notebook does, whose kernel has died."""
    source = "import subprocess, sys; subprocess.run(sys.argv[1:]); sys.exit('the kernel died')"
    own = training(ending=tmp_path / "x").command
    measured = run(python(source, *own, records="step_clock"), tmp_path, warmup=5, steps=20)
    assert len(measured.records) == 25
    assert measured.returncode is None
    own = training(steps=7, ending=tmp_path / "x").command
    with pytest.raises(CommandFailed, match="ended with exit code 1"):
        run(python(source, *own, records="step_clock"), tmp_path / "early", warmup=5, steps=20)


def test_python_that_ignores_the_environment_is_refused_with_the_reason(tmp_path: Path) -> None:
    arm = Arm("plain", (sys.executable, "-I", "-c", "pass"), "step_clock")
    with pytest.raises(CommandFailed, match=r"reads PYTHONPATH \(not -I, -E or -S\)"):
        run(arm, tmp_path, warmup=1)


def test_users_own_sitecustomize_still_runs_and_ours_is_gone_from_the_path(
    tmp_path: Path, python: Callable[..., Arm]
) -> None:
    (tmp_path / "users").mkdir()
    (tmp_path / "users" / "sitecustomize.py").write_text("LOADED = 'the user'\n")
    source = "import sys, sitecustomize; print(sitecustomize.LOADED, 'bootstrap' in str(sys.path))"
    arm = python(source, records="step_clock", env={"PYTHONPATH": str(tmp_path / "users")})
    with pytest.raises(CommandFailed, match="made 0 steps") as caught:
        run(arm, tmp_path, warmup=1)
    assert "the user False" in str(caught.value)


def test_nothing_of_our_environment_but_hotloop_is_put_on_the_path(
    tmp_path: Path, python: Callable[..., Arm]
) -> None:
    source = "import os; print([os.listdir(p) for p in os.environ['PYTHONPATH'].split(':')])"
    with pytest.raises(CommandFailed) as caught:
        run(python(source, records="step_clock", env={"PYTHONPATH": ""}), tmp_path, warmup=1)
    listed = str(caught.value).rsplit("[[", 1)[1].split("], [")
    assert "sitecustomize.py" in listed[0]
    assert listed[1].startswith("'hotloop']")


def test_failing_command_shows_its_code_and_the_end_of_its_log(
    tmp_path: Path, python: Callable[..., Arm]
) -> None:
    with pytest.raises(CommandFailed, match="ended with exit code 3") as caught:
        run(python("print('no data here'); raise SystemExit(3)"), tmp_path)
    assert caught.value.returncode == 3
    assert "no data here" in str(caught.value)
    assert caught.value.where == str(tmp_path / "trial" / "log.txt")


@pytest.mark.parametrize(
    ("first", "is_told"),
    [("error: out of memory", True), ("a batch: out of memory, so a smaller one", False)],
)
def test_a_trainer_that_says_at_length_where_its_memory_went_ran_out_of_it(
    tmp_path: Path, first: str, is_told: bool
) -> None:
    words = "\n".join([first, *(f"  owner {number}: 1 MB" for number in range(30))])
    command = (sys.executable, "-c", f"print({words!r}); raise SystemExit(4)")
    with pytest.raises(CommandFailed) as failed:
        run(Arm("plain", command, "wall"), tmp_path)
    ends = "`plain` ended with exit code 4"
    assert failed.value.what == ends + ": it ran out of memory" * is_told
    assert is_for_memory(failed.value) == is_told


@pytest.mark.parametrize("by", ["itself", "a child"])
def test_a_bounded_command_that_takes_more_than_was_free_ran_out_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    with memory_group(200 << 20) as group:
        if group is None:
            pytest.skip("no memory control group can be made here")
    monkeypatch.setattr("hotloop.trial.measure.memory_left_bytes", lambda: 200 << 20)
    takes = "held = bytearray(400 << 20)\nfor i in range(0, len(held), 4096): held[i] = 1"
    if by == "a child":
        takes = (
            f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {takes!r}], check=True)"
        )
    arm = Arm("a", (sys.executable, "-c", takes), "none")
    assert run(arm, tmp_path / "free").returncode == 0
    with pytest.raises(CommandFailed) as failed:
        run(replace(arm, bounded=True), tmp_path / "bounded")
    assert "out of memory, of which 210 MB were free" in failed.value.what
    assert is_for_memory(failed.value)


def test_own_trainer_writes_its_run_where_it_is_told(
    tmp_path: Path, python: Callable[..., Arm]
) -> None:
    source = """
import pathlib, sys
run = pathlib.Path(sys.argv[1])
lines = ['{"step":%d,"wall_s":0.5,"loss":%s}' % (i, "NaN" if i == 3 else i) for i in range(4)]
(run / "steps.jsonl").write_text("\\n".join(lines) + "\\n")
(run / "census.json").write_text('{"device": "cpu"}')
"""
    arm = python(source, "{run}", records="run")
    measured = run(
        Arm(arm.name, arm.command, "run", tokens_per_step=64), tmp_path, warmup=1, steps=3
    )
    assert [record.tags for record in measured.records] == [("warmup",), (), (), ()]
    assert {record.tokens for record in measured.records} == {64}
    assert measured.census is not None
    assert measured.command[-1] == str(tmp_path / "trial" / "run")
    assert measured.returncode == 0
    # A loss that is not a number is what the judge most needs to see.
    stored = load_measurement(tmp_path / "trial" / "measurement.json")
    assert math.isnan(stored.records[3].loss or 0.0)


def test_command_without_steps_gives_one_sample_of_its_wall_time(
    tmp_path: Path, python: Callable[..., Arm]
) -> None:
    began = time.perf_counter()
    measured = run(python("import time; time.sleep(0.1)"), tmp_path)
    (sample,) = measured.samples
    assert 0.1 < sample.value < time.perf_counter() - began
    assert measured.records == ()
    assert measured.environment.torch is None  # not seen from outside


def test_missing_program_or_directory_is_a_usage_error(tmp_path: Path) -> None:
    for arm in (
        Arm("a", ("no-such-program",), "none"),
        Arm("a", (str(tmp_path / "no-such-file"),), "none"),
        Arm("a", ("./relative",), "none"),
        Arm("a", (sys.executable,), "none", workdir=tmp_path / "missing"),
    ):
        with pytest.raises(UsageError):
            refuse_missing(arm)
    refuse_missing(Arm("a", (sys.executable,), "none"))


@pytest.mark.parametrize("name", ["", "a/b", "..", "-x", "ä"])
def test_arm_whose_name_cannot_name_a_directory_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be named"):
        Arm(name, ("x",), "none")


def test_library_that_a_killed_compiler_left_is_not_loaded_again(tmp_path: Path) -> None:
    whole = Path(torch._C.__file__).read_bytes()
    named = {"whole": whole, "cut": whole[: len(whole) // 2], "empty": b"", "of the header": whole[:64], "other": b"x" * 99}  # fmt: skip
    for name, content in named.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "kernel.so").write_bytes(content)
    drop_torn_libraries(tmp_path)
    assert {each.parent.name for each in tmp_path.glob("*/*.so")} == {"whole", "other"}
