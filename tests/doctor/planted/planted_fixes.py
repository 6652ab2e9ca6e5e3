"""Bad fixes, each with one fault; a doctor that keeps one of them is broken."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hotloop.optimizations.optimization import Optimization


def _other_order(value: Any, report: Any) -> None:
    """Deals the batches otherwise, and claims to have changed nothing."""
    import torch

    sampler = torch.utils.data.RandomSampler
    original = sampler.__iter__
    sampler.__iter__ = lambda self: iter(list(original(self))[::-1])
    report.applied("RandomSampler")


def _no_clipping(value: Any, report: Any) -> None:
    import torch

    torch.nn.utils.clip_grad_norm_ = lambda *args, **kwargs: torch.tensor(0.0)
    report.applied("clip_grad_norm_")


def _nothing(value: Any, report: Any) -> None:
    pass


def _crashes(value: Any, report: Any) -> None:
    import torch

    def step(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("the planted fix broke this optimizer")

    torch.optim.AdamW.step = step
    report.applied("AdamW")


def _hangs(value: Any, report: Any) -> None:
    import torch

    torch.optim.AdamW.step = lambda *args, **kwargs: time.sleep(3600)
    report.applied("AdamW")


def _writes_outside(value: Any, report: Any) -> None:
    with Path(os.environ["PLANTED_OUTSIDE"]).open("w") as file:
        file.write("overwritten")
    report.applied("a file of the user")


def _claims(value: Any, report: Any) -> None:
    """Changes nothing, and says that it did."""
    report.applied("nothing")


def _fast(value: Any, report: Any) -> None:
    """A real cure, of the sleep that the script is planted with."""
    script = sys.modules["__main__"]
    script.PAUSE_S = 0.0
    report.applied("PAUSE_S")


def _fix(name: str, live: Callable[[Any, Any], None]) -> Optimization:
    return Optimization(
        name=name,
        summary="",
        parity_class="bitwise",
        observed=lambda census, value: None,
        settings=(True,),
        live_form=live,
    )


PLANTED = {
    fix.name: fix
    for fix in (
        _fix("other_order", _other_order),
        _fix("no_clipping", _no_clipping),
        _fix("not_applied", _nothing),
        _fix("crashes", _crashes),
        _fix("hangs", _hangs),
        _fix("writes_outside", _writes_outside),
        _fix("claims", _claims),
        _fix("fast", _fast),
    )
}
