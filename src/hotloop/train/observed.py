"""What a run uses, as seen in it: its census, before the first step and at the end."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import torch

from hotloop.checkpoint.loader import random_states, set_random_states
from hotloop.checkpoint.state import kept_buffers
from hotloop.core.census import Census
from hotloop.core.config import LoopConfig
from hotloop.core.errors import UsageError
from hotloop.hardware.device import fast_dtypes, gpu_uuid
from hotloop.models.attention import NO_KERNEL
from hotloop.optimizations.host_memory.trainer import is_kept
from hotloop.probe.attach.operators import watch_forward
from hotloop.probe.compile_watch import compile_seconds, compiler_counts
from hotloop.probe.foreign_process import describe_optimizer, parameter_dtypes
from hotloop.probe.machine import host_peak_bytes
from hotloop.probe.phases import clock_read_s
from hotloop.train.batches import to_device
from hotloop.train.run import Run, clips_through


def observe(run: Run, notes: tuple[str, ...]) -> Census:
    """What the run uses, as seen: one sequence (or bucket) goes through an eager forward that is watched.

    What only shows while training (compiled graphs, memory) is added at the end.
    """
    config = run.config
    buffers = {name: buffer.clone() for name, buffer in kept_buffers(run.model).items()}
    states = random_states()  # examples may draw, and `collate`
    inputs = to_device(run.work.sample(), run.device)
    try:
        dtypes, attention = watch_forward(lambda: run.uncompiled(*inputs))
    except RuntimeError as error:
        if not any(words in str(error) for words in NO_KERNEL):
            raise
        raise UsageError(
            f"`train.attention: {config.train.attention}`: torch cannot compute this model's attention by it on this device",
            where="train.attention",
            do="set it to sdpa, which takes a kernel that can",
        ) from error
    set_random_states(states)
    after = kept_buffers(run.model)
    for name, before in buffers.items():  # batch norm has changed them
        after[name].data = before
    if config.train.attention == "flex":
        attention = ("flex",)  # as the compiled steps take it; uncompiled nothing does
    if run.device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32:
        dtypes = tuple("tf32" if dtype == "float32" else dtype for dtype in dtypes)
    clipping = None if config.train.clip_norm is None else "builtin"
    return Census(
        device=str(run.device),
        device_uuid=gpu_uuid(run.device),
        num_threads=torch.get_num_threads(),
        matmul_dtypes=dtypes,
        fast_dtypes=fast_dtypes(run.device),
        parameter_dtypes=parameter_dtypes(run.optimizer),
        attention=attention,
        optimizer=describe_optimizer(run.optimizer),
        clipping="fused" if clips_through(run) else clipping,
        host_memory="keep" if is_kept() else "default",
        bound_threads=run.bound_threads,
        num_ranks=run.group.ranks.num_ranks,
        compiled=bool(config.train.compile),
        loader=dict(run.work.loader),
        clock_read_s=clock_read_s(),
        notes=notes,
        how_often=_how_often(config),
    )


def _how_often(config: LoopConfig) -> dict[str, str]:
    """The settings that say how often a step evaluates and logs."""
    sends = [f"logging.{name}" for name in ("tensorboard", "wandb", "mlflow") if getattr(config.logging, name) and find_spec(name)]  # fmt: skip
    often = {"logging": ", ".join(sends), "eval": f"eval.every_steps={config.eval.every_steps}"}
    return {phase: setting for phase, setting in often.items() if setting}


def completed(census: Census, run: Run) -> Census:
    """With what is known at the end."""
    compiled, graphs, breaks = compiler_counts()
    return replace(
        census,
        compiled=bool(run.config.train.compile and compiled),
        num_graphs=graphs or 0,
        num_graph_breaks=breaks or 0,
        compile_s=compile_seconds() if run.config.train.compile else None,
        host_peak_bytes=host_peak_bytes(),
        num_skipped=run.stability.num_skipped,
        num_spikes=run.stability.num_spikes,
        num_rollbacks=run.stability.num_rollbacks,
        sent_gradient_dtype=run.group.sent_gradient_dtype,
    )
