"""Lines that belong right after imports of a file, and whether `torch` is torch there."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import libcst as cst

from hotloop.doctor.patch.edit import Insertion
from hotloop.doctor.patch.source import Source, Unsafe, bound_by, code_of
from hotloop.optimizations.source_edit import SetUp


def set_up_edit(source: Source, wanted: SetUp, workdir: Path) -> Insertion:
    """Switches that are set once: lines in the main script, right after torch was imported. Raises `Unsafe`."""
    for word in wanted.clashes:
        if word in source.module.code:
            raise Unsafe(f"the script speaks of `{word}` itself")
    if wanted.needs_torch:
        refuse_another_torch(source)
    first = next((each for each in source.module.body if binds_torch(each)), None)
    if first is None and not wanted.needs_torch:
        first = next((each for each in source.module.body if is_import(each)), None)
    if first is None:
        raise Unsafe("torch is not imported at the top of the main script under its own name")
    last = _end_of_imports(source, first, workdir)
    lines = "".join(f"{line}\n" for line in wanted.lines)
    return Insertion(last, lines, after=True)


def binds_torch(statement: cst.CSTNode) -> bool:
    """Whether it is an import that has `torch` be torch from then on."""
    names = [
        each for node in _parts(statement) if isinstance(node, ast.Import) for each in node.names
    ]
    return any(_is_torch(name) for name in names)


def _is_torch(imported: ast.alias) -> bool:
    if imported.asname is not None:
        return imported.name == "torch" == imported.asname
    return imported.name.split(".")[0] == "torch"


def refuse_another_torch(source: Source) -> None:
    """Raises `Unsafe` where something else is called `torch` anywhere in the file."""
    for node in ast.walk(source.tree()):
        if isinstance(node, ast.Import):
            node = ast.Import([each for each in node.names if not _is_torch(each)])
        if "torch" in bound_by(node):
            raise Unsafe("something else is called `torch` in this file")


def is_import(statement: cst.CSTNode) -> bool:
    parts = _parts(statement)
    return bool(parts) and all(isinstance(each, (ast.Import, ast.ImportFrom)) for each in parts)


def _parts(statement: cst.CSTNode) -> list[ast.stmt]:
    """Those of one line; none of a compound statement."""
    if not isinstance(statement, cst.SimpleStatementLine):
        return []
    return ast.parse(code_of(statement.with_changes(leading_lines=[]))).body


def _end_of_imports(source: Source, statement: cst.CSTNode, workdir: Path) -> cst.CSTNode:
    """The last of the imports that follow on `statement` and are of installed modules.

    What the user's own modules do when they are imported is not known: lines must come before them.
    """
    block = next(iter(source.outward(statement)), None)
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


def _is_installed(statement: cst.CSTNode, source: Source, workdir: Path) -> bool:
    roots = []
    for part in _parts(statement):
        if isinstance(part, ast.Import):
            roots += [each.name.split(".")[0] for each in part.names]
        elif isinstance(part, ast.ImportFrom) and not part.level and part.module is not None:
            roots.append(part.module.split(".")[0])
        else:
            return False
    own = (workdir, (workdir / source.file).parent)
    return all(
        _found_installed(root)
        and not any((at / root).exists() or (at / f"{root}.py").exists() for at in own)
        for root in roots
    )


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
