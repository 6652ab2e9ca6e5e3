"""The doctor without treatment: run somebody's command once, watch its steps, say what holds them back."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from hotloop import __version__
from hotloop.core.child import DOCTOR
from hotloop.core.command_run import COMMAND_RUN_FILE, CommandRun, Ended, Killed
from hotloop.core.errors import EnvironmentFailed, ExitCode, UsageError
from hotloop.core.files import read_json, storage_error, write_json
from hotloop.core.judgement import DIAGNOSIS_FILE, Diagnosis
from hotloop.core.measurement import Environment, Measurement
from hotloop.core.memory_use import read_memory_notes
from hotloop.core.progress import Progress, silent
from hotloop.core.step import StepRecord, steps_of_ranks
from hotloop.core.telemetry import TELEMETRY_FILE, read_telemetry
from hotloop.core.untrusted import parse_object
from hotloop.doctor.collect import (
    collect,
    num_under_way,
    other_ranks,
    refuse_unseen,
)
from hotloop.doctor.command import (
    attached_environment,
    refuse_unexaminable,
    script_name,
)
from hotloop.doctor.directory import (
    begun_run,
    make_run_directory,
    mapping_of,
    set_interrupted_aside,
)
from hotloop.hardware.environment import read_host, runs_on
from hotloop.hardware.limits import memory_kills
from hotloop.hardware.telemetry import telemetry
from hotloop.judge.diagnose import diagnose
from hotloop.judge.memory import killed_for_memory, used_fraction
from hotloop.trial.attached import Attached, Heard, listening, run_attached
from hotloop.trial.measure import MEASUREMENT_FILE, load_measurement, store_measurement

ENOUGH_S = 60.0
"""Seconds of counted steps after which a command is ended: by then shares and findings change no more."""
ENOUGH_STEPS = 5
"""Counted steps below which shares of time say nothing: one disturbance would decide."""


@dataclass(frozen=True, slots=True)
class Examined:
    """What came of it; everything else is in the directory."""

    directory: Path
    run: CommandRun
    diagnosis: Diagnosis
    num_steps: int
    """Steps under way: those that the breakdown is made of."""
    refused: EnvironmentFailed | None = None
    """The disk did not take what came of it; what is here is all the same."""


def examine(
    command: Sequence[str],
    *,
    out: Path | None = None,
    steps: int | None = None,
    seconds: float | None = ENOUGH_S,
    at_least: int | None = None,
    whole: str = "--to-end runs it whole",
    before: Callable[[Path], None] = lambda directory: None,
    progress: Progress = silent,
    say: Callable[[str], None] = lambda text: None,
    warn: Callable[[str], None] = lambda text: None,
) -> Examined:
    """Run `command` here and now, and judge its steps.

    out: a new directory, or one that holds this command interrupted, which is renamed. steps: end the command
    after so many counted steps, without its own ending; else seconds: after so many of counted steps (`None`: never), and `at_least` so many steps; whole: what to do about that.
    before: called with the run directory just before the command starts; what it raises ends this.
    say: told before the command starts, and when a user waits for it; warn: what was not recorded.
    Raises `UsageError` for a command that cannot be run or seen into, or that removes the directory, `EnvironmentFailed` when the
    disk refuses, or where the probe cannot start: the command is ended at its import of torch then. A command that fails or is interrupted is an answer, in `run.ended`.
    """
    refuse_unexaminable(command, os.environ)
    seconds = None if steps is not None else seconds
    if out is not None and (aside := set_interrupted_aside(out, command)) is not None:
        say(f"the interrupted run is kept in {shown(aside)}")
    directory = make_run_directory(out, script_name(command))
    try:
        before(directory)
        machine = read_host()
        run = CommandRun(
            command=tuple(command),
            workdir=str(Path.cwd()),
            started_at=time.time(),
            hotloop=__version__,
            steps=steps,
            seconds=seconds,
            variables=machine.variables,
            runs_on=runs_on(command[0]),
        )
        write_json(directory / "environment.json", machine)
        write_json(directory / COMMAND_RUN_FILE, run)
        env = attached_environment(
            os.environ, directory, steps=steps, seconds=seconds, at_least=at_least
        )
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    with listening() as heard:
        bound = "" if seconds is None else f"; it is ended after {seconds:.3g} s of its steps"
        bound += f", {whole}" if bound and whole else ""
        say(f"what it does is recorded in {shown(directory)}{bound}")
        input_at, kills = _input_position(), memory_kills(None)
        attached = _run(run, env, directory, heard, progress, say, warn)
        if not directory.is_dir():
            raise UsageError(
                "the directory that its steps are recorded in was removed while the command ran",
                where=str(directory),
                do="name one with --out that the command does not remove",
            )
        if attached.was_ended and not heard.signals and not _was_stopped(run, directory):
            full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise storage_error(full, directory, "record the steps, and the command was ended")
        run = _ended(run, attached, heard, directory)
        run = replace(run, reads_input=_input_position() > input_at)
        if run.ended == "failed":
            killed = _killed(directory, kills)
            # Without a kill of its own it failed for another reason, unless the kernel counts one.
            if run.returncode in (-9, 137) or killed == "yes":
                run = replace(run, killed_for_memory=killed)
        if not run.left_running:
            _tidy(directory)
        refuse_unseen(directory)
        return judged(directory, run, machine, warn)


def judged(
    directory: Path, run: CommandRun, machine: Environment, warn: Callable[[str], None]
) -> Examined:
    """What the steps recorded in `directory` show, which is stored beside them. Raises `UsageError` for damaged records."""
    collected = collect(directory, run, machine)
    measurement = collected.measurement
    for problem in collected.problems:
        warn(str(problem))
    diagnosis = _judged(measurement, directory)
    refused = _stored(directory, run, measurement, diagnosis)
    return Examined(directory, run, diagnosis, num_under_way(measurement), refused)


def continued(
    out: Path | None, command: Sequence[str], *, steps: int | None, to_end: bool = False
) -> Examined | None:
    """What an earlier call found in `out`, whose fixes may have been tried or not; `None`: nothing.

    Raises `UsageError` where `out` holds such a run of something else, or a damaged one.
    """
    run = None if out is None else begun_run(out, command, steps=steps, to_end=to_end)
    if out is None or run is None:
        return None
    measurement = load_measurement(out / MEASUREMENT_FILE)
    diagnosis = read_json(out / DIAGNOSIS_FILE, Diagnosis)
    return Examined(out.resolve(), run, diagnosis, num_under_way(measurement))


def _stored(
    directory: Path, run: CommandRun, measurement: Measurement, diagnosis: Diagnosis
) -> EnvironmentFailed | None:
    """Write every stage; what the disk refuses is returned, so that the answer is not lost with it."""
    try:
        write_json(directory / COMMAND_RUN_FILE, run)
        write_json(directory / DIAGNOSIS_FILE, diagnosis)
        write_json(directory / "environment.json", measurement.environment)
        store_measurement(directory / MEASUREMENT_FILE, measurement)
    except EnvironmentFailed as error:
        return error
    return None


def _judged(measurement: Measurement, directory: Path) -> Diagnosis:
    try:
        return diagnose(measurement, others=other_ranks(directory, measurement))
    except ValueError as error:
        do = "what was recorded is kept; run the command again"
        raise UsageError(f"damaged step records: {error}", where=str(directory), do=do) from error


def exit_code(examined: Examined, *, level: float | None) -> ExitCode:
    """The exit code of the `hotloop doctor` that ends with this."""
    ended = examined.run.ended
    if ended == "interrupted":
        return ExitCode.RESUMABLE
    if ended == "failed":
        return ExitCode.COMMAND_FAILED
    if examined.num_steps < ENOUGH_STEPS:
        return ExitCode.INCONCLUSIVE
    found = any(
        level is not None and not finding.gain_is_loose and finding.gain_at_most >= level
        for finding in examined.diagnosis.findings
    )
    return ExitCode.FOUND if found else ExitCode.FINE


def _run(
    run: CommandRun,
    env: dict[str, str],
    directory: Path,
    heard: Heard,
    progress: Progress,
    say: Callable[[str], None],
    warn: Callable[[str], None],
) -> Attached:
    live = Live(directory, progress)
    try:
        with ExitStack() as while_it_runs:

            def started(process: int) -> None:
                while_it_runs.enter_context(telemetry(directory, below=process, warn=warn))

            return run_attached(
                run.command,
                env=env,
                token=(DOCTOR, str(directory)),
                heard=heard,
                has_enough=lambda: (
                    _was_stopped(run, directory) or _sees_nothing_more(run, directory)
                ),
                started=started,
                tick=live.tick,
                say=say,
            )
    except UsageError:
        shutil.rmtree(directory, ignore_errors=True)  # it never started: nothing was recorded
        raise
    except OSError as error:
        raise storage_error(error, directory, "record a command") from error


def _ended(run: CommandRun, attached: Attached, heard: Heard, directory: Path) -> CommandRun:
    ended: Ended = "failed" if attached.returncode else "by_itself"
    if heard.signals:
        ended = "interrupted"
    elif _was_stopped(run, directory):
        ended = "enough_steps"
    ours = attached.was_ended or ended == "enough_steps"
    return replace(
        run,
        ended=ended,
        returncode=None if ours else attached.returncode,
        wall_s=attached.wall_s,
        left_running=attached.left_running,
    )


def _killed(directory: Path, before: Mapping[str, int]) -> Killed | None:
    """Whether the kernel killed a process of the command for memory. before: its counts when that began."""
    samples, _ = read_telemetry(directory / TELEMETRY_FILE)
    note = next(iter(read_memory_notes(directory)), None)
    if note is None:
        return killed_for_memory(before, memory_kills(None), None)
    now = memory_kills(None if note.group is None else Path(note.group))
    return killed_for_memory(note.kills, now, used_fraction(note, samples))


def _input_position() -> int:
    """How far standard input was read, in bytes from where it was or will be at; 0 for a terminal, which does not tell."""
    with suppress(OSError, ValueError):
        mode = os.fstat(0).st_mode
        if stat.S_ISREG(mode):
            return os.lseek(0, 0, os.SEEK_CUR)
        if stat.S_ISFIFO(mode):
            unread = fcntl.ioctl(0, termios.FIONREAD, bytes(4))
            return -int.from_bytes(unread, sys.byteorder)
    return 0


def _tidy(directory: Path) -> None:
    """Remove what only running processes need."""
    shutil.rmtree(directory / "path", ignore_errors=True)
    for path in directory.glob("claim-*"):
        # The only sign of steps where nothing else was written before the end.
        if (directory / f"clock-{path.name.removeprefix('claim-')}.json").exists():
            path.unlink(missing_ok=True)


def _was_stopped(run: CommandRun, directory: Path) -> bool:
    """Whether a process of the command has made its steps and ended for it."""
    if run.steps is None and run.seconds is None:
        return False
    return any(mapping_of(path).get("stopped") for path in directory.glob("clock-*.json"))


def _sees_nothing_more(run: CommandRun, directory: Path) -> bool:
    """Whether the disk is full, or the directory has gone, of a command that is ended early: its steps are no longer recorded,
    and it would train on."""
    whole = run.steps is None and run.seconds is None
    try:
        return not whole and shutil.disk_usage(directory).free == 0
    except OSError:
        return True


def shown(directory: Path) -> Path:
    """Relative where that is shorter."""
    try:
        return directory.relative_to(Path.cwd().resolve())
    except ValueError:
        return directory


TAIL_BYTES = 16_384
EVERY_S = 2.0


class Live:
    """Tells a `Progress` every two seconds; costs a read of a few kilobytes."""

    def __init__(self, directory: Path, progress: Progress) -> None:
        self._directory = directory
        self._progress = progress
        self._told_at = 0.0

    def tick(self, seconds: float) -> None:
        """Called while the command runs. What cannot be read is not told."""
        if seconds - self._told_at < EVERY_S:
            return
        self._told_at = seconds
        try:
            files = steps_of_ranks(self._directory)
            records = _newest(files[min(files)]) if files else []
        except OSError:
            return
        if not records:
            self._progress("no step yet", 0, None, f"{seconds:.0f} s")
            return
        # No share: warm-up and profiled steps are not among those that `--steps` counts.
        done = records[-1].step + 1
        pace = f"{1000 * median(record.wall_s for record in records):.3g} ms a step"
        self._progress(f"step {done:,}", done, None, pace)


def _newest(path: Path) -> list[StepRecord]:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - TAIL_BYTES))
        lines = file.read().split(b"\n")
    found = []
    for line in lines[1 if size > TAIL_BYTES else 0 : -1]:
        with suppress(ValueError, TypeError):
            found.append(StepRecord.from_mapping(parse_object(line)))
    return found
