"""What a run directory holds: every stored stage, also of a run that is damaged or was interrupted.

What cannot be read is left out and named; everything else is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from hotloop.core.ceilings import Ceilings
from hotloop.core.command_run import COMMAND_RUN_FILE, CommandRun
from hotloop.core.config import RunConfig
from hotloop.core.errors import HotloopError, UsageError
from hotloop.core.files import SESSIONS_FILE
from hotloop.core.finetune_config import FinetuneLoop
from hotloop.core.judgement import (
    DIAGNOSIS_FILE,
    MODEL_FILE,
    Diagnosis,
    Goodput,
    ModelFlops,
    RankComparison,
    Target,
    Utilization,
    Verdict,
)
from hotloop.core.ledger import LEDGER_FILE, Ledger
from hotloop.core.measurement import Environment, Measurement
from hotloop.core.memory_use import (
    FIT_FILE,
    Fit,
    MemoryProfile,
    OutOfMemory,
    read_memory_notes,
)
from hotloop.core.sessions import read_sessions
from hotloop.core.settings import Settings, load_stored
from hotloop.core.step import StepRecord, readable_steps, steps_of_ranks
from hotloop.core.task_scores import TASK_FILE, TaskScores
from hotloop.core.telemetry import TELEMETRY_FILE, TelemetrySample, read_telemetry
from hotloop.doctor.collect import other_ranks
from hotloop.doctor.directory import mapping_of
from hotloop.hardware.environment import stored_ceilings
from hotloop.judge.diagnose import diagnose
from hotloop.judge.goodput import goodput
from hotloop.judge.judged_run import runs_on_cpu
from hotloop.judge.memory import profile_of
from hotloop.judge.ranks import compare_ranks
from hotloop.judge.targets import check_targets
from hotloop.judge.utilization import steady_tokens_per_s, utilize
from hotloop.monitor.follow import is_alive, is_complete
from hotloop.optimizations.catalogue import CONFIGURED
from hotloop.runs.memory_end import command_out_of_memory, training_out_of_memory
from hotloop.runs.notes import note_command, note_fixes, note_what_is_missing, num_done
from hotloop.runs.run_files import RunFiles, State, evaluations, goes_on, measurement_of
from hotloop.runs.stored_trials import Trials, find_trials

STAGES = (
    "verdict.json",
    "quickstart.json",
    "diagnosis.json",
    "measurement.json",
    "steps.jsonl",
    "steps-0.jsonl",
    "doctor.json",
    "config.yaml",
    "trials",
    "plan.json",
)
"""Any of these makes a directory worth reporting on."""


@dataclass(frozen=True, slots=True)
class StoredRun:
    """What a run directory holds. `None` or empty: not there, or damaged."""

    directory: Path
    settings: Settings[Any] | None = None
    environment: Environment | None = None
    measurement: Measurement | None = None
    diagnosis: Diagnosis | None = None
    verdict: Verdict | None = None
    quickstart: dict[str, Any] | None = None
    evals: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    """What is missing, unfinished or otherwise good to know."""
    task: TaskScores | None = None
    """How well a fine-tuned model does on held-out examples."""
    utilization: Utilization | None = None
    goodput: Goodput | None = None
    """Where the time of all processes of a training went."""
    ranks: RankComparison | None = None
    """For a training by several processes."""
    problems: tuple[HotloopError, ...] = ()
    """What is damaged, and where."""
    state: State = "recorded"
    telemetry: tuple[TelemetrySample, ...] = ()
    memory: MemoryProfile | None = None
    """Where the memory of the process went that took most."""
    out_of_memory: OutOfMemory | None = None
    """It ended for that."""
    fit: Fit | None = None
    """What `hotloop fit` predicted of its config."""
    trials: Trials | None = None
    """The processes of a comparison."""
    trained: StoredRun | None = None
    """The quickstart's final training."""
    command_run: CommandRun | None = None
    """Somebody else's command, examined by the doctor."""
    targets: tuple[Target, ...] = ()
    ledger: Ledger | None = None
    """What came of the fixes that the doctor tried on it."""

    @property
    def run(self) -> StoredRun:
        """The run that holds the steps of the training: this one, or in the quickstart's final training."""
        return self.trained if self.trained is not None else self


def no_run_directory(directory: Path) -> UsageError:
    do = f"a run directory holds at least one of {', '.join(STAGES)}"
    return UsageError("not a run directory", where=str(directory), do=do)


def read_run(directory: Path, *, known: CommandRun | None = None) -> StoredRun:
    """Read every stored stage. Raises `UsageError` when there is nothing to read at all.

    known: of a command that has just ended, where the disk may have refused to store that.
    """
    if not directory.is_dir():
        what = "not a directory" if directory.exists() else "no such directory"
        raise UsageError(
            what, where=str(directory), do="give the run directory of a `hotloop` command"
        )
    if not any((directory / name).exists() for name in STAGES):
        raise no_run_directory(directory)

    files = RunFiles(directory)
    found = _read_training(files, known)
    # A comparison on its own leaves its verdict beside its trials.
    names = ("verdict.json", "trials/verdict.json")
    name = next((name for name in names if (directory / name).is_file()), names[0])
    verdict = files.stored(name, Verdict)
    trials, problems = find_trials(directory)
    files.problems.extend(problems)
    trained = (
        read_run(directory / "train") if (directory / "train" / "config.yaml").is_file() else None
    )
    found = replace(
        found,
        verdict=verdict,
        ledger=files.stored(LEDGER_FILE, Ledger),
        quickstart=_quickstart(files),
        trials=trials,
        trained=trained,
    )
    if trials is not None:
        files.notes.extend(_comparison_notes(found))
    if found.environment is None and trials is not None and trials.measured:
        found = replace(found, environment=trials.measured[-1].environment)
    parts = (found.settings, found.measurement, found.diagnosis, verdict, trials, found.quickstart)
    if not any(part is not None for part in parts) and not files.problems:
        files.notes.append("nothing has been recorded yet")
    if trained is not None:
        files.notes.extend(f"final training: {note}" for note in trained.notes)
        files.problems.extend(trained.problems)
    found = replace(found, notes=tuple(files.notes))
    targets = files.tried(lambda: _targets(found))
    return replace(found, targets=targets or (), problems=tuple(files.problems))


def _comparison_notes(found: StoredRun) -> list[str]:
    assert found.trials is not None
    trials, notes = found.trials, []
    if found.verdict is None:
        of = f" of up to {trials.num_planned}" if trials.num_planned else ""
        notes.append(
            f"no verdict yet: {len(trials.measured)}{of} processes were measured; the same command "
            "again continues"
        )
    if trials.num_cut_off:
        which = "process was" if trials.num_cut_off == 1 else "processes were"
        notes.append(f"{trials.num_cut_off} {which} cut off, and will be measured again")
    begun = found.quickstart is not None or found.trained is not None
    of_a_quickstart = (found.directory / "verdict.json").is_file() and (
        found.directory / "trials"
    ).is_dir()
    if of_a_quickstart and not begun:
        notes.append("the final training has not begun")
    return notes


def _quickstart(files: RunFiles) -> dict[str, Any] | None:
    path = files.directory / "quickstart.json"
    found = mapping_of(path, files.problems)
    if not isinstance(found.get("trained"), dict | None):
        files.problems.append(UsageError("damaged: `trained` is not an object", where=str(path)))
        return None
    return found or None


def _read_training(files: RunFiles, known: CommandRun | None = None) -> StoredRun:
    """The files that a training, or one measured process, writes."""
    directory, config = files.directory, files.directory / "config.yaml"
    settings = files.tried(lambda: load_stored(config)) if config.is_file() else None
    environment = files.stored("environment.json", Environment)
    command_run = known or files.stored(COMMAND_RUN_FILE, CommandRun)
    measurement = measurement_of(files, settings, environment, command_run)
    samples, damaged = read_telemetry(directory / TELEMETRY_FILE)
    files.damaged_lines(directory / TELEMETRY_FILE, damaged, "telemetry")
    evals = evaluations(files)
    state = _state(directory, settings, measurement, command_run)
    diagnosis = _diagnosis(files, measurement, command_run, settings)
    if command_run is not None:
        note_command(files, command_run, measurement, state)
        if known is None:
            note_fixes(files)
    else:
        note_what_is_missing(files, settings, measurement, samples, state)
    notes = read_memory_notes(directory)
    profile = profile_of(notes[0]) if notes else None
    fit = files.stored(FIT_FILE, Fit)
    if fit is not None and profile is not None and state != "stopped":
        fit = replace(fit, measured={**fit.measured, fit.microbatch: profile.peak_bytes})
    return StoredRun(
        directory=directory,
        settings=settings,
        environment=environment or (measurement.environment if measurement else None),
        measurement=measurement,
        diagnosis=diagnosis,
        evals=evals,
        task=files.stored(TASK_FILE, TaskScores),
        utilization=_utilization(files, settings, measurement),
        goodput=_goodput(files, measurement),
        ranks=_ranks(files, measurement, first=0 if command_run is None else None),
        state=state,
        telemetry=tuple(samples),
        memory=profile,
        fit=fit,
        out_of_memory=(
            command_out_of_memory(notes, command_run, measurement, samples)
            if command_run is not None
            else training_out_of_memory(directory, notes, settings, samples)
            if state == "stopped" and settings is not None
            else None
        ),
        command_run=command_run,
    )


def _diagnosis(
    files: RunFiles,
    measurement: Measurement | None,
    command_run: CommandRun | None,
    settings: Settings[Any] | None,
) -> Diagnosis | None:
    """What was stored at the end, or is made of the records so far."""
    if not goes_on(command_run) and (stored := files.stored(DIAGNOSIS_FILE, Diagnosis)):
        return stored
    if measurement is None or not measurement.records:
        return None
    directory = files.directory
    others = other_ranks(directory, measurement) if command_run is not None else {}
    try:
        return diagnose(measurement, others=others, unavailable=_unavailable(settings))
    except ValueError as error:
        files.problems.append(UsageError(f"damaged step records: {error}", where=str(directory)))
        return None


def _unavailable(settings: Settings[Any] | None) -> list[str]:
    """Optimizations whose key this kind of config fixes to one value, and compiling a fine-tuning, which was not seen to pay."""
    found: list[str] = []
    if settings is None:
        return found
    for name, each in CONFIGURED.items():
        section, _, key = each.key.partition(".")
        annotation = type(getattr(settings.config, section)).model_fields[key].annotation
        fixed = get_origin(annotation) is Literal and len(get_args(annotation)) == 1
        if fixed or (name == "compile" and isinstance(settings.config, FinetuneLoop)):
            found.append(name)
    return found


def _state(
    directory: Path,
    settings: Settings[Any] | None,
    measurement: Measurement | None,
    command_run: CommandRun | None,
) -> State:
    if command_run is not None and command_run.ended is None:
        return "running" if is_alive(directory, (TELEMETRY_FILE,)) else "stopped"
    if settings is None or (measurement is not None and measurement.arm != "train"):
        return "recorded"
    done = num_done(measurement.records) if measurement is not None else 0
    planned = settings.config.train.steps
    may_end_early = getattr(settings.config.eval, "patience", None) is not None
    if (done >= planned or may_end_early) and is_complete(directory, done, planned):
        return "finished" if done >= planned else "ended_early"
    return "running" if is_alive(directory, ("steps.jsonl", TELEMETRY_FILE)) else "stopped"


def _targets(found: StoredRun) -> tuple[Target, ...]:
    run, trials = found.run, found.trials
    config = None if run.settings is None else run.settings.config
    of_scripts = run.command_run is not None or (trials is not None and trials.of_scripts)
    if of_scripts or not isinstance(config, RunConfig | None):
        return ()  # these bars are for hotloop's own trainer of language models
    repeats: tuple[tuple[StepRecord, ...], ...] = ()
    if trials is not None:
        trained = (found.quickstart or {}).get("trained") or {}
        with_plain = trained.get("settings") == "plain"
        processes = trials.baseline_runs if with_plain else trials.candidate_runs
        repeats = tuple(process.records for process in processes)
    try:
        return check_targets(
            run.measurement,
            diagnosis=run.diagnosis or found.diagnosis,
            verdict=found.verdict,
            telemetry=run.telemetry,
            model=None if config is None else config.model,
            repeats=repeats,
        )
    except ValueError as error:
        raise UsageError(f"damaged step records: {error}", where=str(run.directory)) from error


def _utilization(
    files: RunFiles, settings: Settings[Any] | None, measurement: Measurement | None
) -> Utilization | None:
    """Utilization of a training run with steady steps; `None` for everything else."""
    if settings is None or measurement is None:
        return None
    if steady_tokens_per_s(measurement.records) is None:
        return None
    census = measurement.census
    threads = census.num_threads if census is not None else None
    ceilings = ceilings_of(measurement.environment, threads or settings.config.train.num_threads)
    return utilize(measurement.records, files.stored(MODEL_FILE, ModelFlops), census, ceilings)


def _goodput(files: RunFiles, measurement: Measurement | None) -> Goodput | None:
    path = files.directory / SESSIONS_FILE
    sessions, damaged = files.tried(lambda: read_sessions(path)) or ([], {})
    files.damaged_lines(path, damaged, "record of a process")
    return goodput(sessions, measurement.records if measurement is not None else ())


def _ranks(
    files: RunFiles, measurement: Measurement | None, *, first: int | None
) -> RankComparison | None:
    """first: the rank of the measurement; `None`: the lowest of those that are here."""
    if measurement is None or not measurement.records:
        return None
    paths = steps_of_ranks(files.directory)
    first_is_foreign = first is None
    first = min(paths, default=0) if first is None else first
    by_rank: dict[int, Sequence[StepRecord]] = {first: measurement.records}
    for rank, path in paths.items():
        if rank != first:
            read = partial(readable_steps, path)
            by_rank[rank], damaged = files.tried(read) or ([], {})
            files.damaged_lines(path, damaged, "step record")
    on_cpu = first_is_foreign and runs_on_cpu(measurement)
    parallel = measurement.census.parallel if measurement.census is not None else None
    in_backward = parallel == "DistributedDataParallel"
    return compare_ranks(by_rank, on_cpu=on_cpu, in_backward=in_backward)


def ceilings_of(environment: Environment, num_threads: int | str) -> Ceilings | None:
    """What such a machine was measured to do; `None` when it was not measured from here."""
    return stored_ceilings(environment, num_threads) if isinstance(num_threads, int) else None
