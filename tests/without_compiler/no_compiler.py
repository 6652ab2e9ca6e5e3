"""torch without its compiler, in processes that have this directory on PYTHONPATH (fixture `without_compiler`).

The first step of any optimizer loads `torch._dynamo`, only to be left out of graphs: a second of CPU in each of the
hundred processes of the tests that compile nothing. Whatever else is asked of it fails.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Any


class _Nothing:
    """Finds and loads a module that compiles nothing."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return importlib.util.spec_from_loader(name, self) if name == "torch._dynamo" else None  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        def disable(function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
            return function

        module.disable = disable
        module.graph_break = lambda *_, **__: None


sys.meta_path.insert(0, _Nothing())  # type: ignore[arg-type]
