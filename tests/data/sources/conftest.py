"""Reading sources whole, as the preparation does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from hotloop.data.sources import Document, ReadOptions, Report, Unit
from hotloop.data.sources.plan import plan
from hotloop.data.sources.read import read_unit

Reader = Callable[..., tuple[list[Document], Report]]


@pytest.fixture
def read() -> Reader:
    """`read(*sources, **options)`: all documents and what was left out."""

    def whole(*sources: object, **options: object) -> tuple[list[Document], Report]:
        chosen = ReadOptions(**options)  # type: ignore[arg-type]
        planned = plan([str(source) for source in sources], chosen)
        report = Report()
        for left_out in planned.skipped:
            report.merge(left_out)
        found = [document for unit in planned.units for document in read_unit(unit, chosen, report)]
        return found, report

    return whole


@pytest.fixture
def read_cut() -> Reader:
    """`read_cut(path, cuts, **options)`: the documents of a file cut at these bytes into units."""

    def cut(path: Path, cuts: list[int], **options: object) -> tuple[list[Document], Report]:
        chosen = ReadOptions(**options)  # type: ignore[arg-type]
        first = plan([str(path)], chosen).units[0]
        size = path.stat().st_size
        bounds = sorted({0, size, *(cut % (size + 1) for cut in cuts)})
        report = Report()
        found: list[Document] = []
        for begin, end in pairwise(bounds):
            unit: Unit = replace(first, begin=begin, end=end)
            found.extend(read_unit(unit, chosen, report))
        return found, report

    return cut
