"""Activations computed again in the pass backward instead of kept: memory bought with time.

A step gets slower, never faster. What it is for is a larger batch: whether that pays only a run with that
batch shows, and a batch of another size is another training. So this is a what-if: it shows what the
memory costs in time, and is not tried unless asked for (`--only checkpointing`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hotloop.optimizations.optimization import Optimization

if TYPE_CHECKING:
    from torch import nn

    from hotloop.core.census import Census
    from hotloop.optimizations.live import Report


def _live(value: Any, report: Report) -> None:
    """Hugging Face models know where their blocks begin; of others nobody does."""
    from hotloop.optimizations.outermost import around_training_calls

    seen: set[int] = set()

    def around(call: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if id(module) not in seen:
            seen.add(id(module))
            _turn_on(module, report)
        return call(*args, **kwargs)

    around_training_calls(around)


def _turn_on(module: nn.Module, report: Report) -> None:
    name = type(module).__name__
    model = next((each for each in module.modules() if _knows_how(each)), None)
    if model is None:
        report.refused(
            f"{name} has no gradient_checkpointing_enable(): write torch.utils.checkpoint.checkpoint("
            "block, x, use_reentrant=False) around each of its blocks"
        )
        return
    if not getattr(model, "supports_gradient_checkpointing", False):
        report.refused(f"{type(model).__name__} does not support it")
        return
    if getattr(model, "is_gradient_checkpointing", False):
        report.refused(f"{type(model).__name__}: the script has turned it on")
        return
    model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
    report.applied(type(model).__name__)


def _knows_how(module: nn.Module) -> bool:
    return callable(getattr(module, "gradient_checkpointing_enable", None))


def _observed(census: Census, value: Any) -> bool | None:
    return None  # the model says whether it took it


CHECKPOINTING = Optimization(
    name="checkpointing",
    summary="What-if: activations of a Hugging Face model are computed again in the pass backward instead of "
    "kept. Takes time, saves the memory that a larger batch needs.",
    parity_class="bitwise",
    settings=(True,),
    observed=_observed,
    source_form='model.gradient_checkpointing_enable({"use_reentrant": False})',
    live_form=_live,
    what_if=True,
    risks="Every step gets slower, by up to a third. It pays only where the larger batch does.",
)
