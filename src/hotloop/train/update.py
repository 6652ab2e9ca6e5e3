"""One optimizer update: the rate, the clipping, the step, and the gradients cleared; no host sync."""

from __future__ import annotations

from torch import Tensor

from hotloop.optimizations.clipping import clip_builtin, clip_through_optimizer, forget_factor
from hotloop.train.run import Run, clips_through


def update(run: Run, rate: float) -> Tensor | None:
    """Clip, update the weights, clear the gradients. Returns the gradients' norm before clipping, unread."""
    config = run.config
    for group in run.optimizer.param_groups:
        group["lr"] = rate
    if run.scaler is not None:
        run.scaler.unscale_(run.optimizer)
    norm: Tensor | None = None
    through = clips_through(run)
    if config.train.clip_norm is not None and through:
        norm = clip_through_optimizer(run.model.parameters(), run.optimizer, config.train.clip_norm)
    elif config.train.clip_norm is not None:
        norm = clip_builtin(run.model.parameters(), config.train.clip_norm)
    if run.scaler is not None:
        run.scaler.step(run.optimizer)
        run.scaler.update()
    else:
        run.optimizer.step()
    if through:
        forget_factor(run.optimizer)
    run.optimizer.zero_grad(set_to_none=True)
    return norm
