"""A change to one source file, made twice: on the tree that keeps every byte, and on Python's own tree.

Where the two do not come to the same program, the change is not made.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import libcst as cst

from hotloop.doctor.patch.source import Position, Source, Unsafe


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
    """Blank lines under the last of them, a function or class."""


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


def set_keywords(
    tree: ast.Module, end: Position, values: Mapping[str, str], places: Mapping[str, int]
) -> None:
    """Set arguments of the call whose closing bracket is at `end`, in `tree` itself: the `ast` twin of `keywords_edit`.

    values: keyword -> Python source; one that is not there is added. places: keyword -> position, where given by it.
    """
    call = call_ending(tree, end)
    for name, text in values.items():
        value = _parsed(text)[0].value  # type: ignore[attr-defined]
        held = [each for each in call.keywords if each.arg == name]
        if name in places:
            call.args[places[name]] = value
        elif held:
            held[0].value = value
        else:
            call.keywords.append(ast.keyword(name, value))


def call_through(tree: ast.Module, end: Position, name: str) -> None:
    """`model(x)` becomes `name(model, x)`."""
    call = call_ending(tree, end)
    call.args.insert(0, call.func)
    call.func = ast.Name(name, ast.Load())


def insert_lines(tree: ast.Module, start: Position, lines: str, *, num_after: int) -> None:
    """Before the statement that starts there, or after that one and `num_after - 1` more of its line."""
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if not isinstance(block, list):
                continue
            for place, each in enumerate(block):
                if (each.lineno, each.col_offset) == start:
                    block[place + num_after : place + num_after] = _parsed(lines)
                    return
    raise Unsafe("no statement was found there")


def _parsed(lines: str) -> list[ast.stmt]:
    """Statements at positions that no statement of a file has."""
    return [ast.increment_lineno(each, 1_000_000_000) for each in ast.parse(lines).body]
