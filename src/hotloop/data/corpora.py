"""The prepared directories that a run trains on: one, or several in fixed shares."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hotloop.core.cache_entries import entry_in_use
from hotloop.core.errors import UsageError
from hotloop.data.manifest import MANIFEST
from hotloop.data.prepared import Prepared, open_prepared


@dataclass(frozen=True, slots=True, eq=False)
class Corpora:
    """Opened, all of one tokenizer."""

    members: tuple[Prepared, ...]
    weights: tuple[float, ...]

    @property
    def vocabulary_size(self) -> int:
        return self.members[0].manifest.vocabulary_size

    @property
    def tokenizer_fingerprint(self) -> str:
        return self.members[0].manifest.tokenizer_fingerprint

    @property
    def tokenizer_json(self) -> bytes:
        return self.members[0].tokenizer_path.read_bytes()

    @property
    def fingerprint(self) -> str:
        """sha256 of all that decides what is read."""
        digests = [content_of(member) for member in self.members]
        if len(digests) == 1:
            return digests[0]
        text = json.dumps([digests, [weight / sum(self.weights) for weight in self.weights]])
        return hashlib.sha256(text.encode()).hexdigest()


def content_of(prepared: Prepared) -> str:
    """sha256 of the manifest, which holds those of the shards."""
    return hashlib.sha256((prepared.path / MANIFEST).read_bytes()).hexdigest()


def open_corpora(
    paths: Sequence[Path],
    weights: Sequence[float] = (1.0,),
    *,
    verify: Literal["checksum", "size"] = "checksum",
) -> Corpora:
    """Raises `UsageError` for directories of different tokenizers, and what `open_prepared` raises."""
    members = []
    for path in paths:
        entry_in_use(path)
        members.append(open_prepared(path, verify=verify))
    first = members[0]
    for other in members[1:]:
        if other.manifest.tokenizer_fingerprint != first.manifest.tokenizer_fingerprint:
            raise UsageError(
                f"the ids are of another tokenizer ({other.manifest.tokenizer}) than those of "
                f"{first.path} ({first.manifest.tokenizer})",
                where=str(other.path),
                do=f"prepare it with --tokenizer {first.tokenizer_path}",
            )
    return Corpora(tuple(members), tuple(weights))
