"""What one training process holds: built once from a resolved config, then handed to the loop."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from hotloop.checkpoint import state, store
from hotloop.core.census import Census
from hotloop.core.config import RunConfig
from hotloop.core.errors import UsageError
from hotloop.data.loader import Loader
from hotloop.data.prepared import Prepared
from hotloop.hardware.device import fast_dtypes
from hotloop.models.decoder import Decoder, DecoderShape
from hotloop.optimizations.attention import dispatched_backend
from hotloop.optimizations.compiling import compile_model
from hotloop.optimizations.precision import gradient_scaler, observed_matmul_dtype, set_tf32
from hotloop.train.optimizer import build_optimizer, describe_optimizer


@dataclass(slots=True)
class Run:
    """Everything that a step touches."""

    config: RunConfig
    directory: Path
    device: torch.device
    model: Decoder
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler | None
    batches: Loader
    held_out: Loader | None
    """`None` when the validation shards are too small for one window."""
    first_step: int = 0
    """Steps already done by an earlier process."""

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    @property
    def steps_file(self) -> Path:
        return self.directory / "steps.jsonl"

    @property
    def evals_file(self) -> Path:
        return self.directory / "evals.jsonl"


def decoder_shape(config: RunConfig, vocabulary: int) -> DecoderShape:
    """Raises `UsageError` when the model cannot embed every id of the tokenizer."""
    wanted = config.model.vocabulary or vocabulary
    if wanted < vocabulary:
        raise UsageError(
            f"`model.vocabulary` {wanted} is smaller than the tokenizer's {vocabulary}",
            do=f"set it to {vocabulary} or more, or leave it out",
        )
    return DecoderShape(
        vocabulary=wanted,
        context=config.model.context,
        layers=config.model.layers,
        width=config.model.width,
        heads=config.model.heads,
        dropout=config.model.dropout,
        attention=config.train.attention,
    )


def build_run(config: RunConfig, prepared: Prepared, directory: Path, device: torch.device) -> Run:
    """Model, optimizer and loaders for a resolved config, continued from the newest checkpoint.

    Raises `UsageError` for data that is too small or a checkpoint that does not fit.
    """
    assert isinstance(config.train.num_threads, int), "auto is resolved before training"
    torch.set_num_threads(config.train.num_threads)
    set_tf32(config.train.precision)
    torch.manual_seed(config.train.seed)
    # Built on the CPU, so that a seed gives the same weights on every device.
    model = Decoder(decoder_shape(config, prepared.manifest.vocabulary_size)).to(device)
    optimizer = build_optimizer(model, config.optimizer)
    scaler = gradient_scaler(device.type, config.train.precision)
    batches = Loader(
        prepared.train,
        context=config.model.context,
        order=config.data.order,
        seed=config.data.seed,
    )
    held_out = None
    if len(prepared.validation) > config.model.context:
        held_out = Loader(
            prepared.validation, context=config.model.context, order="sequential", seed=0
        )
    run = Run(config, directory, device, model, optimizer, scaler, batches, held_out)
    store.remove_uncommitted(run.checkpoints)
    if config.train.compile:
        compile_model(model)
    return run


def resume(run: Run) -> tuple[str, ...]:
    """Continue from the newest checkpoint that verifies; returns what was wrong with newer ones."""
    found, problems = store.latest(run.checkpoints)
    if found is None:
        if problems:
            raise UsageError(
                f"no checkpoint of this run can be read: {problems[0]}",
                where=str(run.checkpoints),
                do="remove that directory to start over",
            )
        return ()
    tensors, extra = store.load(found, state.FILES)
    state.restore(tensors, extra, model=run.model, optimizer=run.optimizer, scaler=run.scaler)
    run.first_step = found.step
    return problems


def observe(run: Run, *, clock_read_s: float, notes: tuple[str, ...] = ()) -> Census:
    """What the run uses, as seen and not as configured. Compile counts are added at the end."""
    config, shape = run.config, run.model.shape
    dtype_name = observed_matmul_dtype(run.device, config.train.precision)
    dtype = torch.float32 if dtype_name == "tf32" else getattr(torch, dtype_name)
    attention = "plain"
    if config.train.attention == "sdpa":
        backend = dispatched_backend(
            run.device,
            dtype,
            heads=shape.heads,
            context=shape.context,
            head_width=shape.width // shape.heads,
        )
        attention = f"sdpa:{backend}"
    return Census(
        device=str(run.device),
        num_threads=torch.get_num_threads(),
        matmul_dtypes=(dtype_name,),
        fast_dtypes=fast_dtypes(run.device),
        parameter_dtypes=tuple(
            sorted({str(p.dtype).removeprefix("torch.") for p in run.model.parameters()})
        ),
        attention=(attention,),
        optimizer=describe_optimizer(run.optimizer),
        compiled=bool(config.train.compile),
        loader={"kind": "memory map", "num_workers": 0, "order": config.data.order},
        clock_read_s=clock_read_s,
        notes=notes,
    )
