"""Arguments of the loader that trains, set where it is made, as an edit of that call would.

Which loader that is, the diagnosed run has seen; it is told to the process by a variable. No other loader changes.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hotloop.core.child import LOADER
from hotloop.probe import entry
from hotloop.probe.loader_place import LoaderPlaces, around_construction, is_named

if TYPE_CHECKING:
    from hotloop.optimizations.live_report import Report

Arguments = dict[str, Any]
Change = Callable[[Mapping[str, Any]], "Arguments | str"]
"""From all arguments of the loader to those that become others, or why none does, in words after its dataset's name."""


def set_arguments(change: Change, report: Report) -> None:
    """Have the loader that trains made with what `change` makes of its arguments."""
    seen = json.loads(os.environ.get(LOADER, "{}"))
    if not seen:
        report.refused("where the loader that trains is made was not seen in the first run")
        return
    places = LoaderPlaces(seen["workdir"])
    reached = False

    def make(original: Any, loader: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal reached
        if not is_named(*places.name(), seen["made"]):
            return original(loader, *args, **kwargs)
        reached = True
        given = inspect.signature(original).bind(loader, *args, **kwargs)
        given.apply_defaults()
        name = type(given.arguments["dataset"]).__name__
        changed = change(given.arguments)
        if isinstance(changed, str):
            report.refused(f"{name} {changed}")
        else:
            given.arguments.update(changed)
            values = ", ".join(f"{key}={value}" for key, value in changed.items())
            report.applied(f"the loader of {name} has {values}")
        return original(*given.args, **given.kwargs)

    def stepped(optimizer: Any) -> None:
        if not reached:
            report.refused(
                f"before the first step no loader was made at {seen['site']} the way it was in the first run"
            )

    around_construction(make)
    entry.after_step(stepped)
