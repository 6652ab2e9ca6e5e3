"""Settings that change nothing beside others: refused, so that nobody believes in them."""

from __future__ import annotations

from collections.abc import Collection

from hotloop.core.causal_config import CausalConfig, idle_causal_settings
from hotloop.core.config import LoopConfig, RunConfig, computes_grad_norm
from hotloop.core.data_config import idle_data_settings


def without_effect(config: LoopConfig, given: Collection[str]) -> tuple[str, str] | None:
    """The first key among those the user gave together that changes nothing here, and the fix."""
    optimizer, schedule = config.optimizer.name, config.schedule
    averaging, stability, train = config.averaging.name, config.stability, config.train
    # fmt: off
    rows = (
        ("schedule.final_fraction", schedule.name == "constant", "remove it, or choose another `schedule.name`"),
        ("schedule.decay_fraction", schedule.name != "wsd", "set `schedule.name: wsd`, or remove it"),
        ("schedule.initial_fraction", schedule.name != "onecycle" or schedule.warmup_steps < 2, "set `schedule.name: onecycle` with some `schedule.warmup_steps`, or remove it"),
        ("optimizer.beta1 optimizer.beta2 optimizer.epsilon", optimizer == "sgd", "remove it, or choose an `optimizer.name` other than sgd"),
        ("optimizer.momentum optimizer.nesterov", optimizer == "adamw", "set `optimizer.name` to sgd or muon, or remove it"),
        ("optimizer.rate_scaling", config.optimizer.rate_for_batch is None, "set `optimizer.rate_for_batch`, or remove it"),
        ("train.clip", train.clip_norm is None, "set `train.clip_norm`, or remove it"),
        ("averaging.decay", averaging != "ema", "set `averaging.name: ema`, or remove it"),
        ("averaging.start_fraction averaging.every_steps", averaging == "none", "set `averaging.name` to ema or tail, or remove it"),
        ("stability.spike_factor", not computes_grad_norm(config), "set `train.clip_norm` or `stability.spikes`: the gradient norm is not computed here"),
        ("stability.max_skips", stability.nonfinite == "stop" and stability.spikes != "skip" and train.precision not in ("fp16", "auto"), "set `stability.nonfinite` or `stability.spikes` to skip, or remove it"),
        ("stability.max_rollbacks", stability.spikes != "rollback", "set `stability.spikes: rollback`, or remove it"),
        ("logging.project logging.run_name", not (config.logging.wandb or config.logging.mlflow), "set `logging.wandb` or `logging.mlflow`, or remove it"),
        ("eval.windows checkpoint.keep_best", not config.eval.every_steps, "set `eval.every_steps`, or remove it"),
        ("checkpoint.upload_mb_per_s checkpoint.compress", config.checkpoint.upload is None, "set `checkpoint.upload`, or remove it"),
        ("model.lora.alpha model.lora.dropout model.lora.target model.lora.merge", not config.flat().get("model.lora.rank"), "set `model.lora.rank`, or remove it"),
        ("checkpoint.interruptions_per_day", config.checkpoint.every_steps != "auto", "set `checkpoint.every_steps: auto`, or remove it"),
    )
    of_text = () if not isinstance(config, RunConfig) else (
        ("train.gelu", config.model.parts.mlp != "gelu", "set `model.mlp: gelu`, or remove it"),
        *idle_data_settings(config.data),
        ("model.rotary_theta", config.model.parts.positions != "rotary", "set `model.positions: rotary`, or remove it"),
    )
    # fmt: on
    of_causal = idle_causal_settings(config) if isinstance(config, CausalConfig) else ()
    idle = (
        (key, fix)
        for keys, is_idle, fix in (*rows, *of_text, *of_causal)
        if is_idle
        for key in keys.split()
    )
    return next(((key, fix) for key, fix in idle if key in given), None)
