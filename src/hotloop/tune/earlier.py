"""Tunings of configs, in the cache: the same call again, and another config that is the same work, have their answer there.

```
<cache>/tuned/KEY.json   where the ledger lies, its digest, and the budget that was too small for all
RUN/tuned.json           the key with which its first trial was made
```
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import hotloop
from hotloop.core.cache import cache_directory
from hotloop.core.config import RunConfig
from hotloop.core.errors import EnvironmentFailed, UsageError
from hotloop.core.files import read_json, write_json
from hotloop.core.ledger import LEDGER_FILE, Ledger, TriedFix
from hotloop.core.settings import Settings
from hotloop.data.prepared import open_prepared
from hotloop.doctor.directory import MACHINE, TRIALS, mapping_of
from hotloop.hardware.environment import read_host, runs_on
from hotloop.tune.options import Option

NO_MATTER = (
    *("name", "train.seed", "data.seed", "train.steps", "train.epochs", "schedule."),
    *("optimizer.learning_rate", "optimizer.rate_", "eval.", "checkpoint.every_steps"),
    *("checkpoint.interruptions_per_day", "checkpoint.keep", "checkpoint.upload"),
    *("logging.wandb", "logging.mlflow", "logging.project", "logging.run_name"),
)
"""Begins the names of settings that leave the work of a step what it is, unless something of the kind is varied."""
BETWEEN_STEPS = frozenset({"eval", "checkpoint", "logging"})
"""Sections whose settings decide together what there is between steps."""
BEGUN_FILE = "tuned.json"
OF_TEXT = ("data.source", "data.prepared", "data.mix", "data.reading.", "data.tokenizer", "data.end_of_text")  # fmt: skip
"""What is told by the prepared text."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """Where the tuning of a config is looked up."""

    file: Path
    num_steps: int | None = None
    """Those of this config; `None`: what its epochs need."""

    def found(self, budget_s: float) -> tuple[Path, Ledger] | None:
        """Its directory and ledger; `None` where there is none, it is not what it was, or `budget_s` could add to it."""
        entry = mapping_of(self.file)
        try:
            path = Path(entry["ledger"])
            if _digest(path) != entry["sha256"]:
                return None
            ledger = read_json(path, Ledger)
            is_open = ledger.continue_with is not None
            if is_open and not (ledger.kept and budget_s <= entry["budget_s"]):
                return None
        except (KeyError, TypeError, OSError, UsageError):
            return None
        return (path.parent, ledger) if all(map(self._pays_alike, ledger.fixes)) else None

    def _pays_alike(self, fix: TriedFix) -> bool:
        """Whether the steps of this config make up for its start where those of the first did."""
        is_late = fix.status == "does_not_pay"
        if self.num_steps is None:
            return not is_late
        return is_late == ((fix.pays_after_steps or 0) > self.num_steps)

    def begin(self, directory: Path) -> None:
        """Trials in `directory` are of this, unless some were made before: by other sources, for all that is known."""
        if not (directory / TRIALS).exists():
            write_json(directory / BEGUN_FILE, {"key": self.file.stem})

    def remember(self, directory: Path, ledger: Ledger, budget_s: float) -> None:
        """Keep what a call with such a budget stored in `directory`, if anything was timed, and all trials were of this."""
        is_timed = any(each.verdict for each in ledger.fixes)
        if not is_timed or mapping_of(directory / BEGUN_FILE).get("key") != self.file.stem:
            return
        path = (directory / LEDGER_FILE).resolve()
        entry: dict[str, Any] = {"ledger": str(path), "sha256": _digest(path)}
        if ledger.continue_with is not None:  # else more time adds nothing
            entry["budget_s"] = budget_s
        with suppress(EnvironmentFailed):  # then it is measured again
            write_json(self.file, entry)


def earlier_of(
    settings: Settings[Any],
    rounds: Sequence[Sequence[Option]],
    ranks: int,
    text: Sequence[str] | None,
) -> Earlier | None:
    """By all that decides what is faster: the work of a step, what is tried, the machine, versions and sources.

    text: directories of the prepared text of a training on text; `None`: it is read while it is prepared, and nothing is found.
    """
    is_text = isinstance(settings.config, RunConfig)
    if is_text and text is None:
        return None
    varied = {each.name for options in rounds for each in options}
    beside = BETWEEN_STEPS & {each.partition(".")[0] for each in varied}
    ignored = [
        each
        for each in NO_MATTER
        if each.partition(".")[0] not in beside and not any(v.startswith(each) for v in varied)
    ]
    ignored += OF_TEXT if is_text else ["data.file"]
    flat = {
        key: value
        for key, value in settings.config.flat().items()
        if not key.startswith(tuple(ignored))
    }
    host, packages = read_host(), ("torch", "numpy", "transformers", "triton")
    sources = sorted(Path(hotloop.__file__).parent.rglob("*.py"))
    deciding = [
        flat,
        [key for key in flat if settings.origin(key) == "flag"],
        _text(settings.config, text or ()) if is_text else _examples(settings.config),
        [[(o.name, o.values, o.parity_class, o.is_accepted) for o in each] for each in rounds],
        ranks,
        runs_on(sys.executable),
        {name: getattr(host, name) for name in (*MACHINE, "num_cpus", "variables", "hotloop")},
        [(name, _version(name)) for name in packages],
        [(str(each), _digest(each)) for each in sources],
    ]
    key = hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()
    file = cache_directory() / "tuned" / f"{key[:32]}.json"
    return Earlier(file, settings.config.train.steps or None)


def _text(config: RunConfig, paths: Sequence[str]) -> list[Any]:
    """What decides the rows of a batch: their ids, and where rows are made of documents, these."""
    data = config.data
    manifests = [open_prepared(Path(each), verify="size").manifest for each in paths]
    if data.layout == "concatenate" and not data.document_mask:
        return [(each.vocabulary_size, each.id_type) for each in manifests]
    shares = [corpus.weight for corpus in data.corpora]
    return [*shares, *(shard.documents_sha256 for each in manifests for shard in each.shards)]


def _examples(config: Any) -> list[Any]:
    """The files that a fine-tuning learns from, and those that say what its model and tokens are."""
    model = Path(config.model.path)
    held_out = config.data.held_out
    files = [Path(config.data.file), *([Path(held_out)] if isinstance(held_out, str) else [])]
    files += sorted(each for kind in ("*.json", "*.py") for each in model.glob(kind))
    return [_digest(each) if each.is_file() else str(each.absolute()) for each in files]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
