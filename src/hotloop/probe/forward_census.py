"""What one forward really computes: the dtypes of its products and the attention that ran."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hotloop.probe.attach.operators import backend

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linear", "_addmm_activation", "mkldnn_linear")


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every operation that reaches the dispatcher, below autocast. Far too slow for a step."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dtypes: set[str] = set()
        self.attention: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name in _PRODUCTS:
            self.dtypes.add(str(args[-1].dtype).removeprefix("torch."))
        elif name.startswith("_scaled_dot_product_"):
            self.attention.add(f"sdpa:{backend(name)}")
            self.dtypes.add(str(args[0].dtype).removeprefix("torch."))
        elif name == "_softmax":
            self.attention.add("plain")
        return func(*args, **(kwargs or {}))


def watch_forward(forward: Callable[[], Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Run `forward` once, eagerly, and return `(product dtypes, attention)` as they were dispatched.

    Random states are put back, so that the run that follows is the same as without this. A softmax
    outside a fused attention is attention written out, or SDPA's math fallback: torch decomposes that
    one before it can be told apart.
    """
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices), _Watch() as seen:
        forward()
    return tuple(sorted(seen.dtypes)), tuple(sorted(seen.attention))
