"""The same edits on Python's own tree: what the patched file must come to."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from hotloop.doctor.patch.source import Position, Unsafe


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
    """Replace the keywords of the call that ends there, or add them at its end. places: of those given without a name."""
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


def insert(tree: ast.Module, start: Position, lines: str, *, num_after: int) -> None:
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
