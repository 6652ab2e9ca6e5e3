"""torch without its compiler, in processes that have this directory on PYTHONPATH (fixture `without_compiler`).

`import torch` registers what the compiler asks of each operator and loads `torch.export`, and the first step of any
optimizer loads `torch._dynamo`, only to be left out of graphs: two of four seconds of CPU in each of the hundreds of processes of the
tests that compile nothing. Whatever else is asked of these modules fails.
"""

from __future__ import annotations

import gc
import importlib.util
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

COMPILER = ("torch._meta_registrations", "torch._dynamo", "torch.export")


class _Nothing:
    """Finds and loads modules that compile nothing."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name in COMPILER:
            return importlib.util.spec_from_loader(name, self)  # type: ignore[arg-type]
        if name == "torch" and "torch._C" not in sys.modules:
            gc.disable()  # the import makes many objects and no garbage
        return None

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        if module.__name__ == "torch._meta_registrations":  # nearly the last that torch imports
            core = sys.modules["torch"]._C
            if hasattr(core, "_set_generator_metaclass"):  # torch.Generator waits for it
                from torch._opaque_base import OpaqueBaseMeta

                core._set_generator_metaclass(OpaqueBaseMeta)
            gc.freeze()  # none of it is garbage later
            gc.enable()
            return

        def disable(function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
            return function

        module.disable = disable
        module.graph_break = lambda *_, **__: None
        # What DistributedDataParallel and the end of its process group ask.
        module.utils = SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer")
        module.trace_rules = SimpleNamespace(clear_lru_cache=lambda: None)


sys.meta_path.insert(0, _Nothing())  # type: ignore[arg-type]
