"""What several processes must agree on before they train together."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

import torch

from hotloop.core.config import RunConfig
from hotloop.core.errors import UsageError
from hotloop.core.ranks import Ranks
from hotloop.core.settings import Settings

_MAY_DIFFER = (
    "train.num_threads",
    "train.host_memory",
    "train.device",
    "train.init_from",
    "data.source",
    "data.reading.",
    "data.end_of_text",
    "data.prepared",
    "data.mix",
    "data.prefetch",
    "data.tokenizer",
)
"""Of a machine and its disks. The data's content and the kind of device are compared by themselves."""


def refuse_uneven(settings: Settings, ranks: Ranks) -> None:
    """Raises `UsageError` when the microbatches of a step cannot be dealt out evenly."""
    train, num_ranks = settings.config.train, ranks.num_ranks
    if train.grad_accum_steps % num_ranks == 0:
        return
    windows = train.microbatch * train.grad_accum_steps
    do = "start another number of processes, or change the step"
    # Of buckets another microbatch is another order, and so another training.
    if windows % num_ranks == 0 and settings.config.data.layout != "bucket":
        # The largest microbatch that is no larger than now: it fits into memory, too.
        own = windows // num_ranks
        size = next(n for n in range(min(train.microbatch, own), 0, -1) if own % n == 0)
        do = (
            f"`train.microbatch={size} train.grad_accum_steps={windows // size}` is the same step "
            "and can be shared"
        )
    raise UsageError(
        f"`train.grad_accum_steps` {train.grad_accum_steps} microbatches cannot be shared evenly by "
        f"{num_ranks} processes",
        where=settings.place("train.grad_accum_steps"),
        do=do,
    )


def agreed_settings(config: RunConfig, device: torch.device, fingerprint: str) -> dict[str, Any]:
    """What must be the same on every rank, JSON-ready: the settings, the kind of device, the data."""
    flat = {key: value for key, value in config.flat().items() if not key.startswith(_MAY_DIFFER)}
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
