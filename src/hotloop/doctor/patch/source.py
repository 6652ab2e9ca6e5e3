"""Where a fix took effect in the user's source, and a file of that, parsed so that every byte can be written back."""

from __future__ import annotations

import ast
import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import libcst as cst
from libcst import metadata

from hotloop.core.child import APPLIED_FILE
from hotloop.doctor.trial_reports import applied_lines

Position = tuple[int, int]
Span = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Frame:
    """A place in the user's own code that was being executed."""

    file: str
    """Relative to where the script was started where it lies below."""
    line: int
    function: str
    span: Span | None
    """Line, column, last line and end of the expression; columns in bytes of UTF-8."""
    sha256: str | None
    """The digest of the file at the time."""
    direct: bool
    """It called what is inside of it itself, with no library between."""

    @property
    def site(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Taken:
    """One place where a fix took effect, or could not."""

    applied: bool
    what: str
    frames: tuple[Frame, ...]
    """Frames of the user's own code, the innermost first; empty where none was on the stack."""
    inside: str | None
    """`module.function` of the library that was innermost there, `torch` where that alone was."""
    facts: dict[str, Any] = field(default_factory=dict)


def code_of(node: cst.CSTNode) -> str:
    """As it is written."""
    return cst.Module([]).code_for_node(node)


def bound_by(node: ast.AST) -> list[str]:
    """Names, and attributes as `self.model`, to which this part of a program gives a value."""
    if isinstance(node, (ast.Name, ast.Attribute)):
        return [] if isinstance(node.ctx, ast.Load) else [ast.unparse(node)]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [each.asname or each.name.split(".")[0] for each in node.names]
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(
        node,
        (
            *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
            *(ast.ExceptHandler, ast.MatchAs, ast.MatchStar),
        ),
    ):
        return [node.name] if node.name is not None else []
    return [node.rest] if isinstance(node, ast.MatchMapping) and node.rest is not None else []


class Unsafe(Exception):
    """Why a diff would be unsafe, in a clause without a full stop."""


class Source:
    """Raises `Unsafe` for what cannot be read, or is not what ran."""

    def __init__(self, workdir: Path, frame: Frame) -> None:
        self.file = frame.file
        self.content = _content(workdir, frame)
        try:
            module = cst.parse_module(self.content)
            ast.parse(self.content)
        except (cst.ParserSyntaxError, SyntaxError, ValueError, UnicodeDecodeError) as error:
            raise Unsafe("it cannot be parsed") from error
        if module.bytes != self.content:
            raise Unsafe("it cannot be written back byte for byte")
        wrapper = metadata.MetadataWrapper(module, unsafe_skip_copy=True)
        self.module = wrapper.module
        self._positions = wrapper.resolve(metadata.PositionProvider)
        self._parents = wrapper.resolve(metadata.ParentNodeProvider)
        self._names = wrapper.resolve(metadata.QualifiedNameProvider)
        self._lines = self.module.code.replace("\r\n", "\n").replace("\r", "\n").split("\n")

    def tree(self) -> ast.Module:
        """Python's own, new at each call."""
        return ast.parse(self.content)

    def start(self, node: cst.CSTNode) -> Position:
        """Line, and column in bytes of UTF-8, as Python counts them."""
        return self._in_bytes(self._positions[node].start)

    def end(self, node: cst.CSTNode) -> Position:
        return self._in_bytes(self._positions[node].end)

    def _in_bytes(self, position: Any) -> Position:
        line = self._lines[position.line - 1]
        return position.line, len(line[: position.column].encode())

    def imported_as(self, node: cst.CSTNode) -> str | None:
        """The full name, where it can only be what was imported; else `None`."""
        names = self._qualified(node)
        if len(names) != 1 or names[0].source is not metadata.QualifiedNameSource.IMPORT:
            return None
        return str(names[0].name)

    def _qualified(self, node: cst.CSTNode) -> list[metadata.QualifiedName]:
        found: Any = self._names.get(node, ())
        return list(found() if callable(found) else found)

    def call_at(self, frame: Frame) -> cst.Call:
        """The very call that was being executed. Raises `Unsafe` where it is not certain."""
        if frame.span is None:
            raise Unsafe("Python was run without positions in its code")
        if frame.function == "<lambda>":
            raise Unsafe("it is called inside a lambda")
        line, _, last, end = frame.span
        calls = [each for each in self.calls() if self.end(each) == (last, end)]
        if len(calls) != 1 or not self.start(calls[0])[0] <= line <= last:
            raise Unsafe("no single call was found there")
        return calls[0]

    def calls(self) -> list[cst.Call]:
        return [node for node in self._positions if isinstance(node, cst.Call)]

    def refuse_builtin(self, call: cst.Call) -> None:
        """Raises `Unsafe` where the callee is Python's own, such as `map`: it calls who knows what."""
        for name in self._qualified(call.func):
            if name.source is metadata.QualifiedNameSource.BUILTIN:
                raise Unsafe("the model is called by something else there")

    def statement_of(self, node: cst.CSTNode) -> cst.CSTNode:
        """The statement of an indented block or of the module that it is part of."""
        for outer in self.outward(node):
            if isinstance(outer, (cst.IndentedBlock, cst.Module)):
                break
            node = outer
        return node

    def outward(self, node: cst.CSTNode) -> list[cst.CSTNode]:
        """What it is part of, the innermost first."""
        found: list[cst.CSTNode] = []
        while (parent := self._parents.get(found[-1] if found else node)) is not None:
            found.append(parent)
        return found


def _content(workdir: Path, frame: Frame) -> bytes:
    path = Path(frame.file)
    if path.is_absolute():
        raise Unsafe("it lies outside the directory that the command was started in")
    if ".." in path.parts or any(character in frame.file for character in '\t\n\r"\\'):
        raise Unsafe("a patch cannot name this file")
    real = workdir / path
    if not real.is_file():
        raise Unsafe("the file was not found")
    if not real.resolve().is_relative_to(workdir.resolve()):
        raise Unsafe("it is a link that leads out of the working directory")
    if not os.access(real, os.W_OK):
        raise Unsafe("the file may not be written")
    try:
        content = real.read_bytes()
    except OSError as error:
        raise Unsafe(f"the file cannot be read: {error.strerror}") from error
    if frame.sha256 is None or hashlib.sha256(content).hexdigest() != frame.sha256:
        raise Unsafe("the file has changed since it was run")
    return content


def taken_in(trials: Path, name: str, workdir: Path) -> tuple[Taken, ...]:
    """Every place where fix `name` said something in the processes of one comparison, each once.

    trials: the directory of the comparison. Places in its copies of the working directory become places
    in `workdir`.
    """
    found: dict[str, Taken] = {}
    for path in sorted(trials.glob(f"*/run/{APPLIED_FILE}")):
        for line in applied_lines(path.parent, name):
            taken = _taken(line, path.parent.parent / "work", workdir)
            found.setdefault(repr(taken), taken)
    return tuple(found.values())


def _taken(line: dict[str, Any], copy: Path, workdir: Path) -> Taken:
    site = line.get("site") or {"frames": [], "inside": None}
    frames = tuple(
        Frame(
            file=_in_workdir(each["file"], copy, workdir),
            line=each["line"],
            function=each["function"],
            span=tuple(each["span"]) if each["span"] is not None else None,
            sha256=each["sha256"],
            direct=each["direct"],
        )
        for each in site["frames"]
    )
    return Taken(line["applied"], line["what"], frames, site["inside"], line.get("facts", {}))


def _in_workdir(file: str, copy: Path, workdir: Path) -> str:
    """Relative where it lies in the working directory or in a copy of it."""
    path = Path(file)
    for root in (copy, copy.resolve(), workdir, workdir.resolve()):
        if path.is_absolute() and path.is_relative_to(root):
            return path.relative_to(root).as_posix()
    return file
