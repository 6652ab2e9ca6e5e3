"""One file of the user's, as it was when the fix was tried: parsed so that every byte can be written back."""

from __future__ import annotations

import ast
import hashlib
import os
from pathlib import Path
from typing import Any

import libcst as cst
from libcst import metadata

from hotloop.doctor.applied import Frame

Position = tuple[int, int]


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

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        return self._parents.get(node)

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

    def statements(self) -> list[cst.SimpleStatementLine]:
        return [node for node in self._positions if isinstance(node, cst.SimpleStatementLine)]

    def refuse_builtin(self, call: cst.Call) -> None:
        """Raises `Unsafe` where the callee is Python's own, such as `map`: it calls who knows what."""
        for name in self._qualified(call.func):
            if name.source is metadata.QualifiedNameSource.BUILTIN:
                raise Unsafe("the model is called by something else there")

    def statement_of(self, node: cst.CSTNode) -> cst.CSTNode:
        """The statement of an indented block or of the module that it is part of."""
        parent = self._parents.get(node)
        while parent is not None and not isinstance(parent, (cst.IndentedBlock, cst.Module)):
            node, parent = parent, self._parents.get(parent)
        return node

    def outward(self, node: cst.CSTNode) -> list[cst.CSTNode]:
        """What it is part of, the innermost first."""
        found = []
        parent = self._parents.get(node)
        while parent is not None:
            found.append(parent)
            parent = self._parents.get(parent)
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
