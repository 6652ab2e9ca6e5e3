"""From a YAML file and `key=value` flags to a `RunConfig`, with the origin of every value."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from hotloop.core.config import RunConfig, known_keys, set_dotted, without_effect
from hotloop.core.errors import UsageError
from hotloop.core.files import write_atomically

MAX_CONFIG_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Settings:
    """A `RunConfig` and where each of its values came from."""

    config: RunConfig
    origins: Mapping[str, str] = field(default_factory=dict)
    """Dotted key to `default`, `FILE:LINE`, `flag`, `tuned` or `detected: why`."""

    def with_values(self, changes: Mapping[str, Any], *, origin: str) -> Settings:
        """The same settings with dotted keys changed."""
        return Settings(
            self.config.replaced(changes), {**self.origins, **dict.fromkeys(changes, origin)}
        )

    def origin(self, key: str) -> str:
        return self.origins.get(key, "default")


class _Loader(yaml.SafeLoader):
    """Safe loading that also reads `1e-3` as a number, as YAML 1.2 does."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def load_settings(path: Path, overrides: Sequence[str] = ()) -> Settings:
    """Read a config file and apply `key=value` flags.

    Raises `UsageError` naming the file and line of the first thing wrong.
    """
    try:
        if path.is_file() and path.stat().st_size > MAX_CONFIG_BYTES:
            raise UsageError("a config file this large is a mistake", where=str(path))
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UsageError(
            "no such config file", where=str(path), do="see configs/ for the ones that are shipped"
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError("the config is not UTF-8 text", where=str(path)) from error
    except OSError as error:
        raise UsageError(f"cannot read the config: {error.strerror}", where=str(path)) from error
    values, lines = _parse(text, path)
    if isinstance(values.get("data"), list):  # short for `data: {mix: [...]}`
        values["data"] = {"mix": values["data"]}
        lines = {"data.mix" if key == "data" else key: line for key, line in lines.items()}
    origins: dict[str, str] = dict(values.pop("origins", None) or {})
    stored = values.pop("digest", None) is not None  # a run's own config.yaml: every key is there
    where = {key: f"{path}:{line}" for key, line in lines.items()}
    known = known_keys()
    for key, line in lines.items():
        section = key.split(".")[0]
        if key not in known and section not in ("origins", "digest"):
            _refuse_unknown(key, known, f"{path}:{line}")
        if key in known and not stored:
            origins[key] = f"{path}:{line}"
    for override in overrides:
        key, value = _parse_override(override, known)
        set_dotted(values, key, value)
        origins[key] = "flag"
        where[key] = f"{key}={value}"
    _prefer_flagged_source(values, origins)
    try:
        config = RunConfig.model_validate(values)
    except ValidationError as error:
        raise _explain(error, path, where) from error
    # What a flag turns off leaves keys of the file idle; only those given together can contradict.
    flagged = [key for key, origin in origins.items() if origin == "flag"]
    together = origins if not overrides else flagged
    if not stored and (idle := without_effect(config, together)) is not None:
        raise UsageError(f"`{idle[0]}` has no effect here", where=where[idle[0]], do=idle[1])
    return Settings(config, origins)


def store_settings(settings: Settings, path: Path) -> None:
    """Write `config.yaml`: values, origins and digest. `load_settings` reads it back."""
    document = {
        **settings.config.model_dump(mode="json"),
        "origins": dict(settings.origins),
        "digest": settings.config.digest(),
    }
    write_atomically(path, yaml.safe_dump(document, sort_keys=False).encode())


def _parse(text: str, path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """The nested values, and the line of every leaf key (1-based)."""
    lines: dict[str, int] = {}
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return {}, {}
            if not isinstance(node, yaml.MappingNode):
                raise UsageError("a config is a mapping of keys to values", where=f"{path}:1")
            _collect_lines(node, "", lines, path)
            return loader.construct_document(node), lines
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise UsageError(f"not valid YAML: {problem}", where=f"{path}{line}") from error


def _collect_lines(node: yaml.MappingNode, prefix: str, lines: dict[str, int], path: Path) -> None:
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise UsageError("a key must be a word", where=f"{path}:{line}")
        key = f"{prefix}{key_node.value}"
        if key in lines or any(known.startswith(f"{key}.") for known in lines):
            raise UsageError(f"key `{key}` is given twice", where=f"{path}:{line}")
        if isinstance(value_node, yaml.MappingNode):
            _collect_lines(value_node, f"{key}.", lines, path)
        else:
            lines[key] = line


def _parse_override(override: str, known: Collection[str]) -> tuple[str, Any]:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise UsageError(f"expected key=value, got {override!r}", do="for example train.steps=100")
    if key not in known:
        _refuse_unknown(key, known, override)
    try:
        return key, yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise UsageError(f"cannot read the value of {override!r}") from error


def _prefer_flagged_source(values: dict[str, Any], origins: dict[str, str]) -> None:
    """A flag for one kind of data takes the place of the file's other kind."""
    data = values.get("data")
    if not isinstance(data, dict):
        return
    for chosen, replaced in (
        ("prepared", ("source", "tokenizer", "end_of_text", "mix", "reading")),
        ("source", ("prepared", "mix")),
        ("mix", ("source", "prepared", "reading")),
    ):
        if origins.get(f"data.{chosen}") == "flag" and data.get(chosen) is not None:
            for key in replaced:
                given = [name for name in origins if f"{name}.".startswith(f"data.{key}.")]
                if not any(origins[name] == "flag" for name in given):
                    data.pop(key, None)
                    for name in given:
                        del origins[name]


def _refuse_unknown(key: str, known: Collection[str], where: str) -> None:
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.8)
    if not close:  # the right name in the wrong section
        last = key.rsplit(".", 1)[-1]
        close = [name for name in known if name.rsplit(".", 1)[-1] == last]
    hint = f"did you mean `{close[0]}`?" if close else "`hotloop train --keys` lists every key"
    raise UsageError(f"unknown key `{key}`", where=where, do=hint)


def _explain(error: ValidationError, path: Path, where: Mapping[str, str]) -> UsageError:
    first = error.errors()[0]
    # Union members add a trailing location such as `literal['auto']`: the key is what is known.
    parts = [str(part) for part in first["loc"]]
    known = known_keys()
    key = ".".join(parts)
    while parts and key not in known and key not in {name.rsplit(".", 1)[0] for name in known}:
        parts.pop()
        key = ".".join(parts)
    place = where.get(key) or next(
        (place for name, place in where.items() if key and name.startswith(f"{key}.")), str(path)
    )
    inner = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden" and key != inner:  # within a list: no line tells it
        return UsageError(f"unknown key `{inner}`", where=place)
    if key == "data.mix":  # says which corpus, and which of its keys
        key = inner
    message = first["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    given = first.get("input")
    if first["type"] == "missing":
        return UsageError(f"`{key}` is missing", where=place)
    alternatives = {
        item["msg"].removeprefix("Input should be ")
        for item in error.errors()
        if item["msg"].startswith("Input should be ")
        and ".".join(map(str, item["loc"])).startswith(key)
    }
    if len(alternatives) > 1:
        message = "input should be " + " or ".join(sorted(alternatives))
    if first["type"] == "value_error":
        return UsageError(f"`{key}`: {message}" if key else message, where=place)
    return UsageError(
        f"`{key}`: {message}, not {given!r}",
        where=place,
        do=known[key].summary or None if key in known else None,
    )
