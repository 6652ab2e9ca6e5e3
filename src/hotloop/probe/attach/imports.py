"""Does something right after a module is imported, or now where it has been. Standard library alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType

Action = Callable[[ModuleType], None]


class _AfterImport:
    """Finds the modules it waits for as everyone else would, and adds an action to their loading."""

    def __init__(
        self, actions: dict[str, Action], failed: Callable[[str, Exception], None]
    ) -> None:
        self._actions = actions
        self._failed = failed

    def find_spec(
        self, name: str, path: object = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._actions:
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    self._extend(spec.loader, name)
                return spec
        return None

    def _extend(self, loader: Loader, name: str) -> None:
        try:
            load = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                # Not sooner: who only asks whether a module is there gets a loader, too.
                action = self._actions.pop(name, None)
                if action is not None:
                    self.act(name, action, module)

            loader.exec_module = exec_module  # type: ignore[method-assign]
        except Exception as error:  # noqa: BLE001 - a loader that cannot be extended loads as ever
            self._failed(name, error)

    def act(self, name: str, action: Action, module: ModuleType) -> None:
        try:
            action(module)
        except Exception as error:  # noqa: BLE001 - the script's import must succeed
            self._failed(name, error)


def after_import(actions: dict[str, Action], failed: Callable[[str, Exception], None]) -> None:
    """Do each action once its module is there. failed: told of an action that raised."""
    waiting = _AfterImport(dict(actions), failed)
    for name, action in actions.items():
        module = sys.modules.get(name)
        if module is not None:
            waiting._actions.pop(name)
            waiting.act(name, action, module)
    sys.meta_path.insert(0, waiting)
