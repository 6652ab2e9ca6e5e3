"""What a run directory holds: every stored stage, also of a run that was interrupted."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop.core.errors import UsageError

if TYPE_CHECKING:
    from hotloop.core.ceilings import Ceilings
    from hotloop.core.judgement import Diagnosis, ModelFlops, Utilization, Verdict
    from hotloop.core.measurement import Environment, Measurement
    from hotloop.core.settings import Settings

STAGES = (
    "verdict.json",
    "quickstart.json",
    "diagnosis.json",
    "measurement.json",
    "steps.jsonl",
    "steps-0.jsonl",
)
"""Files, any of which makes a directory worth reporting on."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a run directory holds. `None` or empty: not there."""

    directory: Path
    settings: Settings | None
    environment: Environment | None
    measurement: Measurement | None
    diagnosis: Diagnosis | None
    verdict: Verdict | None
    quickstart: dict[str, Any] | None
    evals: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]
    utilization: Utilization | None = None


def read_run(directory: Path) -> Found:
    """Read every stored stage. Raises `UsageError` for nothing there, or for the first damage."""
    from hotloop.core.files import read_json
    from hotloop.core.judgement import Diagnosis, Verdict
    from hotloop.core.measurement import Environment
    from hotloop.core.settings import load_settings

    if not directory.is_dir():
        what = "not a directory" if directory.exists() else "no such directory"
        raise UsageError(
            what, where=str(directory), do="give the run directory of a `hotloop` command"
        )
    if not any((directory / name).is_file() for name in STAGES):
        raise UsageError(
            "nothing to report on yet"
            if (directory / "config.yaml").is_file()
            else "not a run directory",
            where=str(directory),
            do=f"a run directory holds at least one of {', '.join(STAGES)}",
        )

    def stored(name: str, kind: type[Any]) -> Any:
        path = directory / name
        return read_json(path, kind) if path.is_file() else None

    config = directory / "config.yaml"
    settings = load_settings(config) if config.is_file() else None
    environment: Environment | None = stored("environment.json", Environment)
    measurement = _measurement(directory, settings, environment)
    verdict = stored("verdict.json", Verdict)
    diagnosis = stored("diagnosis.json", Diagnosis)
    if diagnosis is None and measurement is not None and measurement.records:
        from hotloop.judge.diagnose import diagnose

        try:
            diagnosis = diagnose(measurement)
        except ValueError as error:
            raise UsageError(f"damaged step records: {error}", where=str(directory)) from error
    return Found(
        directory=directory,
        settings=settings,
        environment=environment or (measurement.environment if measurement else None),
        measurement=measurement,
        diagnosis=diagnosis,
        verdict=verdict,
        quickstart=_mapping(directory / "quickstart.json"),
        evals=_lines(directory / "evals.jsonl"),
        notes=_notes(settings, measurement),
        utilization=_utilization(directory, settings, measurement),
    )


def _utilization(
    directory: Path, settings: Settings | None, measurement: Measurement | None
) -> Utilization | None:
    """Of a training run with steady steps; `None` for everything else."""
    from hotloop.judge.utilization import steady_tokens_per_s, utilize

    if settings is None or measurement is None:
        return None
    if steady_tokens_per_s(measurement.records) is None:
        return None
    census = measurement.census
    threads = census.num_threads if census is not None else None
    ceilings = ceilings_of(measurement.environment, threads or settings.config.train.num_threads)
    return utilize(measurement.records, model_flops(directory, settings), census, ceilings)


def ceilings_of(environment: Environment, num_threads: int | str) -> Ceilings | None:
    """What such a machine was measured to do; `None` when it was not measured from here."""
    from hotloop.hardware.ceilings import stored_ceilings

    return stored_ceilings(environment, num_threads) if isinstance(num_threads, int) else None


def model_flops(directory: Path, settings: Settings) -> ModelFlops | None:
    """The model's arithmetic per token, from its settings; `None` when its vocabulary is not known.

    Loads torch.
    """
    from dataclasses import replace

    from hotloop.core.judgement import ModelFlops
    from hotloop.data.tokenizer import Tokenizer
    from hotloop.models.shape import flops_per_token
    from hotloop.train.run import decoder_shape

    config = settings.config
    try:
        vocabulary = (
            config.model.vocabulary or Tokenizer.load(directory / "tokenizer.json").vocabulary_size
        )
        shape = decoder_shape(config, vocabulary)
    except UsageError:
        return None
    # What does not grow with the context is matrix products with weights.
    matmul = flops_per_token(replace(shape, context=0))
    return ModelFlops(matmul=matmul, attention=flops_per_token(shape) - matmul)


def _measurement(
    directory: Path, settings: Settings | None, environment: Environment | None
) -> Measurement | None:
    """The stored measurement, or one built from what a training run writes as it goes."""
    from hotloop.core.census import Census
    from hotloop.core.files import read_json
    from hotloop.core.measurement import Measurement, Plan
    from hotloop.core.step import read_steps

    path = directory / "measurement.json"
    if path.is_file():
        return read_json(path, Measurement)
    steps = next(
        (p for n in ("steps.jsonl", "steps-0.jsonl") if (p := directory / n).is_file()), None
    )
    if steps is None:
        return None
    records = tuple(read_steps(steps))
    census = directory / "census.json"
    warmup = sum("warmup" in record.tags for record in records)
    planned = settings.config.train.steps if settings else len(records)
    return Measurement(
        arm="train",
        command=(),
        plan=Plan(warmup_steps=warmup, steps=max(planned - warmup, 0), timeout_s=0.0),
        environment=environment or _unknown_environment(),
        records=records,
        census=read_json(census, Census) if census.is_file() else None,
    )


def _unknown_environment() -> Environment:
    from hotloop.core.measurement import Environment

    return Environment(
        device="not recorded",
        num_devices=1,
        cpu_model=None,
        num_cpus=1,
        cpu_quota=1.0,
        memory_limit_bytes=None,
        platform="not recorded",
        kernel=None,
        python="not recorded",
        torch=None,
        cuda=None,
        driver=None,
        hotloop="not recorded",
    )


def _mapping(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"not valid JSON: {error}", where=str(path)) from error
    if not isinstance(value, dict):
        raise UsageError("damaged: not an object", where=str(path))
    return value


def _lines(path: Path) -> tuple[dict[str, Any], ...]:
    """`evals.jsonl`. A torn last line was being written when the run ended."""
    if not path.is_file():
        return ()
    evals = []
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
            evals.append({"step": int(value["step"]), "loss": float(value["loss"]), **value})
        except (ValueError, TypeError, KeyError) as error:
            if number == len(lines) and not line.endswith(b"\n"):
                break
            raise UsageError(
                f"damaged evaluation: {error}", where=f"{path}:{number}", do="delete that line"
            ) from error
    return tuple(evals)


def _notes(settings: Settings | None, measurement: Measurement | None) -> tuple[str, ...]:
    notes: list[str] = []
    if settings is not None and measurement is not None and measurement.arm == "train":
        done = 1 + max((record.step for record in measurement.records), default=-1)
        planned = settings.config.train.steps
        if done < planned:
            notes.append(
                f"unfinished: {done} of {planned} steps; run the same `hotloop train` again to continue"
            )
    if measurement is not None:
        if not measurement.records and not measurement.samples:
            notes.append("no step has been recorded yet")
        if any(r.loss is not None and not math.isfinite(r.loss) for r in measurement.records):
            notes.append("a loss was not finite: the run diverged")
        if measurement.census is not None:
            notes.extend(measurement.census.notes)
    return tuple(notes)
