"""`--on KIND:RANKS` and its options: an executor of datatrove."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_type_hints

from pydantic import TypeAdapter, ValidationError

from hotloop.core.errors import EnvironmentFailed, UsageError, not_installed
from hotloop.hardware.limits import cpu_quota

Kind = Literal["local", "ray", "slurm"]

_EXECUTORS: dict[Kind, tuple[str, str]] = {
    "local": ("datatrove.executor.local", "LocalPipelineExecutor"),
    "ray": ("datatrove.executor.ray", "RayPipelineExecutor"),
    "slurm": ("datatrove.executor.slurm", "SlurmPipelineExecutor"),
}
_OURS = {
    "pipeline": "it is what hotloop runs",
    "tasks": "it is the number after --on",
    "logging_dir": "logs are kept beside the shards",
    "skip_completed": "the records of the jobs say what is done, not datatrove's markers",
    "depends": "there is nothing that could come before",
    "job_id_retriever": "job_id_position does the same",
    "nodes_per_task": "every node would do the same work",
    "local_tasks": "it would leave work to nobody",
    "local_rank_offset": "it would leave work to nobody",
}


@dataclass(frozen=True, slots=True)
class ClusterRequest:
    """`--on KIND:RANKS` with its options, checked."""

    kind: Kind
    ranks: int
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of datatrove's executor."""

    @property
    def cpus(self) -> int:
        """CPUs of one rank."""
        return int(self.options.get("cpus_per_task", 1))

    def __str__(self) -> str:
        return f"{self.kind}:{self.ranks}"


def parse_request(on: str, options: Sequence[str] = ()) -> ClusterRequest:
    """`local`, `local:8`, `ray:8`, `slurm:64`, and `KEY=VALUE`s. Raises `UsageError` for any other,
    and `EnvironmentFailed` where this machine cannot submit to Slurm.
    """
    name, colon, count = on.partition(":")
    if name not in _EXECUTORS:
        raise UsageError(
            f"--on {on}: no such executor", do="choose local:RANKS, ray:RANKS or slurm:RANKS"
        )
    kind = name
    if not colon and kind == "local":
        count = str(max(int(cpu_quota()), 1))
    if not (count.isascii() and count.isdigit() and 0 < int(count) <= 100_000):
        raise UsageError(f"--on {on}: no number of ranks", do=f"give one, as in {kind}:8")
    parameters = inspect.signature(executor_class(kind)).parameters
    chosen: dict[str, Any] = {}
    for option in options:
        key, value = _option(kind, option, parameters)
        if key in chosen:
            raise UsageError(f"--on-option {key} is given twice", do="give it once")
        chosen[key] = value
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty and name not in _OURS and name not in chosen
    ]
    if missing:
        do = f"give {' '.join(f'--on-option {name}=VALUE' for name in missing)}"
        raise UsageError(f"--on {kind} needs {' and '.join(missing)}", do=do)
    if kind == "slurm" and shutil.which("sbatch") is None:
        raise EnvironmentFailed(
            "sbatch is not on this machine", do="run it where jobs are submitted to Slurm"
        )
    return ClusterRequest(kind, int(count), chosen)


def executor_class(kind: Kind) -> Any:
    """datatrove's class. Raises `UsageError` where it, or ray, is not installed."""
    extra = "ray" if kind == "ray" else "cluster"
    for package in ("datatrove", "ray") if kind == "ray" else ("datatrove",):
        if importlib.util.find_spec(package) is None:
            raise not_installed(extra, f"--on {kind} needs the package {package}")
    module, name = _EXECUTORS[kind]
    return getattr(importlib.import_module(module), name)


def _option(kind: Kind, option: str, parameters: Any) -> tuple[str, Any]:
    key, equals, text = option.partition("=")
    if not equals:
        raise UsageError(f"--on-option {option}: no value", do="write KEY=VALUE")
    if key in _OURS and key in parameters:
        raise UsageError(f"--on-option {key} cannot be set: {_OURS[key]}", do="leave it out")
    if key not in parameters:
        names = sorted(name for name in parameters if name not in _OURS)
        close = difflib.get_close_matches(key, names, 1)
        do = f"did you mean `{close[0]}`?" if close else f"it has {', '.join(names)}"
        raise UsageError(f"--on {kind} has no option `{key}`", do=do)
    hints = get_type_hints(executor_class(kind).__init__)
    return key, _value(key, text, hints[key], parameters[key].default)


def _value(key: str, text: str, hint: Any, default: Any) -> Any:
    """The text as the type that the executor's signature names."""
    if not text and (default is None or "None" in str(hint)):
        return None
    try:
        if "tuple" in str(hint):
            return tuple(text.split(","))
        kind: TypeAdapter[Any] = TypeAdapter(hint)
        value = kind.validate_json(text) if "dict" in str(hint) else kind.validate_strings(text)
        if key in ("cpus_per_task", "tasks_per_job") and value < 1:
            raise ValueError("it is less than 1")
    except ValueError as error:
        why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        do = None if default is inspect.Parameter.empty else f"{default!r} is its default"
        raise UsageError(f"--on-option {key}={text}: {why}", do=do) from error
    return value
