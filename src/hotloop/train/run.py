"""What one training process holds: built once from a resolved config, then handed to the loop."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from hotloop.checkpoint.background import Saver
from hotloop.checkpoint.state import stored_tensors
from hotloop.checkpoint.upload import Uploader
from hotloop.core.config import LoopConfig, RunConfig, computes_grad_norm
from hotloop.core.errors import EnvironmentFailed, UsageError
from hotloop.core.progress import Progress, silent
from hotloop.core.step import steps_name
from hotloop.data.prepared import Corpora
from hotloop.data.streaming import Growing
from hotloop.data.tokenizer import fingerprint_of
from hotloop.hardware.limits import memory_limit_bytes
from hotloop.models.decoder import Decoder
from hotloop.models.shape import DecoderShape, host_bytes, num_weights
from hotloop.optimizations.activation_checkpointing import memory_budget
from hotloop.optimizations.chunked_loss import most_tokens
from hotloop.optimizations.clipping.trainer import can_clip_through
from hotloop.optimizations.compiling.trainer import compile_model, keep_within, parts_uncompiled
from hotloop.optimizations.host_memory.trainer import keep_freed_memory
from hotloop.optimizations.precision.autocast import autocast, gradient_scaler, set_tf32
from hotloop.optimizations.thread_binding.trainer import bind_threads
from hotloop.probe.phases import PhaseClock
from hotloop.train.averaging import Average
from hotloop.train.batches import held_out_batches, training_batches
from hotloop.train.group import Group, seed_of
from hotloop.train.hangs import Watchdog
from hotloop.train.optimizer import AdamW, build_optimizer
from hotloop.train.sample_log import SampleLog
from hotloop.train.save_mode import SaveMode
from hotloop.train.save_times import SaveTimes
from hotloop.train.session_log import SessionLog
from hotloop.train.stability import Stability
from hotloop.train.text_work import TextWork
from hotloop.train.work import Work

HEAP_RESERVE_BYTES = 16 << 30
"""Addresses set aside for the heap of a run on the CPU; they cost nothing until they are used."""


@dataclass(slots=True)
class Run:
    """Everything that a step touches."""

    config: LoopConfig
    directory: Path
    device: torch.device
    model: nn.Module
    """Called with the inputs of a microbatch it returns the sum of the losses of their targets."""
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler | None
    work: Work
    shape: DecoderShape | None = None
    """`None` for a model that is not written here."""
    metric: str = "loss"
    """What evaluations are compared by."""
    enough: Callable[[int], bool] = lambda step: False
    """True if the evaluations up to a step say that going on does not help."""
    first_step: int = 0
    """Steps already done by an earlier process."""
    average: Average | None = None
    """The mean of the weights that `averaging` asks for."""
    group: Group = field(default_factory=Group)
    """The processes that train together; by default this one alone."""
    saver: Saver = field(default_factory=Saver)
    """Commits checkpoints beside the steps."""
    snapshot: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    """The copy that it wrote last, whose memory the next one takes: new pages take most of a copy's time."""
    sessions: SessionLog | None = None
    """Records when this process trained; `None` where it only measures, and of ranks that do not write."""
    save_times: SaveTimes = field(init=False)
    save_mode: SaveMode = field(init=False)
    samples: SampleLog | None = None
    """Records which samples each step takes, where that was asked for."""
    watchdog: Watchdog = field(init=False)
    """Ends a step that hangs."""
    clock: PhaseClock = field(default_factory=PhaseClock)
    """That of the steps that run."""
    uploader: Uploader | None = None
    """Of the first process, where `checkpoint.upload` is set."""
    bound_threads: int = 0
    """Threads that `train.thread_binding` holds to a CPU of their own."""
    stability: Stability = field(init=False)
    weights: list[nn.Parameter] = field(init=False)
    """Those that are trained. To look for them takes 0.5 ms, too long for every step of a small model."""
    replica: nn.Module = field(init=False)
    """The model as the steps call it: among several processes, with the gradients summed over them."""

    def __post_init__(self) -> None:
        self.watchdog = Watchdog(self.config, self.group.ranks, self.directory)
        self.save_mode = SaveMode(self)
        self.stability = Stability(self.config, self.device)
        self.replica = self.model
        self.weights = [p for p in self.model.parameters() if p.requires_grad]

    def clear_gradients(self) -> None:
        for p in self.weights:
            p.grad = None

    @property
    def state_bytes(self) -> int:
        """What is stored of the model, the mean of its weights, and what the optimizer keeps: about the size of a checkpoint."""
        weights = [*stored_tensors(self.model).values(), *(self.weights if self.average else ())]
        slots = [each for kept in self.optimizer.state.values() for each in kept.values()]
        return sum(each.nbytes for each in (*weights, *slots) if isinstance(each, Tensor))

    def uncompiled(self, *inputs: Tensor) -> Tensor:
        """The loss of a microbatch by the model as it is written, in the precision of the run."""
        precision, compiled = self.config.train.precision, self.config.train.compile
        with autocast(self.device.type, precision), parts_uncompiled(self.model, compiled):
            loss: Tensor = self.model.forward(
                *inputs
            )  # .forward: not what the whole model compiles to
        return loss

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    @property
    def steps_file(self) -> Path:
        """The step records of this process."""
        return self.directory / steps_name(self.group.ranks.rank)

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
    values = config.model.model_dump(exclude={"family"}) | asdict(config.model.parts)
    values |= {"vocabulary": wanted, "hidden": config.model.inner_width}
    train = config.train
    values |= {"attention": train.attention, "gelu": train.gelu}
    if train.loss == "chunked":
        values["loss_chunk"] = most_tokens(wanted, config.model.width)
    again = train.activation_checkpointing
    if isinstance(again, int) or again in ("full", "selective"):
        values["checkpoint_every"] = again if isinstance(again, int) else 1
        values["keeps_products"] = again == "selective"
    return DecoderShape(**values)


def refuse_too_large(shape: DecoderShape, *, copies: int, limit_bytes: int) -> None:
    """Raises `EnvironmentFailed` where so many copies of the weights exceed the memory, before they fill it."""
    needed = host_bytes(shape, copies)
    if needed > limit_bytes:
        held = "with gradients and optimizer state " if copies > 1 else ""
        raise EnvironmentFailed(
            f"the model has {num_weights(shape) / 1e9:,.3g} billion weights and takes {needed / 1e9:,.0f} GB "
            f"{held}in fp32; this process may use {limit_bytes / 1e9:,.0f} GB",
            where="model.layers, model.width, model.hidden, model.vocabulary, model.context",
            do="lower them, or use a machine with more memory",
        )


_COPIES = {"adamw": 4, "muon": 3, "sgd": 2}
"""Copies of all weights on a CPU: themselves, gradients, and what the optimizer keeps at least."""


def build_run(
    config: RunConfig,
    text: Corpora | Growing,
    directory: Path,
    device: torch.device,
    group: Group | None = None,
    *,
    progress: Progress = silent,
) -> Run:
    """Model, optimizer and loaders for a resolved config, at its first step.

    `progress` tells of an index of documents that has to be made first. Raises `UsageError` for data that
    is too small.
    """
    if config.train.init_from is not None:
        refuse_other_tokenizer(Path(config.train.init_from).expanduser(), text)
    set_up_process(config, device)
    batches = training_batches(config, text, progress=progress)
    if config.sequences_per_step > batches.num_sequences:
        raise UsageError(
            f"one step takes {config.sequences_per_step} sequences, and the corpus has {batches.num_sequences}",
            where="train.microbatch and train.grad_accum_steps",
            do="lower them, or prepare more text",
        )
    shape = decoder_shape(config, text.vocabulary_size)
    copies = _COPIES[config.optimizer.name] if device.type == "cpu" else 1
    group = group or Group()
    own_bytes = memory_limit_bytes() // group.ranks.num_local_ranks  # each builds one
    refuse_too_large(shape, copies=copies, limit_bytes=own_bytes)
    # Built on the CPU, so that a seed gives the same weights on every device.
    model = Decoder(shape).to(device)
    held_out = held_out_batches(config, text, progress=progress)
    work = TextWork(config, batches, held_out)
    return assemble(config, directory, device, model, work, group, shape=shape)


def set_up_process(config: LoopConfig, device: torch.device) -> None:
    """Threads, memory, arithmetic and seeds, before a model is built."""
    assert isinstance(config.train.num_threads, int), "auto is resolved before training"
    if device.type == "cuda":
        # Events and random states are those of the current GPU where none is named: `cuda:1` must be it.
        torch.cuda.set_device(device)
    if config.train.num_threads != torch.get_num_threads():
        # Not when it changes nothing: the call also takes MKL's choice per product away from it.
        torch.set_num_threads(config.train.num_threads)
    if config.train.host_memory == "keep":
        keep_freed_memory(min(memory_limit_bytes() // 2, HEAP_RESERVE_BYTES))
    set_tf32(config.train.precision)
    torch.manual_seed(config.train.seed)
    random.seed(config.train.seed)
    np.random.seed(config.train.seed % 2**32)  # it takes no larger one


def assemble(
    config: LoopConfig,
    directory: Path,
    device: torch.device,
    model: nn.Module,
    work: Work,
    group: Group,
    *,
    shape: DecoderShape | None = None,
) -> Run:
    """Optimizer and the rest around a model that is on its device."""
    optimizer = build_optimizer(model, config.optimizer, precision=config.train.precision)
    scaler = gradient_scaler(device.type, config.train.precision)
    run = Run(config, directory, device, model, optimizer, scaler, work, shape, group=group)
    if config.averaging.name != "none":
        run.average = Average(config, model)
    if config.train.thread_binding == "cores":
        run.bound_threads = bind_threads(group.ranks.local_rank)
    if not group.ranks.is_first:  # as seeded above, every process would drop the same units
        torch.manual_seed(seed_of(config.train.seed, 0, group.ranks.rank))
    if config.train.compile:
        keep_within(memory_budget(config.train.activation_checkpointing))
        compile_model(model, config.train.compile)
    run.replica = group.replicate(model)
    return run


def refuse_other_tokenizer(directory: Path, text: Corpora | Growing) -> None:
    """Raises `UsageError` when a model to start from reads other ids than the data holds.

    A directory without a tokenizer.json is taken at its word.
    """
    theirs = directory / "tokenizer.json"
    if theirs.exists() and fingerprint_of(theirs) != text.tokenizer_fingerprint:
        raise UsageError(
            "the model to start from has another tokenizer than the data",
            where=str(directory),
            do=f"prepare the data with `data.tokenizer: {theirs}`",
        )


def clips_through(run: Run) -> bool:
    """True if the optimizer applies the clipping factor, so that no pass of its own is needed."""
    train = run.config.train
    return (
        train.clip_norm is not None
        and train.clip == "fused"
        and run.scaler is None
        and can_clip_through(run.optimizer)
    )


def takes_narrow_gradients(run: Run) -> bool:
    """True if the update alone reads gradients, each from a single backward in bf16: what they are rounded to, they may stay in."""
    config = run.config
    return (
        isinstance(run.optimizer, AdamW)
        and config.train.precision == "bf16"
        and config.train.grad_accum_steps == 1
        and run.group.ranks.num_ranks == 1
        and not computes_grad_norm(config)
    )
