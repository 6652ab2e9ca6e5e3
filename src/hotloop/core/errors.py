"""Errors a user can act on, and the exit codes every command shares. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every `hotloop` command."""

    FINE = 0
    FOUND = 1
    """A regression, or a finding at the level asked for."""
    USAGE = 2
    """Usage or bad input."""
    INCONCLUSIVE = 3
    """Inconclusive or incomparable."""
    ENVIRONMENT = 4
    """The environment failed: disk, device, memory."""
    COMMAND_FAILED = 5
    """The command under measurement failed; its own code is in the JSON."""
    RESUMABLE = 75
    """Interrupted; running the same command again continues."""


class HotloopError(Exception):
    """One clear error: what is wrong, where it is, what to do. Never shown as a traceback."""

    exit_code = ExitCode.USAGE

    def __init__(self, what: str, *, where: str | None = None, do: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.do = do

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  at {self.where}")
        if self.do:
            lines.append(f"  {self.do}")
        return "\n".join(lines)


class UsageError(HotloopError, ValueError):
    """The user's input is wrong: a setting, a file, an argument."""


def pip_install(extra: str) -> str:
    """The command that brings the packages of an extra."""
    return f"pip install 'hotloop[{extra}]'"


def not_installed(extra: str, what: str, *, where: str | None = None) -> UsageError:
    """`what` needs a package of `extra` that is missing."""
    return UsageError(what, where=where, do=pip_install(extra))


@contextmanager
def importing(extra: str, what: str, *, where: str | None = None) -> Iterator[None]:
    """Within it an import that fails becomes `not_installed`."""
    try:
        yield
    except ImportError as error:
        raise not_installed(extra, what, where=where) from error


class EnvironmentFailed(HotloopError, RuntimeError):
    """The machine refused: full disk, no permission, no memory, no device."""

    exit_code = ExitCode.ENVIRONMENT


class CommandFailed(HotloopError, RuntimeError):
    """A measured command ended with an error of its own."""

    exit_code = ExitCode.COMMAND_FAILED

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        do: str | None = None,
        returncode: int,
        arm: str | None = None,
    ) -> None:
        """arm: name of the arm of a comparison whose process failed."""
        super().__init__(what, where=where, do=do)
        self.returncode = returncode
        self.arm = arm


class Interrupted(HotloopError):
    """Stopped by the user; what is needed to continue is on disk."""

    exit_code = ExitCode.RESUMABLE


LOST_DEVICE = (
    "no cuda gpus are available",
    "found no nvidia driver",
    "cuda driver initialization failed",
    "cuda unknown error",
    "cuda error: unknown error",
    "unspecified launch failure",
    "launch timed out",
    "uncorrectable ecc",
    "uncorrectable nvlink",
    "capable device is detected",
    "capable device(s) is/are busy or unavailable",
    "gpu is lost",
    "fallen off the bus",
)
"""What CUDA, ROCm, NVML and torch say, in lower case, where a GPU fails or has gone. Asserts and illegal addresses are a
program's own."""


def lost_device(text: str) -> bool:
    """Whether this says that a GPU failed or has gone."""
    return any(words in text.lower() for words in LOST_DEVICE)


def first_line(error: BaseException) -> str:
    """Of what it says; its class where it says nothing, as a `NotImplementedError` may."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
