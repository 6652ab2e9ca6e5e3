"""A change to one source file, made on a tree that keeps every byte.

Of the edited file a unified diff in bytes, for `git apply` and `patch -p1`; line ends and encodings as they are.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import libcst as cst

from hotloop.doctor.patch.source import Source, Unsafe

_NO_NEWLINE = b"\\ No newline at end of file\n"


@dataclass(frozen=True, slots=True)
class Change:
    """A replacement of one expression."""

    node: cst.CSTNode
    to: Callable[[Any], cst.BaseExpression]
    """Called with the node as earlier changes left it."""
    note: str = ""
    """What is otherwise than it was measured."""
    sets: Mapping[str, str] = field(default_factory=dict)
    """Keywords of a call, and their source."""


@dataclass(frozen=True, slots=True)
class Insertion:
    """Statements inserted before or after a statement of a block."""

    node: cst.CSTNode
    lines: str
    after: bool
    below: int = 0
    """Blank lines under the last of them, a function or class."""


Edit = Change | Insertion


def edited(source: Source, edits: Sequence[Edit]) -> bytes:
    """The file with these edits. Raises `Unsafe` where the result is no program."""
    try:
        changed = source.module.visit(_Editor(source, edits))
        assert isinstance(changed, cst.Module)
        ast.parse(changed.bytes)
    except (SyntaxError, ValueError, cst.CSTValidationError) as error:
        raise Unsafe(f"what it would become is no Python: {error}") from error
    return changed.bytes


def _refuse_another_value(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    for name in before.keys() & after.keys():
        if before[name] != after[name]:
            raise Unsafe(f"another fix sets `{name}={before[name]}` there")


class _Editor(cst.CSTTransformer):
    def __init__(self, source: Source, edits: Sequence[Edit]) -> None:
        super().__init__()
        self._config = source.module.config_for_parsing
        self._edits: dict[int, list[Edit]] = {}
        for edit in edits:
            held = self._edits.setdefault(id(edit.node), [])
            for before in held:
                if isinstance(edit, Change) and isinstance(before, Change):
                    _refuse_another_value(before.sets, edit.sets)
            held.append(edit)

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
