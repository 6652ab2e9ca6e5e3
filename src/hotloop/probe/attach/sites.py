"""Whose code a frame is, and how a place is named: `file:line`. Standard library alone."""

from __future__ import annotations

import inspect
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path, PurePath
from types import CodeType, FrameType
from typing import Any

Place = tuple[CodeType, int]
"""A code object and the instruction in it: turned into a line only when it is written down."""

_LIBRARY_PARTS = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
TIMED = "<timed exec>"
"""What IPython calls the code that `%time` or `%%time` runs."""
_GENERATED = f"{os.sep}torchinductor_"
"""Begins the name of the directory in which torch keeps the code that it compiled."""
_OWN = tuple(
    str(path.parents[2]) + os.sep for path in (Path(__file__), Path(__file__).resolve())
)  # both: the package may be reached through a link


def outward(frame: FrameType | None) -> Iterator[FrameType]:
    """This frame, what called it, and so on."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def variables_of(frame: FrameType) -> dict[str, Any]:
    """A frame's variables by name.

    Up to Python 3.12 a function's frame keeps the snapshot that is made for this, and all that the script
    lets go of later would live on in it: it is emptied, unless the script holds it too, as by `locals()`.
    """
    snapshot = frame.f_locals
    found = dict(snapshot)
    ours = 3  # the frame, `snapshot` and the argument of getrefcount
    if (
        isinstance(snapshot, dict)
        and frame.f_code.co_flags & inspect.CO_OPTIMIZED
        and sys.getrefcount(snapshot) <= ours
    ):
        snapshot.clear()
    return found


class Sites:
    """Tells the user's own code from libraries: what is not installed, and the program that was started."""

    def __init__(self) -> None:
        paths = sysconfig.get_paths()
        self._stdlib = tuple(
            os.path.realpath(paths[name]) + os.sep for name in ("stdlib", "platstdlib")
        )
        try:
            self._start = os.getcwd() + os.sep  # noqa: PTH109
        except OSError:  # it has been removed
            self._start = os.sep
        self._known: dict[str, bool] = {}
        self._main: str | None = None

    def own(self, code: CodeType) -> bool:
        """Whether this is the user's own code."""
        name = code.co_filename
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = self._is_own(name)
        return known

    def own_files(self) -> list[str]:
        """Of the modules that are loaded, those in which the user's own code lies."""
        main = getattr(sys.modules.get("__main__"), "__file__", None) or ""
        foreign = not is_installed(os.path.realpath(main))
        files = {getattr(each, "__file__", None) for each in list(sys.modules.values())}
        return [
            file
            for file in files
            if isinstance(file, str)
            # Resolving the links of thousands of paths takes as long as some steps.
            and not (file.startswith(self._stdlib) or (foreign and is_installed(file)))
            and self._is_own(file)
        ]

    def own_frames(self, frame: FrameType | None) -> Iterator[FrameType]:
        """The frames of the user's own code, from the innermost outward."""
        return (each for each in outward(frame) if self.own(each.f_code))

    def _is_own(self, name: str) -> bool:
        if name.startswith("<"):
            # `python -c`; elsewhere such names are of generated code
            is_main = name == "<string>" and not hasattr(sys.modules.get("__main__"), "__file__")
            return is_main or name == TIMED
        if name.startswith(_OWN) or _GENERATED in name:
            return False
        path = os.path.realpath(name)
        if path.startswith(_OWN):
            return False
        if self._main is None:
            file = getattr(sys.modules.get("__main__"), "__file__", None)
            self._main = os.path.realpath(file) if file else ""
        if path == self._main:
            return True
        if is_installed(path) or path.startswith(self._stdlib):
            # `python -m package`: the program itself is installed, and it is the user's.
            return is_installed(self._main) and path.startswith(_package_of(self._main))
        return True

    def is_probe(self, code: CodeType) -> bool:
        """Whether this is the probe itself."""
        return code.co_filename.startswith(_OWN)

    def place(self, frame: FrameType | None) -> Place | None:
        """The innermost place in the user's own code, from `frame` outward; of any code where there is none."""
        found = next(self.own_frames(frame), frame)
        return None if found is None else (found.f_code, found.f_lasti)

    def name(self, place: Place | None) -> str | None:
        """`train.py:42`: relative to where the script was started, where it lies below."""
        if place is None:
            return None
        code, instruction = place
        return f"{self.short(code.co_filename)}:{line_of(code, instruction)}"

    def short(self, path: str) -> str:
        """`path`, relative to where the script was started where it lies below; `In[2]` of a notebook's cell."""
        if path == TIMED:
            return "%time"
        if (cell := _cell_of(path)) is not None:
            return cell
        path = os.path.abspath(path) if not path.startswith("<") else path  # noqa: PTH100
        return path.removeprefix(self._start)

    def of_callable(self, function: Any) -> str | None:
        """The place at which a function, or a class's method, is written; `None` for what has no Python source."""
        code = _code_of(function)
        return f"{self.short(code.co_filename)}:{code.co_firstlineno}" if code else None

    def is_own_callable(self, function: Any) -> bool:
        """Whether it is written in the user's own code."""
        code = _code_of(function)
        return code is not None and self.own(code)


def _cell_of(path: str) -> str | None:
    """What the notebook calls the cell that it compiled under this name."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    try:
        named = shell.compile.format_code_name(path) if shell is not None else None
    except AttributeError:  # an older IPython
        return None
    return named[1] if named is not None else None


def line_of(code: CodeType, instruction: int) -> int:
    """The source line of an instruction."""
    for start, end, line in code.co_lines():
        if start <= instruction < end and line is not None:
            return line
    return code.co_firstlineno


def module_of(path: str) -> str:
    """`torch.nn.functional` for an installed file; for others the file's name alone, or the package that it begins."""
    for part in _LIBRARY_PARTS:
        _, found, below = path.rpartition(part)
        if found:
            return below.removesuffix(".py").removesuffix(f"{os.sep}__init__").replace(os.sep, ".")
    pure = PurePath(path)
    return pure.parent.name if pure.stem == "__init__" else pure.stem


def caller(*, passing: tuple[str, ...] = ()) -> FrameType | None:
    """The frame that called into this package: the first outside of it and of files whose path starts with `passing`."""
    frame: FrameType | None = sys._getframe(1)
    passed = (*_OWN, *passing)
    while frame is not None and frame.f_code.co_filename.startswith(passed):
        frame = frame.f_back
    return frame


def file_and_line(frame: FrameType | None) -> str:
    """`train.py:42`, without directories."""
    if frame is None:
        return "?"
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def inside(frame: FrameType | None) -> str | None:
    """`module.function` of the innermost frame that is not torch's."""
    for each in outward(frame):
        module = each.f_globals.get("__name__", "?")
        if module != "torch" and not module.startswith("torch."):
            return f"{module}.{each.f_code.co_name}"
    return None


def _code_of(function: Any) -> CodeType | None:
    """The code of a function, a bound method, a partial, or an object that is called."""
    function = getattr(function, "__func__", function)
    function = getattr(function, "func", function)  # functools.partial
    code = getattr(function, "__code__", None)
    if code is None and not isinstance(function, type):
        call = vars(type(function)).get("__call__")
        code = getattr(call, "__code__", None)
    return code if isinstance(code, CodeType) else None


def is_installed(path: str) -> bool:
    """Whether a file belongs to an installed package."""
    return any(part in path for part in _LIBRARY_PARTS)


def _package_of(main: str) -> str:
    """The directory of the program's package; of a console script, the script alone."""
    directory = os.path.dirname(main)  # noqa: PTH120
    return directory + os.sep if is_installed(directory + os.sep) else main
