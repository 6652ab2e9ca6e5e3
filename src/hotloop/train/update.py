"""One optimizer update: the rate, the clipping, whether it is left out, and the step itself.

No host sync: what is returned is on the device, unread. An update that is left out moves neither weights
nor momentum nor step counts, as if it had never been tried.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from hotloop.core.config import LoopConfig, computes_grad_norm
from hotloop.core.errors import UsageError
from hotloop.optimizations.clipping.trainer import clip_through_optimizer, forget_factor
from hotloop.train.optimizer import Muon
from hotloop.train.run import Run, clips_through


def update(run: Run, rate: float, loss: Tensor) -> dict[str, Tensor]:
    """Update the weights, and clear the gradients unless `clears_late`. `loss` is that of the whole step, on the device.

    Returns scalars: `grad_norm` before clipping where it is known, `skipped` and `spike` (0 or 1) where
    something may be left out, `scale` with fp16.
    """
    config = run.config
    for group in run.optimizer.param_groups:
        group["lr"] = rate
    if run.scaler is not None:
        run.scaler.unscale_(run.optimizer)
    through = clips_through(run)
    late: dict[str, Tensor] = {}
    if config.train.clip_norm is not None and through:
        late["grad_norm"] = clip_through_optimizer(
            run.weights, run.optimizer, config.train.clip_norm
        )
    elif config.train.clip_norm is not None:
        late["grad_norm"] = nn.utils.clip_grad_norm_(run.weights, config.train.clip_norm)
    elif computes_grad_norm(config):
        grads = [p.grad for p in run.weights if p.grad is not None]
        late["grad_norm"] = nn.utils.get_total_norm(grads)

    reasons: list[Tensor] = []
    if run.scaler is not None:
        reasons.append(overflowed(run.scaler, run.optimizer))
    if config.stability.nonfinite == "skip":
        reasons.append(~late["grad_norm"].isfinite())
    if run.stability.on_device is not None:
        late["spike"] = run.stability.on_device.look(late["grad_norm"], loss)
        reasons.append(late["spike"])
    if reasons:
        late["skipped"] = torch.stack(reasons).any()
    step_unless(run.optimizer, late.get("skipped"))

    if through:
        forget_factor(run.optimizer)
    if run.scaler is not None:
        run.scaler.update()
        scale = run.scaler._get_scale_async()  # get_scale() would wait for the device
        assert scale is not None
        late["scale"] = scale
    if not clears_late(run):
        run.clear_gradients()
    return late


def clears_late(run: Run) -> bool:
    """True if a step's gradients are kept until the next backward, which then writes to the same memory.

    On a CPU: cleared after the update, they make the free end of the heap so large that the allocator
    gives it back, to get it again page by page: 20 ms of a step of 1.2 s at 3 us a page. A GPU's
    allocator keeps what is freed, and there the forward can use it.
    """
    return run.device.type == "cpu"


def overflowed(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> Tensor:
    """Bool () on the device: whether `unscale_` met a gradient that is no number.

    `scaler.step` would act on it as well, but a spike is to be left out without lowering the scale, and
    for optimizers that are not fused it reads the answer back.
    """
    (found,) = scaler._found_inf_per_device(optimizer).values()
    return torch.as_tensor(found).reshape(()) > 0


def step_unless(optimizer: torch.optim.Optimizer, skip: Tensor | None) -> None:
    """`optimizer.step()`, or nothing at all where `skip`, a bool () on the device, says so."""
    if skip is None:
        optimizer.step()
    elif can_skip_on_device(optimizer):
        # The protocol of GradScaler: the kernel returns at 1.0 and leaves everything as it was.
        optimizer.found_inf = skip.float()  # type: ignore[attr-defined]
        optimizer.step()
        del optimizer.found_inf  # type: ignore[attr-defined]
    elif (
        not skip.item()
    ):  # waits for nothing on a CPU; elsewhere only with fp16, as torch's own scaler does
        optimizer.step()


def can_skip_on_device(optimizer: torch.optim.Optimizer) -> bool:
    """True if `step()` heeds `found_inf`: the fused optimizers do, and Muon with a fused AdamW."""
    if isinstance(optimizer, Muon):
        return bool(optimizer.defaults["fused"])
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def refuse_waiting_update(config: LoopConfig, device: torch.device) -> None:
    """Raises `UsageError` where leaving updates out would stall the device in every step."""
    skips = config.stability.nonfinite == "skip" or config.stability.spikes == "skip"
    if skips and device.type != "cpu" and not config.optimizer.fused:
        key = "nonfinite" if config.stability.nonfinite == "skip" else "spikes"
        raise UsageError(
            f"`stability.{key}: skip` needs `optimizer.fused` on {device.type}: without it, leaving an "
            "update out waits for the device in every step",
            where="optimizer.fused",
            do="set `optimizer.fused: true` (or `auto`)",
        )


def learning_rate(config: LoopConfig, step: int) -> float:
    """The learning rate of `step` (from 0): warmup, then the schedule's decay.

    The last step has `final_fraction` of the highest rate; of a fine-tuning the one behind it would. cosine: Loshchilov and Hutter 2017, as nanoGPT
    computes it, `lr_decay_iters` being the last step. linear: the same in a straight line. wsd, with
    1 - sqrt: Hu et al. 2024, Hägele et al. 2024; over the last steps, each of them one further down, as
    torchtitan counts them. onecycle: Smith and Topin 2018, point by point that of
    `torch.optim.lr_scheduler.OneCycleLR` with `total_steps` and `pct_start = warmup_steps / total_steps`.
    """
    schedule, last = config.schedule, config.end_of_decay
    highest, warmup = config.highest_rate, schedule.warmup_steps
    if schedule.name == "onecycle":
        if step < warmup - 1:
            done = step / (warmup - 1)
            return highest * _half_cosine(schedule.initial_fraction, 1.0, done)
        done = _share(step - (warmup - 1), last - (warmup - 1))
        return highest * _half_cosine(1.0, schedule.final_fraction, done)
    if step < warmup:
        return highest * (step + 1) / warmup
    final = schedule.final_fraction
    match schedule.name:
        case "constant":
            return highest
        case "linear":
            return highest * (1 - (1 - final) * _share(step - warmup, last - warmup))
        case "cosine":
            return highest * _half_cosine(1.0, final, _share(step - warmup, last - warmup))
        case "wsd":
            decay = config.decay_steps
            fallen = min(1.0, max(0.0, (step - (last - decay)) / decay))
            return highest * (final + (1 - final) * (1 - math.sqrt(fallen)))


def _share(done: int, whole: int) -> float:
    """`done / whole`, at most 1; of nothing all is done."""
    return min(1.0, done / whole) if whole > 0 else 1.0


def _half_cosine(start: float, end: float, done: float) -> float:
    """From `start` to `end` as `done` goes from 0 to 1, level at both ends."""
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * done))
