"""What a script imports from installed packages, and the variables that it sets before: for the fork server of its trials.

A module may read a variable while it is imported. Variables that were set before torch was imported can be given to the
process that imports in the script's place; of what the script sets later nobody knows who reads it, so what is
imported after that is left to the script.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hotloop.core.child import IMPORTS_FILE
from hotloop.probe import entry
from hotloop.probe.attach.sites import caller, is_installed
from hotloop.probe.foreign_process import replace_json
from hotloop.probe.imports import source_file

_SECRET = re.compile("TOKEN|KEY|SECRET|PASS|PWD|CRED|AUTH", re.IGNORECASE)
"""In the name of a variable that is not written down. No library reads one to decide what it computes."""
_PLAIN = re.compile(r"[\w.,:/=+-]{0,64}")
"""A value that may be written down."""


class ImportsSeen:
    """Watches from the import of torch on; `write` at the first step."""

    def __init__(self) -> None:
        self._before = _changed_variables()
        self._modules: list[str] | None = None
        """Those that were imported before the script set another variable."""
        for name in ("putenv", "unsetenv"):
            entry.around_call(os, name, self._set)

    def _set(self, original: Any, *args: Any) -> Any:
        frame = caller(passing=("<frozen",))
        file = frame.f_code.co_filename if frame else ""
        is_foreign = is_installed(file) or file.startswith(sysconfig.get_path("stdlib"))
        if self._modules is None and not is_foreign:
            self._modules = list(sys.modules)
        return original(*args)

    def write(self, directory: Path) -> None:
        """As `trial.forking.Imports` reads it. Raises `OSError`."""
        modules = {}
        for name in self._modules if self._modules is not None else list(sys.modules):
            file = source_file(sys.modules.get(name))
            if file is not None and is_installed(file):
                modules[name] = file
        self._modules = []
        replace_json(directory / IMPORTS_FILE, {"modules": modules, "variables": self._before})


def _changed_variables() -> dict[str, str | None] | None:
    """Those that were set (or taken away: `None`) since the process began.

    `None` as a whole where that cannot be told, or a value had better not be written down.
    """
    try:
        held = Path("/proc/self/environ").read_bytes()
    except OSError:
        return None
    first = dict(each.partition("=")[::2] for each in os.fsdecode(held).split("\0") if each)
    changed: dict[str, str | None] = {}
    for name in first.keys() | os.environ.keys():
        value = os.environ.get(name)
        if value == first.get(name) or name.startswith("HOTLOOP_") or _SECRET.search(name):
            continue
        if value is not None and not _PLAIN.fullmatch(value):
            return None
        changed[name] = value
    return changed
