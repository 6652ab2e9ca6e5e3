"""Everything the judge can find, one file per cause.

Codes are permanent: 1xx input, 2xx copies and syncs, 3xx kernels, precision and compile,
4xx optimizer, 5xx memory, 6xx communication, 7xx checkpoint, evaluation and logging, 8xx host.
`hotloop explain CODE` prints the docstring of the file.
"""

from __future__ import annotations

from typing import Protocol

from hotloop.core.judgement import Breakdown, Finding
from hotloop.core.measurement import Measurement
from hotloop.judge.findings import (
    hl101_data_wait,
    hl301_fp32_matmul,
    hl302_eager,
    hl401_unfused_optimizer,
)


class FindingModule(Protocol):
    """What each file of this directory holds, beside the docstring that explains it."""

    CODE: str
    TITLE: str

    def find(self, measurement: Measurement, breakdown: Breakdown) -> Finding | None:
        """The finding, with its evidence, or `None` where the cause is absent or was not seen."""


FINDINGS: dict[str, FindingModule] = {
    "HL101": hl101_data_wait,
    "HL301": hl301_fp32_matmul,
    "HL302": hl302_eager,
    "HL401": hl401_unfused_optimizer,
}
