"""Starts hotloop's probes inside a foreign Python process, right after it imports torch.

Python runs this at start-up because the trial or the doctor put this directory on PYTHONPATH. Each of
`PROBES` starts where its variable names a sidecar directory; without any this does nothing (`AT_ONCE` is
for what must come before the script). It runs
the user's own `sitecustomize`, and never breaks the script: what goes wrong here becomes a note in the
sidecar directory. `sys` and `os` only: every interpreter that the script starts pays for what this
imports.
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

PROBES = {
    "HOTLOOP_ROUNDING_NOISE": ("the noise", "hotloop.trial.rounding_noise"),
    "HOTLOOP_BATCH_RNG": ("held random numbers", "hotloop.trial.fixed_batch_rng"),
    "HOTLOOP_NO_DROPOUT": ("dropout off", "hotloop.trial.no_dropout"),
    "HOTLOOP_FIXES": ("a fix", "hotloop.trial.live_fixes"),
    "HOTLOOP_STEP_CLOCK": ("the step clock", "hotloop.probe.step_clock"),
    "HOTLOOP_RESUME_TRACE": ("the trace", "hotloop.probe.resume_trace"),
    "HOTLOOP_DOCTOR": ("the probe", "hotloop.probe.attach"),
}
"""By variable: what it is called in a note, and the module whose `install_from_environment` starts it."""
AT_ONCE = {
    "HOTLOOP_SAME_RANDOMNESS": ("the same random numbers", "hotloop.trial.seeding"),
    "HOTLOOP_WITHIN": ("the guard of what may be written", "hotloop.probe.write_guard"),
}
"""Likewise, of what starts before the script: only where losses are compared."""
NEEDED = "HOTLOOP_DOCTOR"
NOT_SEEN = 4
"""Exit code of a process that was to be examined and cannot be: that of an environment that failed."""
HELPERS = ("multiprocessing.resource_tracker", "torch._inductor.compile_worker")
"""Interpreters that torch and Python start for themselves, by a part of their command line."""

_HERE = os.path.dirname(os.path.abspath(__file__))


def _note(variable: str, error: Exception) -> bool:
    """Whether it could be written."""
    try:
        directory = os.environ[variable].split(os.pathsep)[0]
        with open(os.path.join(directory, "notes.txt"), "a", encoding="utf-8") as file:
            name = {**PROBES, **AT_ONCE}[variable][0]
            file.write(f"{name} could not start: {type(error).__name__}: {error}\n")
    except (OSError, KeyError):
        return False
    return True


def _start(variable: str) -> None:
    try:
        name = {**PROBES, **AT_ONCE}[variable][1]
        module = __import__(name, fromlist=["install_from_environment"])
        module.install_from_environment()
    except Exception as error:  # noqa: BLE001 - the script must go on whatever happens here
        if _note(variable, error) and variable == NEEDED:
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream.flush()
                except (OSError, ValueError, AttributeError):
                    pass
            os._exit(NOT_SEEN)


class _AfterTorch:
    """Finds `torch` as everyone else would, and adds the probes to the end of its loading.

    It stays until torch is loaded: libraries look whether there is a torch before anyone imports it.
    """

    def __init__(self, variables: list[str]) -> None:
        self.variables = variables

    def find_spec(
        self, name: str, path: object = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        for finder in [each for each in sys.meta_path if each is not self]:
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
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                load(module)
                for variable in self.variables:
                    _start(variable)

            loader.exec_module = exec_module  # type: ignore[method-assign]
        except Exception as error:  # noqa: BLE001
            _note(self.variables[0], error)


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


def start_probes() -> None:
    """What the environment asks for: now where torch is there, else once it is."""
    wanted = [variable for variable in PROBES if os.environ.get(variable)]
    if wanted and "torch" not in sys.modules:
        sys.meta_path.insert(0, _AfterTorch(wanted))
        wanted = []
    for variable in [*(each for each in AT_ONCE if os.environ.get(each)), *wanted]:
        _start(variable)


if __name__ == "sitecustomize":
    _command = " ".join(getattr(sys, "orig_argv", ()))
    if not any(helper in _command for helper in HELPERS):
        start_probes()
    _chain()
