"""From a YAML file and `key=value` flags to a `RunConfig`, with the origin of every value."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, overload

import yaml
from pydantic import ValidationError
from typing_extensions import TypeVar

from hotloop.core.config import Key, LoopConfig, RunConfig, known_keys, set_dotted
from hotloop.core.errors import UsageError
from hotloop.core.files import write_atomically
from hotloop.core.idle_settings import without_effect
from hotloop.core.untrusted import read_bytes
from hotloop.core.yaml_text import cut, read_yaml, read_yaml_value, shown

MAX_CONFIG_BYTES = 1 << 18
LIST_KEYS = "`hotloop train --keys` lists every key with its default"


C = TypeVar("C", bound=LoopConfig, default=RunConfig)


@dataclass(frozen=True, slots=True)
class Settings(Generic[C]):
    """A config and where each of its values came from."""

    config: C
    origins: Mapping[str, str] = field(default_factory=dict)
    """Dotted key to `default`, `FILE:LINE`, `flag`, `tuned` or `detected: why`."""

    def with_values(self, changes: Mapping[str, Any], *, origin: str) -> Settings[C]:
        """The same settings with dotted keys changed."""
        return Settings(
            self.config.replaced(changes), {**self.origins, **dict.fromkeys(changes, origin)}
        )

    def with_words(self, words: Sequence[str]) -> Settings[C]:
        """The same settings with flags, `key=value`. Raises `UsageError`, or another `ValueError` for values that it cannot have."""
        known = known_keys(type(self.config))
        return self.with_values(dict(_parse_override(word, known) for word in words), origin="flag")

    def origin(self, key: str) -> str:
        return self.origins.get(key, "default")

    def place(self, key: str) -> str | None:
        """The place of a value in an error message: `FILE:LINE`, the flag itself, or nowhere."""
        origin = self.origins.get(key)
        if origin == "flag":
            return f"{key}={json.dumps(self.config.flat()[key])}".replace('"', "")
        return origin


@overload
def load_settings(path: Path, overrides: Sequence[str] = ()) -> Settings[RunConfig]: ...


@overload
def load_settings(
    path: Path | None, overrides: Sequence[str] = (), *, kind: type[C]
) -> Settings[C]: ...


def load_settings(
    path: Path | None, overrides: Sequence[str] = (), *, kind: type[Any] = RunConfig
) -> Settings[Any]:
    """Read a config file, or none, and apply `key=value` flags.

    Raises `UsageError` naming the file and line of the first thing wrong.
    """
    values, lines = read_yaml(_text_of(path), str(path)) if path is not None else ({}, {})
    path = path or Path("the command line")
    if "task" in values and kind is RunConfig:
        what = "this is the config of a fine-tuning, which has another model and other data"
        do = (
            "this needs one that trains on text; `hotloop train CONFIG --profile test` rehearses a fine-tuning in "
            "minutes, its speed and memory shown by `hotloop report`, and `hotloop tune CONFIG` makes it faster"
        )
        raise UsageError(what, where=f"{path}:{lines['task']}", do=do)
    if isinstance(values.get("data"), list):  # short for `data: {mix: [...]}`
        values["data"] = {"mix": values["data"]}
        lines = {"data.mix" if key == "data" else key: line for key, line in lines.items()}
    known = known_keys(kind)
    where = {key: f"{path}:{line}" for key, line in lines.items()}
    origins = _stored_origins(values, where)
    stored = values.pop("digest", None) is not None  # a run's own config.yaml: every key is there
    for key, place in where.items():
        if key in _sections(known) and _drop_empty(values, key):
            continue  # all that stood below it is commented out
        if key not in known and key.split(".")[0] not in ("origins", "digest"):
            if any(key.startswith(f"{setting}.") for setting in known):
                continue  # within the value of a setting, which is a mapping
            _refuse_unknown(key, known, place)
        if key in known and not stored:
            origins[key] = place
    for override in overrides:
        key, value = _parse_override(override, known)
        set_dotted(values, key, value)
        origins[key] = "flag"
        where[key] = cut(override)
    _prefer_flagged_source(values, origins)
    try:
        config = kind.model_validate(values)
    except ValidationError as error:
        raise _explain(error, path, where, known) from error
    # What a flag turns off leaves keys of the file idle; only those given together can contradict.
    flagged = [key for key, origin in origins.items() if origin == "flag"]
    together = origins if not overrides else flagged
    if not stored and (idle := without_effect(config, together)) is not None:
        raise UsageError(f"`{idle[0]}` has no effect here", where=where[idle[0]], do=idle[1])
    return Settings(config, origins)


def load_stored(path: Path, overrides: Sequence[str] = ()) -> Settings[LoopConfig]:
    """Of a run of any kind. Raises like `load_settings`."""
    return load_settings(path, overrides, kind=kind_of(task_of(path)))


def kind_of(task: str | None) -> type[LoopConfig]:
    """The kind of config that a training for a task has."""
    from hotloop.core.causal_config import CAUSAL_TASKS, CausalConfig
    from hotloop.core.finetune_config import FinetuneConfig
    from hotloop.core.module_config import ModuleConfig

    kinds: dict[str | None, type[LoopConfig]] = dict.fromkeys(CAUSAL_TASKS, CausalConfig)
    kinds |= {None: RunConfig, "module": ModuleConfig}
    return kinds.get(task, FinetuneConfig)


def task_of(path: Path) -> str | None:
    """What the config of a fine-tuning says it is; `None` for any other. Raises `UsageError` where it cannot be read."""
    found = read_yaml(_text_of(path), str(path))[0].get("task")
    return None if found is None else str(found)


def store_settings(settings: Settings[Any], path: Path) -> None:
    """Write `config.yaml`: values, origins and digest. `load_settings` reads it back."""
    document = {
        **settings.config.model_dump(mode="json"),
        "origins": dict(settings.origins),
        "digest": settings.config.digest(),
    }
    write_atomically(path, yaml.safe_dump(document, sort_keys=False).encode())


def is_stored(path: Path) -> bool:
    """Whether `store_settings` wrote this config. Raises `UsageError` where it cannot be read."""
    return any(line.startswith("digest: ") for line in _text_of(path).splitlines())


def _text_of(path: Path) -> str:
    try:
        return read_bytes(path, limit_bytes=MAX_CONFIG_BYTES).decode("utf-8")
    except FileNotFoundError as error:
        do = "see configs/ for the ones that are shipped"
        raise UsageError("no such config file", where=str(path), do=do) from error
    except UnicodeDecodeError as error:
        raise UsageError("the config is not UTF-8 text", where=str(path)) from error
    except OSError as error:
        raise UsageError(f"cannot read the config: {error.strerror}", where=str(path)) from error


def _stored_origins(values: dict[str, Any], where: Mapping[str, str]) -> dict[str, str]:
    """What a run's own config.yaml says of the origins of its values; taken out of `values`."""
    origins = values.pop("origins", None) or {}
    if not isinstance(origins, dict) or not all(
        isinstance(text, str) for pair in origins.items() for text in pair
    ):
        place = next(place for key, place in where.items() if key.split(".")[0] == "origins")
        what = "`origins` must say in words where each value came from"
        raise UsageError(what, where=place, do="remove it: only the config.yaml of a run has it")
    return origins


def _sections(known: Collection[str]) -> set[str]:
    """`train`, `data.reading`, ...: the keys below which others stand."""
    return {key.rpartition(".")[0] for key in known if "." in key}


def _drop_empty(values: dict[str, Any], section: str) -> bool:
    """True if there is nothing in the section; it is then left out of `values`."""
    *parents, last = section.split(".")
    for parent in parents:
        values = values[parent]
    if values[last] is None:
        del values[last]
        return True
    return False


def _parse_override(override: str, known: Collection[str]) -> tuple[str, Any]:
    key, equals, text = override.partition("=")
    if not equals or not key:
        do = "for example train.steps=100"
        raise UsageError(f"expected key=value, got {shown(override)}", do=do)
    if key not in known:
        _refuse_unknown(key, known, cut(override))
    return key, read_yaml_value(text, cut(override))


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
    if key in _sections(known):
        example = next(name for name in known if name.startswith(f"{key}."))
        name = example.removeprefix(f"{key}.")
        do = f"set its keys: `{key}: {{{name}: ...}}` in a file, `{example}=...` as a flag"
        raise UsageError(f"`{key}` is a section, not a setting", where=where, do=do)
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.8)
    if not close:  # the right name in the wrong section
        last = key.rsplit(".", 1)[-1]
        close = [name for name in known if name.rsplit(".", 1)[-1] == last]
    hint = f"did you mean `{close[0]}`?" if close else LIST_KEYS
    raise UsageError(f"unknown key `{cut(key)}`", where=where, do=hint)


def _explain(
    error: ValidationError, path: Path, where: Mapping[str, str], known: Mapping[str, Key]
) -> UsageError:
    first = error.errors()[0]
    # Union members add a trailing location such as `literal['auto']`: the key is what is known.
    parts = [str(part) for part in first["loc"]]
    sections = _sections(known)
    key = ".".join(parts)
    while parts and key not in known and key not in sections:
        parts.pop()
        key = ".".join(parts)
    place = where.get(key) or next(
        (place for name, place in where.items() if key and name.startswith(f"{key}.")), str(path)
    )
    inner = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden" and key != inner:  # within a list: no line tells it
        return UsageError(f"unknown key `{cut(inner)}`", where=place)
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
        return UsageError(
            f"`{key}`: {message}" if key else message, where=_meant(key, message, where, place)
        )
    do = known[key].summary or LIST_KEYS if key in known else LIST_KEYS
    return UsageError(f"`{key}`: {message}, not {shown(given)}", where=place, do=do)


def _meant(section: str, message: str, where: Mapping[str, str], place: str) -> str:
    """The place of the key that a message about a whole section names: by a flag, or else the first in it."""
    named = {key: message.find(f"`{key.removeprefix(f'{section}.')}`") for key in where}
    found = sorted((at, key) for key, at in named.items() if at >= 0 and key.startswith(section))
    spots = [(where[key], key) for _, key in found]
    flags = [spot for spot, key in spots if spot.startswith(f"{key}=")]
    return (flags or [spot for spot, _ in spots] or [place])[0]
