"""A change to one source file, made twice: on the tree that keeps every byte, and on Python's own tree.

Where the two do not come to the same program, the change is not made. Of the edited file a unified diff in bytes, for
`git apply` and `patch -p1`; line ends and encodings as they are.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import libcst as cst

from hotloop.doctor.patch.source import Position, Source, Unsafe

_NO_NEWLINE = b"\\ No newline at end of file\n"


@dataclass(frozen=True, slots=True)
class Change:
    """A replacement of one expression."""

    node: cst.CSTNode
    to: Callable[[Any], cst.BaseExpression]
    """Called with the node as earlier changes left it."""
    again: Callable[[ast.Module], None]
    """The same on Python's tree."""
    note: str = ""
    """What is otherwise than it was measured."""


@dataclass(frozen=True, slots=True)
class Insertion:
    """Statements inserted before or after a statement of a block."""

    node: cst.CSTNode
    start: Position
    """Of that statement."""
    lines: str
    after: bool
    below: int = 0
    """Blank lines under the last of them, a function or class."""

    def again(self, tree: ast.Module) -> None:
        """The same on Python's tree; after the last statement of a line."""
        on_line = len(self.node.body) if isinstance(self.node, cst.SimpleStatementLine) else 1
        for node in ast.walk(tree):
            for field in ("body", "orelse", "finalbody"):
                block: Any = getattr(node, field, None)
                for place, each in enumerate(block if isinstance(block, list) else ()):
                    if (each.lineno, each.col_offset) == self.start:
                        place += on_line if self.after else 0
                        block[place:place] = _parsed(self.lines)
                        return
        raise Unsafe("no statement was found there")


Edit = Change | Insertion


def edited(source: Source, edits: Sequence[Edit]) -> bytes:
    """The file with these edits. Raises `Unsafe` where the result is not what they say."""
    try:
        changed = source.module.visit(_Editor(source, edits))
        assert isinstance(changed, cst.Module)
        content = changed.bytes
        tree = ast.parse(content)
    except (SyntaxError, ValueError, cst.CSTValidationError) as error:
        raise Unsafe(f"what it would become is no Python: {error}") from error
    wanted = source.tree()
    # Each is put next to its statement: what comes last after it must be put there first.
    for edit in edits:
        if not (isinstance(edit, Insertion) and edit.after):
            edit.again(wanted)
    for edit in reversed(edits):
        if isinstance(edit, Insertion) and edit.after:
            edit.again(wanted)
    if ast.dump(tree) != ast.dump(wanted):
        raise Unsafe("the edited file would not be the intended program")
    return content


class _Editor(cst.CSTTransformer):
    def __init__(self, source: Source, edits: Sequence[Edit]) -> None:
        super().__init__()
        self._config = source.module.config_for_parsing
        self._edits: dict[int, list[Edit]] = {}
        for edit in edits:
            self._edits.setdefault(id(edit.node), []).append(edit)

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        updated_node = super().on_leave(original_node, updated_node)
        before: list[cst.CSTNode] = []
        after: list[cst.CSTNode] = []
        for edit in self._edits.get(id(original_node), ()):
            if isinstance(edit, Change):
                updated_node = edit.to(updated_node)
            else:
                (after if edit.after else before).extend(self._statements(edit))
        if not before and not after:
            return updated_node
        return cst.FlattenSentinel([*before, updated_node, *after])

    def _statements(self, edit: Insertion) -> list[cst.CSTNode]:
        made = list(cst.parse_module(edit.lines, self._config).body)
        made = [
            each.with_changes(leading_lines=_blank(2))
            if isinstance(each, (cst.FunctionDef, cst.ClassDef))
            else each
            for each in made
        ]
        if edit.below:
            last = made[-1]
            assert isinstance(last, (cst.FunctionDef, cst.ClassDef))
            block = last.body.with_changes(footer=_blank(edit.below))
            made[-1] = last.with_changes(body=block)
        return [*made]


def _blank(count: int) -> list[cst.EmptyLine]:
    return [cst.EmptyLine(indent=False) for _ in range(count)]


def call_ending(tree: ast.Module, end: Position) -> ast.Call:
    """The call whose closing bracket ends there: no two share it."""
    found = [
        each
        for each in ast.walk(tree)
        if isinstance(each, ast.Call) and (each.end_lineno, each.end_col_offset) == end
    ]
    if len(found) != 1:
        raise Unsafe("no single call was found there")
    return found[0]


def parsed_value(text: str) -> ast.expr:
    return _parsed(text)[0].value  # type: ignore[attr-defined, no-any-return]


def _parsed(lines: str) -> list[ast.stmt]:
    """Statements at positions that no statement of a file has."""
    return [ast.increment_lineno(each, 1_000_000_000) for each in ast.parse(lines).body]


def unified_diff(file: str, old: bytes, new: bytes) -> bytes:
    """From `a/file` to `b/file`."""
    name = file.encode()
    end = b"\t" if b" " in name else b""  # or the name would end at its first space
    return b"".join(
        line if line.endswith(b"\n") else line + b"\n" + _NO_NEWLINE
        for line in difflib.diff_bytes(
            difflib.unified_diff, _lines(old), _lines(new), b"a/" + name + end, b"b/" + name + end
        )
    )


def _lines(content: bytes) -> list[bytes]:
    r"""At `\n` alone: a diff knows no other line ends."""
    return re.findall(rb"[^\n]*\n|[^\n]+", content)
