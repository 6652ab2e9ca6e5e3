"""What is imported: where from, and something to do right after. Standard library alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

Action = Callable[["ModuleType"], None]
Failed = Callable[[str, Exception], None]


class AfterImport:
    """Finds the modules it waits for as everyone else would, and adds an action to their loading."""

    def __init__(self, actions: dict[str, Action], failed: Failed) -> None:
        self._actions = actions
        self._failed = failed
        self._searched: set[str] = set()

    def find_spec(
        self, name: str, path: Any = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # Another finder like this one asks all others, and so this one again.
        if name not in self._actions or name in self._searched:
            return None
        self._searched.add(name)
        try:
            for finder in [each for each in sys.meta_path if each is not self]:
                find = getattr(finder, "find_spec", None)
                spec: ModuleSpec | None = find(name, path, target) if find else None
                if spec is not None:
                    self._extend(spec.loader, name)
                    return spec
        finally:
            self._searched.discard(name)
        return None

    def _extend(self, loader: Any, name: str) -> None:
        load = getattr(loader, "exec_module", None)
        if load is None:
            return

        def exec_module(module: ModuleType) -> None:
            load(module)
            # Not sooner: who only asks whether a module is there gets a loader, too.
            action = self._actions.pop(name, None)
            if action is not None:
                self.act(name, action, module)

        try:
            loader.exec_module = exec_module
        except Exception as error:  # noqa: BLE001 - a loader that cannot be extended loads as before
            self._failed(name, error)

    def act(self, name: str, action: Action, module: ModuleType) -> None:
        try:
            action(module)
        except Exception as error:  # noqa: BLE001 - the script's import must succeed
            self._failed(name, error)


def after_import(actions: dict[str, Action], failed: Failed = lambda _name, _error: None) -> None:
    """Do each action once its module is there. failed: called where an action raised."""
    waiting = AfterImport(dict(actions), failed)
    for name, action in actions.items():
        module = sys.modules.get(name)
        if module is not None:
            waiting._actions.pop(name)
            waiting.act(name, action, module)
    sys.meta_path.insert(0, waiting)


def source_file(module: Any) -> str | None:
    """Where it was loaded from; `None` for what no file holds, such as `torch.ops`."""
    spec = getattr(module, "__dict__", {}).get("__spec__")
    return spec.origin if spec is not None and spec.has_location else None
