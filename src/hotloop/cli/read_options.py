"""The options of `hotloop prepare` that say what is read out of the sources: those of a config's `data.reading`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar, get_args, get_origin

import click
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from hotloop.core.data_config import ReadingConfig
from hotloop.core.errors import UsageError
from hotloop.data.sources import ReadOptions

F = TypeVar("F", bound=Callable[..., Any])

_METAVARS = {
    "text_field": "NAME",
    "separator": "STRING",
    "delimiter": "CHARACTER",
    "include": "PATTERN",
    "exclude": "PATTERN",
}
_RANGES = {"min_chars": click.IntRange(min=0), "max_chars": click.IntRange(min=1)}


def read_options(command: F) -> F:
    """Add the options; the command passes them on to `options_of`."""
    for name, field in reversed(ReadingConfig.model_fields.items()):
        command = _option(name, field)(command)
    return command


def _option(name: str, field: FieldInfo) -> Callable[[F], F]:
    default = field.get_default(call_default_factory=True)
    hints = (field.annotation, *get_args(field.annotation))
    choices = [each for hint in hints if get_origin(hint) is Literal for each in get_args(hint)]
    return click.option(
        f"--{name.replace('_', '-')}",
        type=click.Choice(choices) if choices else _RANGES.get(name),
        default=default or None,
        show_default=isinstance(default, str),
        is_flag=isinstance(default, bool),
        multiple=isinstance(default, list),
        metavar=_METAVARS.get(name),
        help=" ".join((field.description or "").replace("`", "").split()),
    )


def options_of(values: dict[str, Any]) -> ReadOptions:
    """`ReadOptions` from the keywords that a decorated command gets. Raises `UsageError`."""
    given = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if value is not None
    }
    try:
        return ReadOptions.of(ReadingConfig.model_validate(given))
    except ValidationError as error:
        first = error.errors()[0]
        option = "".join(f"--{part}: ".replace("_", "-") for part in first["loc"][:1])
        raise UsageError(option + first["msg"].removeprefix("Value error, ")) from error
