"""What machines were measured to do at best, kept in the cache: a file per machine, torch and threads."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from hotloop.core.cache import cache_directory
from hotloop.core.ceilings import Ceilings, MatmulCeiling, Rate
from hotloop.core.errors import UsageError
from hotloop.core.files import read_json, write_json
from hotloop.core.measurement import Environment


def ceilings_path(environment: Environment, num_threads: int) -> Path:
    """The file for a machine, a torch and, on a CPU, a number of threads."""
    key = [
        environment.device,
        environment.cpu_model,
        environment.cpu_quota,
        environment.torch,
        num_threads if environment.cuda is None else None,
    ]
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    name = re.sub(r"[^\w.]+", "-", environment.device).strip("-")[:40]
    return cache_directory() / "ceilings" / f"{name}-{digest}.json"


def stored_ceilings(environment: Environment, num_threads: int) -> Ceilings | None:
    """What was measured on such a machine; `None` when it never was, or its file is damaged."""
    path = ceilings_path(environment, num_threads)
    if not path.is_file():
        return None
    try:
        return read_json(path, Ceilings)
    except UsageError:  # of an older version, or damaged: it can be measured again
        return None


def store_ceilings(environment: Environment, ceilings: Ceilings) -> Ceilings:
    """Keep them, joined with what was kept before; returns what now stands.

    Raises `EnvironmentFailed` when the cache cannot be written.
    """
    before = stored_ceilings(environment, ceilings.num_threads)
    joined = ceilings if before is None else higher(before, ceilings)
    write_json(ceilings_path(environment, ceilings.num_threads), joined)
    return joined


def higher(before: Ceilings, now: Ceilings) -> Ceilings:
    """`now` with every value that was higher `before`. The disk's only for the same directory."""
    matmul = {each.dtype: each for each in before.matmul}
    for each in now.matmul:
        old = matmul.get(each.dtype)
        if old is None or each.flops_per_s >= old.flops_per_s:
            matmul[each.dtype] = each
    disk = now.disk_write
    if disk is None or (before.disk_write is not None and before.disk_write.place == disk.place):
        disk = _higher_rate(before.disk_write, disk)
    joined = replace(
        now,
        matmul=fastest_first(matmul.values()),
        memory_copy=_higher_rate(before.memory_copy, now.memory_copy),
        disk_write=disk,
    )
    known = {each.dtype for each in joined.matmul}
    known |= {name for name in ("memory_copy", "disk_write") if getattr(joined, name) is not None}
    reasons = {name: why for name, why in now.not_measured.items() if name not in known}
    return replace(joined, not_measured=reasons)


def _higher_rate(before: Rate | None, now: Rate | None) -> Rate | None:
    if before is None or now is None:
        return now or before
    return now if now.bytes_per_s >= before.bytes_per_s else before


def fastest_first(found: Iterable[MatmulCeiling]) -> tuple[MatmulCeiling, ...]:
    return tuple(sorted(found, key=lambda each: -each.flops_per_s))
