"""Everything the judge can find, one file per cause.

Codes are permanent: 1xx input, 2xx copies and syncs, 3xx kernels, precision and compile,
4xx optimizer, 5xx memory, 6xx communication, 7xx checkpoint, evaluation and logging, 8xx host.
`hotloop explain CODE` prints the docstring of the file.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Protocol, cast

from hotloop.core.judgement import Finding
from hotloop.judge.judged_run import Found, JudgedRun, gain_without


class FindingModule(Protocol):
    """What each file of this directory holds, beside the docstring that explains it, whose first line is its title."""

    __doc__: str | None

    def find(self, run: JudgedRun) -> Found | None:
        """What was found, with its evidence, or `None` where the cause is absent or was not seen."""


FINDINGS: dict[str, FindingModule] = {
    each.name[:5].upper(): cast(FindingModule, import_module(f"{__name__}.{each.name}"))
    for each in iter_modules(__path__)
}
"""By code: every file of this directory."""


def title_of(code: str) -> str:
    """The first line of its page."""
    first = (FINDINGS[code].__doc__ or "").partition("\n")[0].removeprefix(f"{code}: ")
    return first[:1].upper() + first[1:]


def finding(code: str, run: JudgedRun) -> Finding | None:
    """The finding with this code, or `None` where its cause is absent or was not seen."""
    found = FINDINGS[code].find(run)
    if found is None:
        return None
    gain = gain_without(found.share) if found.gain_at_most is None else found.gain_at_most
    return Finding(
        code,
        found.title or title_of(code),
        gain,
        found.gain_is_loose,
        found.site,
        found.evidence,
        found.optimization,
        found.advice,
    )


def reason_without_fix(module: FindingModule) -> str | None:
    """Why no fix is tried for this finding, from the paragraph "No fix." of its page; `None` where one is."""
    _, found, rest = (module.__doc__ or "").partition("\n\nNo fix. ")
    return " ".join(rest.partition("\n\n")[0].split()) if found else None
