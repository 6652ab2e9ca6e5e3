"""Lines that belong right after imports of a file, and whether `torch` is torch there."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import libcst as cst

from hotloop.doctor.patch.edit import Insertion, insert_lines
from hotloop.doctor.patch.source import Source, Unsafe
from hotloop.optimizations.source_edit import SetUp


def set_up_edit(source: Source, wanted: SetUp, workdir: Path) -> Insertion:
    """Switches that are set once: lines in the main script, right after torch was imported. Raises `Unsafe`."""
    for word in wanted.clashes:
        if word in source.module.code:
            raise Unsafe(f"the script speaks of `{word}` itself")
    refuse_another_torch(source)
    first = next((each for each in source.module.body if binds_torch(each)), None)
    if first is None:
        raise Unsafe("torch is not imported at the top of the main script under its own name")
    last = _end_of_imports(source, first, workdir)
    return inserted_after(source, last, "".join(f"{line}\n" for line in wanted.lines))


def binds_torch(statement: cst.CSTNode) -> bool:
    """Whether it is an import that has `torch` be torch from then on."""
    return isinstance(statement, cst.SimpleStatementLine) and any(
        _binds_torch(small) for small in statement.body
    )


def refuse_another_torch(source: Source) -> None:
    """Raises `Unsafe` where something else is called `torch` anywhere in the file."""
    for node in ast.walk(source.tree()):
        names: list[str | None] = []
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names = [node.id]
        elif isinstance(node, ast.arg):
            names = [node.arg]
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names = [node.name]
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [each.asname for each in node.names if each.name != "torch"]
            if isinstance(node, ast.ImportFrom):
                names += [each.name for each in node.names if each.asname is None]
        if "torch" in names:
            raise Unsafe("something else is called `torch` in this file")


def is_import(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and all(
        isinstance(small, (cst.Import, cst.ImportFrom)) for small in statement.body
    )


def _end_of_imports(source: Source, statement: cst.CSTNode, workdir: Path) -> cst.CSTNode:
    """The last of the imports that follow on `statement` and are of installed modules.

    What the user's own modules do when they are imported is not known: lines must come before them.
    """
    block = source.parent(statement)
    if not is_import(statement) or not isinstance(block, (cst.Module, cst.IndentedBlock)):
        return statement
    last = statement
    following = list(block.body)
    places = [place for place, each in enumerate(following) if each is statement]
    for each in following[places[0] + 1 :]:
        if not is_import(each) or not _is_installed(each, source, workdir):
            break
        last = each
    return last


def inserted_after(
    source: Source, statement: cst.CSTNode, lines: str, *, below: int = 0
) -> Insertion:
    """Lines below a statement, in its block."""
    start = source.start(statement)
    num = len(statement.body) if isinstance(statement, cst.SimpleStatementLine) else 1

    def redo(tree: ast.Module) -> None:
        insert_lines(tree, start, lines, num_after=num)

    return Insertion(statement, lines, True, redo, below)


def inserted_before(source: Source, statement: cst.CSTNode, lines: str) -> Insertion:
    """Lines above a statement, in its block."""
    start = source.start(statement)

    def redo(tree: ast.Module) -> None:
        insert_lines(tree, start, lines, num_after=0)

    return Insertion(statement, lines, False, redo)


def _binds_torch(small: cst.CSTNode) -> bool:
    if not isinstance(small, cst.Import):
        return False
    for each in small.names:
        name = cst.Module([]).code_for_node(each.name)
        if each.asname is None and name.split(".")[0] == "torch":
            return True
        if each.asname is not None and name == "torch":
            held = each.asname.name
            if isinstance(held, cst.Name) and held.value == "torch":
                return True
    return False


def _is_installed(statement: cst.CSTNode, source: Source, workdir: Path) -> bool:
    assert isinstance(statement, cst.SimpleStatementLine)
    for small in statement.body:
        if isinstance(small, cst.Import):
            modules = [cst.Module([]).code_for_node(each.name) for each in small.names]
        elif isinstance(small, cst.ImportFrom) and not small.relative and small.module is not None:
            modules = [cst.Module([]).code_for_node(small.module)]
        else:
            return False
        for module in modules:
            root = module.split(".")[0]
            for place in (workdir, (workdir / source.file).parent):
                if (place / root).exists() or (place / f"{root}.py").exists():
                    return False
            if not _found_installed(root):
                return False
    return True


def _found_installed(root: str) -> bool:
    """In the standard library, or where packages are installed."""
    try:
        spec = importlib.util.find_spec(root)
    except (ImportError, ValueError):
        return False
    if spec is None:
        return False
    origin = spec.origin or ""
    return origin in ("built-in", "frozen") or "site-packages" in origin or "/lib/python" in origin
