"""Everything the judge can find, one file per cause.

Codes are permanent: 1xx input, 2xx copies and syncs, 3xx kernels, precision and compile,
4xx optimizer, 5xx memory, 6xx communication, 7xx checkpoint, evaluation and logging, 8xx host.
`hotloop explain CODE` prints the docstring of the file.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Protocol, cast

from hotloop.core.judgement import Breakdown, Finding
from hotloop.core.measurement import Measurement


class FindingModule(Protocol):
    """What each file of this directory holds, beside the docstring that explains it."""

    __doc__: str | None
    CODE: str
    TITLE: str

    def find(self, measurement: Measurement, breakdown: Breakdown) -> Finding | None:
        """The finding, with its evidence, or `None` where the cause is absent or was not seen."""


FINDINGS: dict[str, FindingModule] = {
    module.CODE: module
    for module in (
        cast(FindingModule, import_module(f"{__name__}.{each.name}"))
        for each in iter_modules(__path__)
    )
}
"""By code: every file of this directory."""


def reason_without_fix(module: FindingModule) -> str | None:
    """Why no fix is tried for this finding, from the paragraph "No fix." of its page; `None` where one is."""
    _, found, rest = (module.__doc__ or "").partition("\n\nNo fix. ")
    return " ".join(rest.partition("\n\n")[0].split()) if found else None
