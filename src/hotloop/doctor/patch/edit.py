"""A change to one source file, made twice: on the tree that keeps every byte, and on Python's own tree.

Where the two do not come to the same program, the change is not made.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import libcst as cst

from hotloop.doctor.patch.source import Source, Unsafe


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
    lines: str
    after: bool
    again: Callable[[ast.Module], None]
    below: int = 0
    """Blank lines under the last of them, a function."""


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
            if isinstance(each, cst.FunctionDef)
            else each
            for each in made
        ]
        if edit.below:
            last = made[-1]
            assert isinstance(last, cst.FunctionDef)
            block = last.body.with_changes(footer=_blank(edit.below))
            made[-1] = last.with_changes(body=block)
        return [*made]


def _blank(count: int) -> list[cst.EmptyLine]:
    return [cst.EmptyLine(indent=False) for _ in range(count)]
