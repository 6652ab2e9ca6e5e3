"""The scripts that are submitted, run as Slurm runs them; sbatch, srun and squeue stand on the PATH."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hotloop.core.errors import EnvironmentFailed, Interrupted, UsageError
from hotloop.data.cluster import ClusterRequest, parse_request
from hotloop.data.prepare import Preparation
from hotloop.data.staging import PLAN, STAGING

pytest.importorskip("datatrove")

Prepare = Callable[..., Preparation]
Same = Callable[[Path], bool]

PROGRAMS = {
    "sbatch": """
import json, os, pathlib, shutil, sys
spool = pathlib.Path(os.environ["SPOOL"])
number = 4242 + len(list(spool.glob("*.submitted")))
exported = next(a for a in sys.argv[1:] if a.startswith("--export=ALL,")).split(",", 1)[1]
(spool / f"{number}.submitted").write_text(pathlib.Path(sys.argv[-1]).read_text())
shutil.copy(spool / f"{number}.submitted", spool / f"{number}.queued")
environment = {**os.environ, **dict(pair.split("=", 1) for pair in exported.split(","))}
(spool / f"{number}.environment").write_text(json.dumps(environment))
print(f"Submitted batch job {number}")
""",
    "squeue": """
import os, pathlib, sys
spool = pathlib.Path(os.environ["SPOOL"])
jobs = next(a for a in sys.argv if a.startswith("--jobs=")).partition("=")[2].split(",")
if not any((spool / f"{job}.submitted").exists() for job in jobs):
    sys.exit("slurm_load_jobs error: Invalid job id specified")
for job in jobs:
    if (spool / f"{job}.queued").exists():
        print(f"{job}_[0-9]")
""",
    "srun": """
import os, sys
command = sys.argv[1:]
assert command[:3] == ["-l", "-n", "1"], command
os.execvp(command[3], command[3:])
""",
    "scontrol": "import sys; print(sys.argv[-1])",
}


class Slurm:
    def __init__(self, spool: Path) -> None:
        self._spool = spool
        self.request = parse_request("slurm:2", ["time=1:00:00", "partition=cpu"])

    def script(self, number: int) -> str:
        return (self._spool / f"{number}.submitted").read_text()

    def run(self, number: int, tasks: list[int]) -> list[int]:
        """The exit codes of some tasks of a job's array; it is in the queue until `end`."""
        environment = json.loads((self._spool / f"{number}.environment").read_text())
        return [
            subprocess.run(
                ["bash", str(self._spool / f"{number}.queued")],
                env={**environment, "SLURM_ARRAY_TASK_ID": str(task), "SLURM_NODELIST": "node1"},
                capture_output=True,
                check=False,
            ).returncode
            for task in tasks
        ]

    def end(self, number: int) -> None:
        (self._spool / f"{number}.queued").unlink()


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    for name, program in PROGRAMS.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!{sys.executable}\n{program}")
        path.chmod(0o755)
    (tmp_path / "spool").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SPOOL", str(tmp_path / "spool"))
    return Slurm(tmp_path / "spool")


def test_the_same_command_submits_waits_and_commits(
    corpus: Path, tmp_path: Path, in_jobs: Prepare, same_as_alone: Same, slurm: Slurm
) -> None:
    out = tmp_path / "out"
    with pytest.raises(Interrupted, match="2 ranks, submitted as Slurm job 4242"):
        in_jobs(corpus, out, on=slurm.request)
    script = slurm.script(4242)
    assert "#SBATCH --array=0-1\n" in script
    assert "#SBATCH --partition=cpu\n" in script
    with pytest.raises(Interrupted, match="job 4242 is at work: 0 of"):
        in_jobs(corpus, out, on=slurm.request)
    assert slurm.run(4242, [0]) == [0]
    with pytest.raises(Interrupted, match=r"job 4242 is at work: [1-9][0-9]* of"):
        in_jobs(corpus, out, on=slurm.request)
    assert slurm.run(4242, [0, 1]) == [0, 0]  # the first as after a requeue
    slurm.end(4242)
    done = in_jobs(corpus, out, on=slurm.request)
    assert done.outcome == "written"
    assert done.encoding is None  # nothing of this call's own work, so no speed is said
    assert same_as_alone(out)


@pytest.mark.at_once(1)
@pytest.mark.parametrize("then", ["slurm", "local"])
def test_damaged_and_missing_work_is_done_again(
    corpus: Path, tmp_path: Path, in_jobs: Prepare, same_as_alone: Same, slurm: Slurm, then: str
) -> None:
    out = tmp_path / "out"
    slurm.request = parse_request("slurm:1", ["time=1:00:00", "partition=cpu"])
    with pytest.raises(Interrupted, match="4242"):
        in_jobs(corpus, out, on=slurm.request)
    slurm.run(4242, [0])
    slurm.end(4242)
    made = sorted((out / STAGING).glob("round-*/rank-*/train-*.bin"))
    content = bytearray(made[0].read_bytes())
    content[len(content) // 2] ^= 1
    made[0].write_bytes(content)
    made[1].unlink()
    if then == "slurm":
        with pytest.raises(
            Interrupted, match=r"(?s)4242 ended with 2 of its .*checksum.*as Slurm job 4243"
        ):
            in_jobs(corpus, out, on=slurm.request)
        slurm.run(4243, [0])
        slurm.end(4243)
        in_jobs(corpus, out, on=slurm.request)
    else:
        done = in_jobs(corpus, out, on=parse_request("local:2"))
        assert done.encoding is not None
        assert done.encoding.jobs == 2
    assert same_as_alone(out)


def test_bad_line_found_by_a_rank_ends_the_others_and_the_next_run_submits_anew(
    tmp_path: Path, in_jobs: Prepare, slurm: Slurm
) -> None:
    out = tmp_path / "out"
    directory = tmp_path / "texts"
    directory.mkdir()
    for number in range(8):
        (directory / f"{number}.txt").write_text(f"text {number} " * 200)
    (directory / "bad.jsonl").write_text('{"text": "fine"}\n{"text": 5\n')
    with pytest.raises(Interrupted, match="4242"):
        in_jobs(directory, out, on=slurm.request)
    last = json.loads((out / STAGING / PLAN).read_bytes())["num_jobs"] - 1
    assert slurm.run(4242, [last % 2]) != [0]
    assert slurm.run(4242, [(last + 1) % 2]) == [0]
    made = {path.parent.name[:10] for path in (out / STAGING).glob("round-*/rank-*/job-*.json")}
    assert made <= {f"rank-{last % 2:05d}"}
    with pytest.raises(UsageError, match="malformed line") as caught:
        in_jobs(directory, out, on=slurm.request)
    assert "bad.jsonl:2" in str(caught.value.where)
    (directory / "bad.jsonl").write_text('{"text": "fine"}\n{"text": "fine too"}\n')
    with pytest.raises(Interrupted, match="4243"):
        in_jobs(directory, out, on=slurm.request)


def test_ranks_of_an_abandoned_submission_change_nothing(
    corpus: Path, tmp_path: Path, in_jobs: Prepare, same_as_alone: Same, slurm: Slurm
) -> None:
    out = tmp_path / "out"
    with pytest.raises(Interrupted, match="4242"):
        in_jobs(corpus, out, on=slurm.request)
    in_jobs(corpus, out)  # this machine has done it meanwhile
    assert all(slurm.run(4242, [0]))
    assert same_as_alone(out)


def test_refused_submission_says_what_slurm_said(
    corpus: Path, tmp_path: Path, in_jobs: Prepare, slurm: Slurm
) -> None:
    (tmp_path / "bin" / "sbatch").write_text("#!/bin/sh\necho invalid partition >&2\nexit 1\n")
    with pytest.raises(EnvironmentFailed, match="could not be submitted") as caught:
        in_jobs(corpus, tmp_path / "out", on=slurm.request)
    assert "invalid partition" in str(caught.value.do)


def test_queue_that_does_not_answer_is_not_taken_for_the_end(
    corpus: Path, tmp_path: Path, in_jobs: Prepare, slurm: Slurm
) -> None:
    with pytest.raises(Interrupted, match="4242"):
        in_jobs(corpus, tmp_path / "out", on=slurm.request)
    (tmp_path / "bin" / "squeue").write_text("#!/bin/sh\necho no controller >&2\nexit 1\n")
    with pytest.raises(EnvironmentFailed, match="whether job 4242 still runs: no controller"):
        in_jobs(corpus, tmp_path / "out", on=slurm.request)


def test_what_slurm_cannot_do_is_refused(
    corpus: Path, tmp_path: Path, in_jobs: Prepare, slurm: Slurm
) -> None:
    with pytest.raises(UsageError, match="a space in its path"):
        in_jobs(corpus, tmp_path / "with space", on=slurm.request)
    with pytest.raises(UsageError, match="standard input"):
        in_jobs(Path("-"), tmp_path / "out", on=ClusterRequest("slurm", 2))
