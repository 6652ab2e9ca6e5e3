"""How a DataLoader came to be made, so that another process of the same command knows it again."""

from __future__ import annotations

from collections import Counter
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from hotloop.core.census import ONE_OF
from hotloop.probe import entry
from hotloop.probe.attach.sites import Sites, caller, is_installed, module_of, outward
from hotloop.probe.imports import after_import

if TYPE_CHECKING:
    from types import ModuleType

MOST_CALLS = 32
STATEFUL = "torchdata.stateful_dataloader.stateful_dataloader"
"""Its loader never calls the `__init__` of torch's own."""


def around_construction(around: entry.Around) -> None:
    """Watch the construction of every loader: `around(original, loader, ...)`."""

    def watch_stateful(module: ModuleType) -> None:
        entry.around_call(module.StatefulDataLoader, "__init__", around)

    entry.around_call(DataLoader, "__init__", around)
    after_import({STATEFUL: watch_stateful})


class LoaderPlaces:
    """Names the loaders of this process as they are made."""

    def __init__(self, workdir: str = "") -> None:
        """workdir: what the script's own files are named relative to, beside the directory that it started in."""
        self._sites = Sites()
        self._workdir = f"{workdir.rstrip('/')}/" if workdir else ""
        self._made: Counter[str] = Counter()

    def name(self) -> tuple[str, int]:
        """The name of the loader that is being made: the calls that led here, and how many were made so before."""
        calls = " < ".join(self._calls(caller()))
        self._made[calls] += 1
        return calls, self._made[calls] - 1

    def num_made(self, calls: str) -> int:
        """So far."""
        return self._made[calls]

    def _calls(self, frame: FrameType | None) -> list[str]:
        """`train.py:42` or `package.module:42`, the innermost first, up to the script: not what started that."""
        found: list[str] = []
        for each in outward(frame):
            code = each.f_code
            if not self._sites.is_probe(code) and not code.co_filename.startswith("<frozen"):
                found.append(f"{self._file(code)}:{each.f_lineno}")
            is_script = code.co_name == "<module>" and each.f_globals.get("__name__") == "__main__"
            if is_script or len(found) == MOST_CALLS:
                break
        return found

    def _file(self, code: CodeType) -> str:
        """The same wherever the working directory was copied to."""
        if is_installed(code.co_filename):
            return module_of(code.co_filename)
        return self._sites.short(code.co_filename).removeprefix(self._workdir)


def numbered(calls: str, number: int) -> str:
    """One of several loaders that are made by the same calls."""
    return f"{calls}{ONE_OF}{number}"


def names_of(trained: dict[str, set[int]], num_made: dict[str, int]) -> tuple[str, ...]:
    """The loaders that train: by their calls alone, where all that were made so do.

    trained: calls -> the numbers of those that train. num_made: calls -> how many were made.
    """
    found: list[str] = []
    for calls, numbers in trained.items():
        all_train = len(numbers) == num_made[calls]
        found += [calls] if all_train else [numbered(calls, each) for each in sorted(numbers)]
    return tuple(found)


def is_named(calls: str, number: int, names: Any) -> bool:
    """Whether a loader is one of `names_of`."""
    return calls in names or numbered(calls, number) in names
