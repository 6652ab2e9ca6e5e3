"""Reads the YAML of a config: plain values, bounded in depth, each with the line that it stands on."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError

from hotloop.core.errors import UsageError

MAX_DEPTH = 20
"""Mappings and lists within each other."""
MAX_INTEGER = 1 << 64
MAX_SHOWN = 80
"""Characters of a given text or value that an error message repeats."""
SIGNS = "|,>-:?&*!%@#`"
"""Each by itself is itself in a flag: as YAML it begins what is not there."""
NAMES_BELOW = ("origins.", "train.class_weights.")
"""Sections whose keys are not settings, and may have dots in them."""

T = TypeVar("T")


def read_yaml(text: str, where: str) -> tuple[dict[str, Any], dict[str, int]]:
    """The nested values of a config file, and the line (from 1) of every leaf key. Raises `UsageError`."""
    lines: dict[str, int] = {}

    def construct(loader: _Loader) -> dict[str, Any]:
        node = loader.get_single_node()
        if node is None:
            return {}
        if not isinstance(node, yaml.MappingNode):
            raise UsageError("a config is a mapping of keys to values", where=f"{where}:1")
        _collect_lines(node, "", lines, where)
        values: dict[str, Any] = loader.construct_document(node)
        return values

    return _loaded(text, where, construct), lines


def read_yaml_value(text: str, where: str) -> Any:
    """The value of a `key=value` flag. Raises `UsageError`."""
    if len(text) == 1 and text in SIGNS:
        return text
    return _loaded(text, where, lambda loader: loader.get_single_data(), numbered=False)


def shown(value: Any) -> str:
    """A value for an error message, cut where it is long."""
    return cut(repr(value))


def cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


class _Loader(yaml.SafeLoader):
    """Safe loading that reads `1e-3` as a number and `2001-12-15` as text, as YAML 1.2 does.

    An alias is refused: a few lines of them stand for more values than any memory holds.
    """

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        if self.check_event(yaml.AliasEvent):
            raise ComposerError(None, None, "an alias is not read here; write the value out", mark)
        if self.depth == MAX_DEPTH:
            raise ComposerError(None, None, "nested too deeply", mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        """Keys are words as they are written: a label may be `0`, `1.0`, `no` or `null`."""
        node = super().compose_mapping_node(anchor)
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                key.tag = "tag:yaml.org,2002:str"
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep=deep)
            if isinstance(value, int) and abs(value) > MAX_INTEGER:
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            problem = f"{shown(node.value)} is no {node.tag.rpartition(':')[2]} that can be read"
            raise ConstructorError(None, None, problem, node.start_mark) from error
        return value


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def _loaded(text: str, where: str, use: Callable[[_Loader], T], *, numbered: bool = True) -> T:
    try:
        loader = _Loader(text)
        try:
            return use(loader)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark and numbered else ""
        problem = getattr(error, "problem", None) or str(error)
        raise UsageError(f"not valid YAML: {problem}", where=f"{where}{line}") from error


def _collect_lines(node: yaml.MappingNode, prefix: str, lines: dict[str, int], where: str) -> None:
    names = set()
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise UsageError("a key must be a word", where=f"{where}:{line}")
        key = f"{prefix}{key_node.value}"
        if key_node.value in names:
            raise UsageError(f"key `{key}` is given twice", where=f"{where}:{line}")
        names.add(key_node.value)
        if "." in key_node.value and prefix not in NAMES_BELOW:
            section, _, name = key_node.value.rpartition(".")
            raise UsageError(
                f"`{shown(key)[1:-1]}` is written with a dot, which only flags are",
                where=f"{where}:{line}",
                do=f"write `{name}` indented below `{section.replace('.', '`, `')}:`"[:200],
            )
        if isinstance(value_node, yaml.MappingNode):
            _collect_lines(value_node, f"{key}.", lines, where)
        else:
            lines[key] = line
