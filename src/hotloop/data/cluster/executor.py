"""Jobs done by the ranks of datatrove's executors, collected and verified as they are finished."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hotloop.core.errors import EnvironmentFailed, Interrupted, UsageError
from hotloop.data import execute
from hotloop.data.cluster import ClusterRequest
from hotloop.data.cluster.launch import launched
from hotloop.data.cluster.round import Beat, Round, Work, collect, is_final, rounds_in
from hotloop.data.execute import Executor, Meter
from hotloop.data.jobs import Job, Recipe, job_key
from hotloop.data.manifest import JobRecord
from hotloop.data.staging import Staging

TRIES = 2
"""Jobs that the ranks did not do, or whose shards are damaged, are given to ranks once more."""
SILENT_S = 30.0
"""A rank without a heartbeat for this long is given up; its jobs are done again."""
_LOOK_S = 0.2


class ClusterExecutor(Executor):
    """Does jobs by ranks on any machines that share the storage; here what is too small to be shared."""

    def __init__(self, request: ClusterRequest, **options: Any) -> None:
        """`options` are those of `Executor`."""
        super().__init__(**options)
        self._request = request

    def run(
        self, jobs: Sequence[Job], recipe: Recipe, staging: Staging, records: dict[int, JobRecord]
    ) -> None:
        """Do jobs and add their records.

        Raises what a rank raised; `Interrupted` while jobs of Slurm are, or now begin to be, at work.
        """
        keys = {job.number: job_key(job, recipe) for job in jobs}
        before = ""
        for round_ in rounds_in(staging.path):
            before = self._take_submitted(round_, keys, records)
        left = [job for job in jobs if job.number in keys]
        if len(left) <= 1 or sum(job.num_bytes for job in left) <= execute.HERE_BYTES:
            super().run(left, recipe, staging, records)
            return
        failures: list[Exception] = []
        log = ""
        for _ in range(TRIES):
            round_, request = self._begin(left, recipe, staging.path)
            if request.kind == "slurm":
                raise _submitted(round_, request, len(left), before)
            again = self._attend(round_, request, left, keys, records)
            failures += round_.failures()
            log = round_.log_tail()
            round_.remove()
            left = [job for job in left if job.number in keys]
            if not left:
                return
            if not again:
                break
        raise _not_done([job.number for job in left], len(jobs), failures, log)

    def _begin(
        self, jobs: list[Job], recipe: Recipe, staging: Path
    ) -> tuple[Round, ClusterRequest]:
        """A round for these jobs, and the request with the ranks that they are enough for."""
        task = self._task(staging.resolve(), recipe, threads=1)
        work = Work(
            task=task,
            jobs=tuple((job, job_key(job, recipe)) for job in jobs),
            engine=self._chosen_engine(jobs, recipe),
            cpus=self._request.cpus,
            directory=str(Path.cwd()),
            with_parent=self._request.kind != "slurm",
        )
        ranks = min(self._request.ranks, len(jobs))
        self._on = str(self._request)
        self._processes, self._threads = max(self._processes, ranks), self._request.cpus
        return Round.begin(task.directory, work), replace(self._request, ranks=ranks)

    def _attend(
        self,
        round_: Round,
        request: ClusterRequest,
        jobs: list[Job],
        keys: dict[int, str],
        records: dict[int, JobRecord],
    ) -> bool:
        """Until every job is collected or nobody works on the rest; whether to try once more."""
        planned = {job.number: job.num_bytes for job in jobs}
        heard: dict[int, tuple[Beat, float]] = {}
        meter = Meter(self._progress, sum(planned.values()))
        self._progress("starting ranks", 0, None, str(self._request))
        with launched(round_, request) as process:
            while keys:
                # Before looking: what comes last must be seen.
                over = process.poll() is not None or _settled(round_, request.ranks, heard)
                for number, record in self._collected(round_, keys, records).items():
                    self._done[number] = record
                    text = sum(source.bytes for _, source in record.sources)
                    meter(planned[number], text, sum(shard.tokens for shard in record.shards))
                for failure in round_.failures():
                    if is_final(failure):
                        raise failure
                if over:
                    break
                time.sleep(_LOOK_S)
        self._wall_s += meter.elapsed
        # One that ended by itself before any rank began would do so again.
        return bool(round_.beats()) or process.returncode < 0

    def _collected(
        self, round_: Round, keys: dict[int, str], records: dict[int, JobRecord]
    ) -> dict[int, JobRecord]:
        """The records of jobs that are done now, moved from `keys` to `records`."""
        found = collect(round_, keys, self._tokenizer.vocabulary_size)
        records.update(found)
        for number in found:
            del keys[number]
        return found

    def _take_submitted(
        self, round_: Round, keys: dict[int, str], records: dict[int, JobRecord]
    ) -> str:
        """Take what jobs of Slurm made; how they ended, in words. Raises `Interrupted` if they have not."""
        slurm_jobs = round_.submission()
        named = ", ".join(slurm_jobs)
        try:
            given = {job.number: key for job, key in round_.work().jobs}
        except UsageError:
            given = {}  # of another version: its ranks end by themselves
        self._collected(round_, keys, records)
        asked = [number for number, key in given.items() if keys.get(number) == key]
        final = list(filter(is_final, round_.failures()))
        if asked and slurm_jobs and not final:
            from hotloop.data.cluster.rank import is_queued

            if is_queued(slurm_jobs):
                raise Interrupted(
                    f"Slurm job {named} is at work: {len(given) - len(asked)} of {len(given)} jobs "
                    "of its ranks are done",
                    do=f"run the same command again when it has ended (squeue --jobs={named})",
                )
            self._collected(round_, keys, records)
            asked = [number for number in asked if number in keys]
        why = [str(failure.args[0]) for failure in round_.failures()]
        logs = round_.path.with_name(f"logs-{'-'.join(slurm_jobs)}")
        try:
            os.replace(round_.path / "logs", logs)
        except OSError:
            pass  # only for reading by people
        round_.remove()
        if final:
            raise final[0]
        if not asked:
            return ""
        return (
            f"Slurm job {named} ended with {len(asked)} of its {len(given)} jobs not done"
            + (f" ({'; '.join(why[:3])})" if why else "")
            + f"; its logs: {logs}\n"
        )


def _settled(round_: Round, ranks: int, heard: dict[int, tuple[Beat, float]]) -> bool:
    """True when no rank does anything any more, and none is still to begin.

    datatrove's pools wait for ever for a process that was killed. `heard` holds each rank's last beat
    and when it was first seen here, in seconds.
    """
    now = time.monotonic()
    for rank, beat in round_.beats().items():
        if rank not in heard or heard[rank][0] != beat:
            heard[rank] = (beat, now)
    return len(heard) == ranks and all(
        beat.ended or now - at > SILENT_S for beat, at in heard.values()
    )


def _submitted(round_: Round, request: ClusterRequest, jobs: int, before: str) -> Exception:
    """Submit a round to Slurm; what to raise then."""
    with launched(round_, request) as process:
        code = process.wait()
    if code:
        failures, log = round_.failures(), round_.log_tail()
        round_.remove()
        if failures:
            return failures[0]
        return EnvironmentFailed("the jobs could not be submitted to Slurm", do=log or None)
    named = ", ".join(round_.submission())
    return Interrupted(
        f"{before}{jobs} jobs are given to {request.ranks} ranks, submitted as Slurm job {named}",
        do="run the same command again when it has ended (squeue "
        f"--jobs={named}): it verifies what they made and continues",
    )


def _not_done(left: list[int], total: int, failures: list[Exception], log: str) -> Exception:
    if failures:
        return failures[-1]
    listed = ", ".join(map(str, left[:5])) + (", ..." if len(left) > 5 else "")
    return EnvironmentFailed(
        f"the ranks did not do {len(left)} of {total} jobs: {listed}",
        do=f"the executor reported last:\n  {log}" if log else "run the same command again",
    )
