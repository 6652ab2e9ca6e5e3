"""What lies in a place of checkpoints, here or in an object store, and which of it stays. Nothing is read or deleted here."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from hotloop.core.config import CheckpointConfig
from hotloop.core.files import validated
from hotloop.core.finetune_config import LOWER_IS_BETTER
from hotloop.core.untrusted import object_lines, parse_object

SCHEMA = "hotloop.checkpoint/1"
_DIRECTORY = re.compile(r"step-(\d{8})-[0-9a-f]{8}")
FILE_NAME = re.compile(r"\w[\w.-]*", re.ASCII)
Size = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class StoredFile:
    bytes: Size
    sha256: str
    """Of the plain content, however it is stored."""
    zstd_bytes: Size | None = None
    """Its size in an object store, where it is compressed there and has `.zst` at its name."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The commit of a checkpoint."""

    step: int
    files: dict[str, StoredFile]
    records: dict[str, StoredFile] = field(default_factory=dict)
    """In an object store: files of the run directory as they were then."""
    saved_at: Annotated[float, Field(ge=0, le=1e11)] | None = None
    """In an object store: when it was saved, in seconds since 1970. Never decides which one is newer."""
    versions: dict[str, str] = field(default_factory=dict)
    schema: str = SCHEMA

    def to_json(self) -> bytes:
        plain = asdict(self, dict_factory=lambda pairs: {k: v for k, v in pairs if v not in (None, {})})  # fmt: skip
        return json.dumps(plain, indent=1).encode()


@dataclass(frozen=True, slots=True)
class Entry:
    """A step directory, as far as its names and sizes tell."""

    name: str
    step: int
    state: Literal["whole", "damaged", "half-written", "set aside"]
    problem: str | None = None
    """Why it is not whole."""
    saved_at: float | None = None
    manifest: Manifest | None = None

    @property
    def files(self) -> dict[str, StoredFile]:
        return self.manifest.files if self.manifest else {}

    @property
    def size_bytes(self) -> int:
        return sum(file.bytes for file in self.files.values())

    @property
    def content(self) -> tuple[int, frozenset[tuple[str, str]]]:
        """Equal for two copies of one checkpoint."""
        return self.step, frozenset((name, file.sha256) for name, file in self.files.items())


def step_of(name: str) -> int | None:
    """The step of a step directory's name; `None` for any other name."""
    found = _DIRECTORY.fullmatch(name)
    return int(found[1]) if found else None


def read_manifest(content: bytes, step: int, *, members: frozenset[str]) -> Manifest:
    """The manifest of a checkpoint of `step` that has all `members`. Raises `ValueError` that says what is wrong."""
    plain = parse_object(content)
    if plain.get("schema") != SCHEMA:
        raise ValueError(f"written by another version ({plain.get('schema')})")
    found = validated(Manifest, plain)
    if found.step != step:
        raise ValueError(f"its manifest is of step {found.step}: the directory was renamed")
    if missing := sorted(members - found.files.keys()):
        raise ValueError(f"its manifest does not list {missing[0]}")
    for name in (*found.files, *found.records):
        if not FILE_NAME.fullmatch(name):
            raise ValueError(f"its manifest names a file outside it: {name!r}")
    return found


def retired(
    entries: Iterable[Entry],
    rules: CheckpointConfig,
    *,
    newest: str,
    now: float,
    losses: Mapping[int, float],
    good_until: int | None = None,
) -> list[Entry]:
    """Those that may be deleted now that `newest` (a name) is committed: which no rule keeps.

    Rules count steps: of two checkpoints of one step, either may be the damaged one. By age, each counts as saved no earlier than any of an older step: with a clock that
    jumps, no newer one goes while an older one stays. With `good_until` all of that step or before stay, and `keep` is 1.
    """
    ordered = sorted(entries, key=lambda each: (each.step, each.name == newest))
    steps = sorted({each.step for each in ordered})
    best = [step for step in steps if math.isfinite(losses.get(step, math.nan))]
    best.sort(key=lambda step: (losses[step], -step))
    counted = {*steps[-(rules.keep if good_until is None else 1) :], *best[: rules.keep_best]}
    kept = {newest, *(each.name for each in ordered if each.step in counted)}
    saved_at = -math.inf
    for each in ordered:
        saved_at = max(saved_at, each.saved_at or -math.inf)
        young = rules.keep_hours is not None and now - saved_at <= rules.keep_hours * 3600
        if young or (good_until is not None and each.step <= good_until):
            kept.add(each.name)
    return [each for each in ordered if each.name not in kept]


def best_step(losses: Mapping[int, float]) -> int:
    """The last step of the lowest loss, as `retired` keeps it; one that is no number counts as the highest."""
    return min(losses, key=lambda each: (losses[each] if math.isfinite(losses[each]) else math.inf, -each))  # fmt: skip


def held_out_losses(evals_file: Path, metric: str = "loss") -> dict[int, float]:
    """By step, with averaged weights where there are any; lines that tell none are passed over.

    metric: one of `metrics`, in place of the loss; less than nothing where more is better, so that the least is the best.
    """
    losses: dict[int, float] = {}
    try:
        for _, found in object_lines(evals_file, finite=False):
            if isinstance(found, dict) and isinstance(step := found.get("step"), int):
                if metric == "loss":
                    loss = found.get("averaged_loss", found.get("loss"))
                else:
                    others = found.get("metrics")
                    loss = others.get(metric) if isinstance(others, dict) else None
                    if isinstance(loss, int | float) and metric not in LOWER_IS_BETTER:
                        loss = -loss
                if isinstance(loss, int | float):
                    losses[step] = loss
    except OSError:
        pass  # not evaluated yet
    return losses
