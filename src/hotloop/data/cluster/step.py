"""The pipeline as datatrove runs it: one step, whose ranks do jobs of a round."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datatrove.pipeline.base import PipelineStep

from hotloop.data.cluster.rank import do_rank


class EncodeJobs(PipelineStep):  # type: ignore[misc]
    """Takes no documents and gives none: a job reads its own units and writes its own shards."""

    name = "hotloop"
    type = "prepare"

    def __init__(self, directory: str) -> None:
        super().__init__()
        self.directory = directory

    def run(self, data: Any, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        do_rank(Path(self.directory), rank, world_size)
        yield from data or ()
