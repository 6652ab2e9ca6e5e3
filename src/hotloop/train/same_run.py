"""What must be the same: of a run that is continued, and of the processes that train together."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch

from hotloop.checkpoint.remote import OTHER_PLACE, Remote
from hotloop.core.config import LoopConfig, RunConfig
from hotloop.core.errors import UsageError
from hotloop.core.files import read_json
from hotloop.core.measurement import Environment
from hotloop.core.module_config import ModuleConfig
from hotloop.core.ranks import Ranks
from hotloop.core.settings import Settings, load_settings
from hotloop.core.untrusted import parse_object, read_bytes
from hotloop.optimizations.catalogue import CONFIGURED

C = TypeVar("C", bound=LoopConfig)

_OF_THE_MACHINE = (
    "train.device",  # what kind it is counts, however it is named
    "train.num_threads",
    "train.host_memory",
    "train.thread_binding",
    "data.source",
    "data.reading",
    "data.end_of_text",
    "data.prepared",
    "data.mix",
    "data.prefetch",
)
"""Settings of a machine and its disks. The data's content is compared by its own fingerprint."""

_FREE_KEYS = (
    *_OF_THE_MACHINE,
    "name",
    "eval.every_steps",
    "eval.every_epochs",
    "eval.metric",
    "eval.patience",
    "eval.export",
    "checkpoint.",
    "logging.",
    "stability.",
    "data.verify",
    "train.compile",
    "train.activation_checkpointing",
    "train.steps",  # looked at once the checkpoint is known
    "train.epochs",  # they are the steps of a fine-tuning
    "model.lora.merge",  # of the end
    "train.rank_timeout_s",
    "train.hang_timeout_s",
)
"""Keys that may differ when a run is continued: none of them changes what was learned until then."""


def claim_place(remote: Remote, config: LoopConfig, fingerprint: str, device: torch.device) -> None:
    """Raises `UsageError` when the place of `checkpoint.upload` is another run's."""
    own = {"config": config.model_dump(mode="json"), "data": fingerprint, "device": device.type}
    try:
        stored = parse_object(remote.claim(json.dumps(own, indent=1).encode()))
        theirs = type(config).model_validate(stored["config"])
    except UsageError:
        raise
    except (KeyError, ValueError) as error:
        what = f"its run.json is damaged or of another version of hotloop ({type(error).__name__})"
        raise UsageError(what, where=remote.url, do=OTHER_PLACE) from error
    here, there = {**config.flat(), **own}, {**theirs.flat(), **stored}
    unlike = (*differing_keys(theirs, config), *(k for k in ("data", "device") if here[k] != there.get(k)))  # fmt: skip
    for key in unlike:
        what = f"another run lies there: with `{key}: {there.get(key)}`, not {here.get(key)}"
        raise UsageError(what, where=remote.url, do=f"{OTHER_PLACE}, or the settings of that run")


def differing_keys(
    theirs: LoopConfig, config: LoopConfig, *, free: tuple[str, ...] = ()
) -> list[str]:
    """Keys by which a run would be another one than `theirs`; those that begin with `free` may differ as well."""
    # A batch of buckets is one microbatch: another size of it is another order.
    bucketed = _bucketed(theirs) and _bucketed(config)
    if theirs.sequences_per_step == config.sequences_per_step and not bucketed:
        free += ("train.microbatch", "train.grad_accum_steps")  # the same step, summed otherwise
    before, now = _stored(theirs), config.flat()
    return [
        key
        for key in now | before  # either may have weights of classes that the other lacks
        if now.get(key) != before.get(key) and not key.startswith((*_FREE_KEYS, *free))
    ]


def _bucketed(config: LoopConfig) -> bool:
    return isinstance(config, RunConfig) and config.data.layout == "bucket"


def _stored(config: LoopConfig) -> dict[str, Any]:
    """`auto` is resolved before a run is stored: where it stands, the run is older than that technique."""
    off = {technique.key: technique.off for technique in CONFIGURED.values()}
    return {k: off.get(k, v) if v == "auto" else v for k, v in config.flat().items()}


def as_it_began(settings: Settings[C], directory: Path) -> Settings[C]:
    """With what `auto` became in the run that `directory` holds, where it must stay the same: another machine would choose otherwise."""
    stored = directory / "config.yaml"
    if not stored.is_file():
        return settings
    own, theirs = settings.config.flat(), load_settings(stored, kind=type(settings.config))
    before = _stored(theirs.config)
    for key in (each.key for each in CONFIGURED.values()):
        if own.get(key) == "auto" and key in before and not key.startswith(_FREE_KEYS):
            settings = settings.with_values({key: before[key]}, origin=theirs.origin(key))
    return settings


def refuse_another_run(
    directory: Path, config: LoopConfig, fingerprint: str, device: torch.device
) -> None:
    """Raises `UsageError` when `directory` holds a run of other settings, of other data or on other hardware.

    Also for what no run writes.
    """
    for path in directory.iterdir():
        if path.exists() and not path.is_file() and not path.is_dir():  # a pipe would be waited for
            raise UsageError("not a regular file", where=str(path), do="remove it")

    def other_run(what: str, instead: str) -> UsageError:
        do = f"choose another --out, or {instead}"
        return UsageError(f"this directory holds a run {what}", where=str(directory), do=do)

    stored = directory / "config.yaml"
    if not stored.exists():
        return
    theirs = load_settings(stored, kind=type(config)).config
    evaluations = directory / "evals.jsonl"
    # Else two measures would stand in one curve.
    evaluated = evaluations.exists() and evaluations.stat().st_size
    for key in differing_keys(theirs, config, free=() if evaluated else ("eval.windows",)):
        instead = "the settings of that run"
        if key == "train.microbatch" and _bucketed(theirs) and _bucketed(config):
            instead += ": with `data.layout: bucket` the microbatch is part of the order"
        before, now = _stored(theirs).get(key), config.flat().get(key)
        raise other_run(f"with `{key}: {before}`, not {now}", instead)
    described = directory / "environment.json"
    if described.exists():
        trained_on = "cpu" if read_json(described, Environment).cuda is None else "cuda"
        if trained_on != device.type:
            raise other_run(f"on {trained_on}, not on {device.type}", "that kind of device")
    try:
        data = parse_object(read_bytes(directory / "data.json"))["manifest_sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        data = None  # killed between the two files, before the first step
    if data not in (None, fingerprint):
        if isinstance(config, ModuleConfig):
            of = "of another loss, `collate` or forward, or on other examples"
            raise other_run(of, "what that run had")
        raise other_run("on other data", "the data of that run")


def refuse_uneven(settings: Settings[Any], ranks: Ranks) -> None:
    """Raises `UsageError` when the microbatches of a step cannot be dealt out evenly."""
    train, num_ranks = settings.config.train, ranks.num_ranks
    if train.grad_accum_steps % num_ranks == 0:
        return
    sequences = train.microbatch * train.grad_accum_steps
    do = "start another number of processes, or change the step"
    # Of buckets another microbatch is another order, and so another training.
    if sequences % num_ranks == 0 and not _bucketed(settings.config):
        # The largest microbatch that is no larger than now: it fits into memory, too.
        own = sequences // num_ranks
        size = next(n for n in range(min(train.microbatch, own), 0, -1) if own % n == 0)
        do = (
            f"`train.microbatch={size} train.grad_accum_steps={sequences // size}` is the same step "
            "and can be shared"
        )
    raise UsageError(
        f"`train.grad_accum_steps` {train.grad_accum_steps} microbatches cannot be shared evenly by "
        f"{num_ranks} processes",
        where=settings.place("train.grad_accum_steps"),
        do=do,
    )


def agreed_settings(config: LoopConfig, device: torch.device, fingerprint: str) -> dict[str, Any]:
    """What must be the same on every rank, JSON-ready: the settings, the kind of device, the data."""
    may_differ = (*_OF_THE_MACHINE, "train.init_from", "data.tokenizer")
    flat = {key: value for key, value in config.flat().items() if not key.startswith(may_differ)}
    return {**flat, "device": device.type, "data": fingerprint[:12], "torch": torch.__version__}


def refuse_differences(ranks: Ranks, own: Mapping[str, Any], first: Mapping[str, Any]) -> None:
    """Raises `UsageError` for the first value in which this rank is unlike the first one."""
    for key, value in own.items():
        if value != first.get(key):
            raise UsageError(
                f"rank {ranks.rank} has `{key}: {value}`, and rank 0 `{first.get(key)}`",
                where=socket.gethostname(),
                do="give every machine the same config, data and torch; set to a value what is `auto`",
            )
