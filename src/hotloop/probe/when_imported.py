"""Something done to a module when somebody's script imports it. Standard library alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class WhenImported:
    """Finds some modules as everyone else would, and does something at the end of their loading."""

    def __init__(self, actions: dict[str, Callable[[ModuleType], None]]) -> None:
        self._actions = actions
        self._searching = False

    def find_spec(
        self, name: str, path: Any = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # Another finder like this one asks all others, and so this one again.
        if self._searching or name not in self._actions:
            return None
        self._searching = True
        try:
            for finder in [each for each in sys.meta_path if each is not self]:
                find = getattr(finder, "find_spec", None)
                spec: ModuleSpec | None = find(name, path, target) if find else None
                if spec is not None:
                    self._extend(spec.loader, name)
                    return spec
        finally:
            self._searching = False
        return None

    def _extend(self, loader: Any, name: str) -> None:
        load = getattr(loader, "exec_module", None)
        if load is None:
            return

        def exec_module(module: ModuleType) -> None:
            load(module)
            _guarded(self._actions[name], module)

        loader.exec_module = exec_module


def when_imported(actions: dict[str, Callable[[ModuleType], None]]) -> None:
    """Do each when its module is imported, or now where it was."""
    late = {}
    for name, action in actions.items():
        if name in sys.modules:
            _guarded(action, sys.modules[name])
        else:
            late[name] = action
    sys.meta_path.insert(0, WhenImported(late))


def _guarded(action: Callable[[ModuleType], None], module: ModuleType) -> None:
    try:
        action(module)
    except Exception:  # noqa: BLE001 - the script must go on
        pass
