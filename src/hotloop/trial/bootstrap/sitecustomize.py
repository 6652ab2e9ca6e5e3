"""Starts hotloop's step clock inside a foreign Python process, right after it imports torch.

Python runs this at start-up because the trial put this directory on PYTHONPATH. It does nothing
without HOTLOOP_STEP_CLOCK, runs the user's own `sitecustomize`, and never breaks the script: what
goes wrong here becomes a note in the sidecar directory. `sys` and `os` only: every interpreter that
the script starts pays for what this imports.
"""

# os.path, because pathlib would cost every interpreter some milliseconds
# ruff: noqa: PTH100, PTH118, PTH120
from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))


def _note(sidecar: str, error: Exception) -> None:
    try:
        with open(os.path.join(sidecar, "notes.txt"), "a", encoding="utf-8") as file:
            file.write(f"the step clock could not start: {type(error).__name__}: {error}\n")
    except OSError:
        pass


class _AfterTorch:
    """Finds `torch` as everyone else would, once, and adds the clock to the end of its loading."""

    def __init__(self, sidecar: str) -> None:
        self.sidecar = sidecar

    def find_spec(
        self, name: str, path: object = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        try:
            sys.meta_path.remove(self)
        except ValueError:
            pass
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find else None
            if spec is not None:
                if spec.loader is not None:
                    self.extend(spec.loader)
                return spec
        return None

    def extend(self, loader: Loader) -> None:
        try:
            load = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                try:
                    from hotloop.probe import step_clock

                    step_clock.install_from_environment()
                except Exception as error:  # noqa: BLE001 - the script must go on whatever happens here
                    _note(self.sidecar, error)

            loader.exec_module = exec_module  # type: ignore[method-assign]
        except Exception as error:  # noqa: BLE001
            _note(self.sidecar, error)


def _chain() -> None:
    """Run the `sitecustomize` that Python would have run without this one."""
    own = sys.modules.pop("sitecustomize", None)
    path = list(sys.path)
    sys.path[:] = [entry for entry in path if os.path.abspath(entry or ".") != _HERE]
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if own is not None:
            sys.modules.setdefault("sitecustomize", own)


if __name__ == "sitecustomize":
    _sidecar = os.environ.get("HOTLOOP_STEP_CLOCK")
    if _sidecar:
        sys.meta_path.insert(0, _AfterTorch(_sidecar))
    _chain()
