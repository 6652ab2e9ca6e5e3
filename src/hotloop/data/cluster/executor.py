"""Jobs done by the ranks of datatrove's executors, collected and verified as they are finished."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hotloop.core.errors import EnvironmentFailed, Interrupted, UsageError
from hotloop.core.files import write_atomically
from hotloop.data import execute
from hotloop.data.cluster.collect import collect
from hotloop.data.cluster.launch import REQUEST
from hotloop.data.cluster.request import ClusterRequest
from hotloop.data.cluster.round import Failure, Round, Work, rounds_in
from hotloop.data.cluster.watch import Launch, Watch, listed
from hotloop.data.execute import Executor, Meter
from hotloop.data.jobs import Job, Recipe, job_key
from hotloop.data.manifest import JobRecord
from hotloop.data.pool import error_of
from hotloop.data.staging import Staging

TRIES = 2
"""Jobs that the ranks did not do, or whose shards are damaged, are given to ranks once more."""
_LOOK_S = 0.2

Taken = Callable[[int, JobRecord], None]


class ClusterExecutor(Executor):
    """Does jobs by ranks on any machines that share the storage; here what is too small to be shared."""

    def __init__(self, request: ClusterRequest, **options: Any) -> None:
        """`options` are those of `Executor`."""
        super().__init__(**options)
        self._request = request

    def run(
        self,
        jobs: Sequence[Job],
        recipe: Recipe,
        staging: Staging,
        records: dict[int, JobRecord],
    ) -> None:
        """Do jobs and add their records.

        Raises what a rank raised; `Interrupted` while jobs of Slurm are, or now begin to be, at work.
        """
        keys = {job.number: job_key(job, recipe) for job in jobs}

        def taken(number: int, record: JobRecord) -> None:
            staging.write(number, record)
            records[number] = record
            del keys[number]

        before = ""
        for round_ in list(rounds_in(staging.path)):
            before = self._submitted_before(round_, staging.path, keys, taken)
        left = [job for job in jobs if job.number in keys]
        if len(left) <= 1 or sum(job.num_bytes for job in left) <= execute.HERE_BYTES:
            super().run(left, recipe, staging, records)
            return
        failures: list[Failure] = []
        damaged: list[str] = []
        log = ""
        for _ in range(TRIES):
            round_, ranks = self._begin(left, recipe, staging.path)
            if self._request.kind == "slurm":
                raise _submitted(round_, ranks, len(left), before)
            again = self._attend(round_, ranks, left, keys, staging.path, taken)
            failures += round_.failures()
            damaged += round_.damaged()
            log = round_.log_tail()
            round_.remove()
            left = [job for job in left if job.number in keys]
            if not left:
                return
            if not again:
                break
        raise _not_done([job.number for job in left], len(jobs), failures, damaged, log)

    def _begin(self, jobs: list[Job], recipe: Recipe, staging: Path) -> tuple[Round, int]:
        task = self._task(staging.resolve(), recipe, threads=1)
        work = Work(
            task=task,
            jobs=tuple((job, job_key(job, recipe)) for job in jobs),
            engine=self._chosen_engine(jobs),
            cpus=self._request.cpus,
            directory=str(Path.cwd()),
            with_parent=self._request.kind != "slurm",
        )
        ranks = min(self._request.ranks, len(jobs))
        self._on = str(self._request)
        self._processes, self._threads = max(self._processes, ranks), self._request.cpus
        round_ = Round.begin(task.directory, work)
        request = {
            "kind": self._request.kind,
            "ranks": ranks,
            "options": self._request.options,
        }
        write_atomically(round_.path / REQUEST, json.dumps(request).encode())
        return round_, ranks

    def _attend(
        self,
        round_: Round,
        ranks: int,
        jobs: list[Job],
        keys: dict[int, str],
        staging: Path,
        taken: Taken,
    ) -> bool:
        """Until every job is collected or nobody works on the rest; whether to try once more."""
        meter = Meter(self._progress, sum(job.num_bytes for job in jobs))
        watch = Watch(round_, ranks, meter)

        def counted(number: int, record: JobRecord) -> None:
            taken(number, record)
            self._done[number] = record

        meter.start()
        self._progress("starting ranks", 0, None, str(self._request))
        with Launch(round_) as launch:
            while keys:
                over = launch.ended  # before looking: what comes last must be seen
                watch.look()
                over = over or watch.settled
                collect(round_, staging, keys, self._tokenizer.vocabulary_size, counted)
                for failure in round_.failures():
                    if failure.final:
                        raise _error_of(failure)
                if over:
                    break
                time.sleep(_LOOK_S)
        self._wall_s += meter.elapsed
        # One that ended by itself before any rank began would do so again.
        return watch.began > 0 or launch.was_killed

    def _submitted_before(
        self, round_: Round, staging: Path, keys: dict[int, str], taken: Taken
    ) -> str:
        """Take what jobs of Slurm made. Says how they ended; raises `Interrupted` if they have not."""
        slurm_jobs = round_.submission()
        named = ", ".join(slurm_jobs)
        size = self._tokenizer.vocabulary_size
        try:
            given = {job.number: key for job, key in round_.work().jobs}
        except UsageError:
            given = {}  # of another version: its ranks end by themselves
        collect(round_, staging, keys, size, taken)
        asked = [number for number, key in given.items() if keys.get(number) == key]
        final = [failure for failure in round_.failures() if failure.final]
        if asked and slurm_jobs and not final:
            from hotloop.data.cluster.slurm import is_queued

            if is_queued(slurm_jobs):
                raise Interrupted(
                    f"Slurm job {named} is at work: {len(given) - len(asked)} of {len(given)} jobs "
                    "of its ranks are done",
                    do=f"run the same command again when it has ended (squeue --jobs={named})",
                )
            collect(round_, staging, keys, size, taken)
            asked = [number for number in asked if number in keys]
        why = [*round_.damaged(), *(failure.what for failure in round_.failures())]
        logs = staging / f"logs-{'-'.join(slurm_jobs)}"
        try:
            os.replace(round_.path / "logs", logs)
        except OSError:
            pass  # only for reading by people
        round_.remove()
        if final:
            raise _error_of(final[0])
        if not asked:
            return ""
        return (
            f"Slurm job {named} ended with {len(asked)} of its {len(given)} jobs not done"
            + (f" ({'; '.join(why[:3])})" if why else "")
            + f"; its logs: {logs}\n"
        )


def _submitted(round_: Round, ranks: int, jobs: int, before: str) -> Exception:
    """Submit a round to Slurm; what is to be said then."""
    with Launch(round_) as launch:
        code = launch.wait()
    if code:
        failures, log = round_.failures(), round_.log_tail()
        round_.remove()
        if failures:
            return _error_of(failures[0])
        return EnvironmentFailed("the jobs could not be submitted to Slurm", do=log or None)
    named = ", ".join(round_.submission())
    return Interrupted(
        f"{before}{jobs} jobs are given to {ranks} ranks, submitted as Slurm job {named}",
        do="run the same command again when it has ended (squeue "
        f"--jobs={named}): it verifies what they made and goes on",
    )


def _error_of(failure: Failure) -> Exception:
    if failure.kind == "crashed":
        return RuntimeError(failure.what)
    return error_of(failure.kind, failure.what, failure.where, failure.do)


def _not_done(
    left: list[int], total: int, failures: list[Failure], damaged: list[str], log: str
) -> Exception:
    if failures:
        return _error_of(failures[-1])
    found = f" ({'; '.join(damaged[:3])})" if damaged else ""
    return EnvironmentFailed(
        f"the ranks did not do {len(left)} of {total} jobs: {listed(left)}{found}",
        do=f"the executor said last:\n  {log}" if log else "run the same command again",
    )
