"""datatrove's Slurm executor, with what it leaves to the environment made certain."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from datatrove.executor.slurm import SlurmPipelineExecutor

from hotloop.core.errors import EnvironmentFailed

_LAUNCH = "launch_pickled_pipeline"
_ASKING_S = 60


class SlurmExecutor(SlurmPipelineExecutor):  # type: ignore[misc]
    """Remembers every job it submitted; runs this Python unless an environment is asked for."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.submitted: list[str] = []
        super().__init__(*arguments, **options)

    @property
    def job_id(self) -> str | None:
        return self.submitted[-1] if self.submitted else None

    @job_id.setter
    def job_id(self, value: str | None) -> None:
        if value is not None:
            self.submitted.append(value)

    def launch_merge_stats(self) -> None:
        """Nothing: statistics are in the manifest, and that job would wait for ever after a failure."""

    def get_launch_file_contents(self, sbatch_args: dict[str, Any], run_script: str) -> str:
        # By module: the script of that name need not be on the PATH of the nodes.
        own = self.env_command or self.condaenv or self.venv_path
        python = "python" if own else sys.executable
        script = run_script.replace(_LAUNCH, f"{python} -m datatrove.tools.{_LAUNCH}", 1)
        return str(super().get_launch_file_contents(sbatch_args, script))


def is_queued(jobs: Sequence[str]) -> bool:
    """True while any of these jobs waits or runs. Raises `EnvironmentFailed` if Slurm does not answer."""
    named = ",".join(jobs)
    command = ["squeue", "--noheader", f"--jobs={named}", "--format=%i"]
    try:
        asked = subprocess.run(
            command, capture_output=True, text=True, timeout=_ASKING_S, check=False
        )
        why = asked.stderr.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        asked, why = None, str(error)
    if asked is not None and asked.returncode == 0:
        return bool(asked.stdout.strip())
    if "Invalid job id" in why:
        return False  # ended some time ago and forgotten
    raise EnvironmentFailed(
        f"Slurm does not say whether job {named} still runs: {why or 'no answer'}",
        do="run the same command again where squeue works",
    )
