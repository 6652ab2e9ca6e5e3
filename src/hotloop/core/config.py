"""`RunConfig`: every setting of a training run, its origin, and a digest.

Frozen, strict, unknown keys refused. Values of `auto` are resolved by the command before training
starts (`hardware` knows the device, the judge knows nothing of this).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from hotloop.core.data_config import DataConfig
from hotloop.core.model_config import (
    MAX_COUNT,
    Fraction,
    ModelConfig,
    Natural,
    Positive,
    PositiveNumber,
    Section,
    Seed,
)

MemoryBudget = Annotated[str, Field(pattern=r"^budget=(0?\.\d{1,6}|[01](\.0{1,6})?)$")]
"""A part, 0 to 1, of the activations that a compiled model keeps."""


class OptimizerConfig(Section):
    name: Literal["adamw", "sgd", "muon"] = "adamw"
    """`muon` updates the matrices of the blocks by Muon and everything else by AdamW."""
    learning_rate: PositiveNumber = 1e-3
    """Highest learning rate, reached after the warmup. Muon's updates are scaled to suit AdamW's rate."""
    rate_for_batch: Positive | None = None
    """Sequences of a step that `learning_rate` was chosen for. null takes it as it is, whatever the batch."""
    rate_scaling: Literal["linear", "sqrt"] = "linear"
    """Another batch, N times as large, has N times the rate, or sqrt(N) times. No effect without `rate_for_batch`."""
    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    epsilon: PositiveNumber = 1e-8
    momentum: Fraction | None = None
    """Of sgd and muon. null takes 0.9 for sgd and 0.95 for muon."""
    nesterov: bool | None = None
    """Look one step ahead with the momentum. null takes false for sgd and true for muon."""
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01
    """Applied to matrices and embeddings, not to norms and biases, as nanoGPT does; with sgd added to the gradient."""
    fused: bool | Literal["auto"] = "auto"
    """One kernel for the whole update (with muon: for the part that AdamW updates)."""

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> Self:
        if self.nesterov and self.momentum == 0:
            raise ValueError("`nesterov` needs a `momentum` above 0")
        return self


class ScheduleConfig(Section):
    name: Literal["cosine", "linear", "constant", "wsd", "onecycle"] = "cosine"
    """`wsd` stays at the highest rate and falls at the end (1 - sqrt); `onecycle` rises and falls in
    two half cosines."""
    warmup_steps: Natural = 100
    """Steps over which the learning rate rises, linearly from 0; with `onecycle` from `initial_fraction`."""
    final_fraction: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Learning rate at the last step, as a fraction of the highest. No effect with `constant`."""
    decay_fraction: Annotated[float, Field(gt=0, le=1)] = 0.2
    """Part of all steps, at the end, over which `wsd` falls. No effect with others."""
    initial_fraction: Annotated[float, Field(ge=0, le=1)] = 0.04
    """Learning rate at the first step of `onecycle`, as a fraction of the highest. No effect with others."""


class TrainConfig(Section):
    steps: Positive = 1000
    """Optimizer updates."""
    microbatch: Positive = 8
    """Sequences in one forward and backward of one process."""
    grad_accum_steps: Positive = 1
    """Microbatches in one step, over all processes: each of N takes 1/N of them. The loss is the mean over
    all targets of the step."""
    seed: Seed = 0
    """Seed of the weights and of dropout."""
    init_from: str | None = None
    """Directory of a GPT-2, Llama or Qwen 3 in the format of `transformers` whose weights the run starts from.
    The model and the tokenizer must be its own."""
    device: str = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:N`. Of several processes on a machine each takes its own GPU."""
    num_threads: Annotated[int, Field(gt=0, le=1024)] | Literal["auto"] = "auto"
    """Intra-op CPU threads; `auto` is what the process may really use (cgroup quota, affinity), of several on
    a machine an equal share."""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "auto"
    """Arithmetic of matrix products. Weights, gradients and optimizer state stay fp32.
    fp16 uses a gradient scaler; tf32 needs a GPU that has it."""
    compile: (
        bool
        | Literal["auto", "blocks", "max-autotune-no-cudagraphs", "max-autotune", "reduce-overhead"]
    ) = "auto"
    """Compile the model with `torch.compile`. Falls back to eager, and says so, without a C++ compiler. `blocks`: a
    transformer block for itself, once for all layers, which starts sooner where there are many. The others are torch's
    modes, of a GPU; the last two replay CUDA graphs, without gradient accumulation.
    `max-autotune`, with and without them, is not yet run on a GPU."""
    attention: Literal["auto", "sdpa", "plain", "flash", "efficient", "cudnn", "math", "flex"] = (
        "auto"
    )
    """`sdpa` calls scaled_dot_product_attention, which chooses a kernel; `flash`, `efficient`, `cudnn` and `math` hold its
    training steps to that one. `plain` writes the product out, for the compiler to fuse; `flex` is torch's FlexAttention,
    compiled on a GPU alone. All ran on an H100, torch 2.11."""
    gelu: Literal["auto", "tanh", "sigmoid"] = "auto"
    """How GELU's curve is computed, where the model has it: torch's `tanh` form, or the same by a `sigmoid`."""
    loss: Literal["auto", "plain", "chunked"] = "auto"
    """`plain` computes the logits of a whole microbatch; `chunked` those of some tokens at a time, each chunk with its
    gradients: less memory, the same loss."""
    activation_checkpointing: (
        Positive | Literal["auto", "none", "full", "selective"] | MemoryBudget
    ) = "auto"
    """`full` keeps no activations of the blocks and computes them again in the backward, N only of every Nth block (the
    first included); `selective` keeps what products and attention made and computes the rest again; `budget=0.5` has the
    compiler keep that part of what it would keep. Less memory, slower, the same loss. `auto` is `none`."""
    clip: Literal["auto", "builtin", "fused"] = "auto"
    """How gradients are clipped: `builtin` calls clip_grad_norm_; `fused` folds the factor into one pass."""
    thread_binding: Literal["auto", "none", "cores"] = "auto"
    """`cores` holds each thread that computes beside the first one to a CPU of its own, core by core and NUMA node by
    node, so that its memory stays near. On a CPU alone."""
    host_memory: Literal["auto", "default", "keep"] = "auto"
    """`keep` leaves memory that a step frees with the process; `default` is the allocator's own way."""
    gradient_compression: Literal["auto", "none", "bf16", "fp16"] = "auto"
    """What gradients are rounded to on their way between processes; `auto` does not round. Nothing is sent by
    one process."""
    rank_timeout_s: Annotated[float, Field(ge=1, le=604_800)] = 1800.0
    """Seconds that a process waits for the others, also while the first one saves. Only for one that hangs: the
    end of a process is noticed at once. No effect with one process."""
    hang_timeout_s: Annotated[float, Field(ge=1, le=604_800)] | Literal["auto"] | None = "auto"
    """Seconds without the end of a step after which a process writes its stacks into `stacks-rank-N.txt` and ends with
    75. `auto`: 600, or 50 median steps, where torchrun started it, else never; null never."""
    clip_norm: PositiveNumber | None = 1.0
    """Gradients are scaled down to this global L2 norm; null does not clip."""


class AveragingConfig(Section):
    name: Literal["none", "ema", "tail"] = "none"
    """Keep a mean of the weights beside training, which stays the same: `ema` moves with them, `tail` is the
    plain mean over the end of the run. Evaluated beside the last weights; what `generate` and `export` use."""
    decay: Fraction = 0.99
    """Share of the mean that a step keeps with `ema`: 0.99 remembers about 100 steps. No effect with `tail`."""
    start_fraction: Fraction | None = None
    """Part of all steps after which the mean begins. null takes 0 for `ema` and 0.8 for `tail`."""
    every_steps: Positive = 5
    """Steps between updates of the mean; the last step is always one. `decay` still counts in steps."""


class StabilityConfig(Section):
    nonfinite: Literal["stop", "skip"] = "stop"
    """When a gradient is no number: `stop` ends the run and keeps what was saved; `skip` leaves that update
    out. fp16 always leaves it out and lowers its scale."""
    spikes: Literal["warn", "skip", "rollback"] = "warn"
    """When a loss or a gradient norm stands far above the recent ones: `warn` tags and counts the step; `skip`
    leaves its update out as well; `rollback` goes back to the newest checkpoint and passes over the data since."""
    spike_factor: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = 5.0
    """A gradient norm above this many times the median of the window is a spike; null looks at the loss alone."""
    spike_loss: PositiveNumber = 1.0
    """A loss this many nats above the median of the window is a spike."""
    window_steps: Annotated[int, Field(ge=4, le=10_000)] = 100
    """Steps in the window, which ends before the step that is looked at. None is a spike until half of it
    is known."""
    max_skips: Positive = 16
    """Updates left out in a row that end the run. From its start fp16 halves its scale to 1 in 16."""
    max_rollbacks: Positive = 3
    """Spikes of a run that it goes back from; the next one ends it."""


class EvalConfig(Section):
    every_steps: Natural = 250
    """0 evaluates never."""
    windows: Positive = 64
    """Held-out sequences per evaluation; the same ones every time."""


class CheckpointConfig(Section):
    every_steps: Natural | Literal["auto"] = 250
    """The most steps that a kill loses: saves are so far apart, and those in the background begin as many steps earlier as writing
    takes. 0 saves only at the end and on Ctrl-C. `auto` weighs what a save costs against how often the run is
    interrupted, as it learns both; up to an hour apart, and at most a tenth of the time."""
    interruptions_per_day: PositiveNumber | None = None
    """For `every_steps: auto`. null estimates it from the kills that the run has seen, beginning with one a day."""
    keep: Annotated[int, Field(ge=2, le=MAX_COUNT)] = 2
    """Newest checkpoints kept."""
    keep_hours: PositiveNumber | None = None
    """Those saved within this many hours are kept as well. Age alone never leaves fewer than `keep`."""
    keep_best: Natural = 0
    """So many of lowest held-out loss (with averaged weights where they are kept) stay as well. Only a checkpoint saved at
    an evaluated step has one: let `eval.every_steps` be a multiple of `every_steps`, or the other way round. Saves in
    the background are no earlier then, nor with `stability.spikes: rollback`, and a kill loses up to two intervals."""
    background: bool | Literal["auto"] = "auto"
    """Write while the next steps train: a save then costs them a copy of the state in host memory. `auto` makes the first
    saves in both ways and keeps the cheaper one. One that a kill cuts short is lost. The last save of a run is waited for."""
    notices: Literal["auto", "none", "ec2", "gce", "azure"] = "auto"
    """Whose metadata server is asked whether it takes this machine away; `auto`: that of the cloud it runs in."""
    notice_s: PositiveNumber = 15.0
    """Seconds between SIGTERM, SIGUSR1 or a cloud's notice and the kill. A save that takes longer is left out."""
    upload: Annotated[str, Field(pattern=r"^[a-z][a-z0-9+.-]*://[^:]+$")] | None = None
    """A URL such as `s3://bucket/prefix` (s3, gs, az, file: whatever fsspec opens) below which `NAME/step-...` gets a verified
    copy of each checkpoint, beside the training. A run continues from the newest whole one, local or there."""
    upload_mb_per_s: PositiveNumber | None = None
    """Most megabytes per second that uploading takes of the network; null takes what it gets."""
    compress: bool | Literal["auto"] = "auto"
    """Upload files with zstd where that saves at least 10 % of a sample of them; `auto` only where zstandard is installed."""


class LoggingConfig(Section):
    tensorboard: bool | Literal["auto"] = "auto"
    """Write TensorBoard event files into the run directory; `auto` does so where it is installed."""
    wandb: bool | Literal["offline"] = False
    """Send steps and evaluations to Weights & Biases. `offline` writes them into the run directory, for
    `wandb sync` to upload; so does true as long as nobody is logged in or the server cannot be reached."""
    mlflow: bool = False
    """Send steps and evaluations to the MLflow server of MLFLOW_TRACKING_URI, or into MLflow's local store."""
    project: Annotated[str, Field(min_length=1)] = "hotloop"
    """The project at Weights & Biases, the experiment in MLflow."""
    run_name: Annotated[str, Field(min_length=1)] | None = None
    """What the run is called there. null takes `name`."""


class LoopConfig(Section):
    """What every training shares, whatever it learns: a kind of training narrows `data` and `model`."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "run"
    """Names the run directory when none is given."""
    data: Section
    model: Section
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    train: TrainConfig = TrainConfig()
    averaging: AveragingConfig = AveragingConfig()
    stability: StabilityConfig = StabilityConfig()
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    logging: LoggingConfig = LoggingConfig()

    @model_validator(mode="after")
    def _combinations(self) -> Self:
        if not self.train.steps:
            return self  # of a fine-tuning: looked at again once its examples are counted
        if self.schedule.name != "constant" and self.schedule.warmup_steps >= self.train.steps:
            raise ValueError(
                f"`schedule.warmup_steps` {self.schedule.warmup_steps} leaves nothing of "
                f"`train.steps` {self.train.steps}; lower the one or raise the other"
            )
        if self.schedule.name == "wsd" and not self.decay_steps:
            raise ValueError(
                f"`schedule.decay_fraction` {self.schedule.decay_fraction:g} of `train.steps` "
                f"{self.train.steps} is no step, so that `wsd` would never fall; raise one of them, or "
                "choose `schedule.name: constant`"
            )
        if self.schedule.name == "wsd" and (
            self.schedule.warmup_steps + self.decay_steps > self.train.steps
        ):
            raise ValueError(
                f"`schedule.warmup_steps` {self.schedule.warmup_steps} reaches into the decay: "
                f"`schedule.decay_fraction` {self.schedule.decay_fraction:g} of `train.steps` "
                f"{self.train.steps}; lower one of them"
            )
        wrong = {
            0: "makes none",
            "auto": "lets the clock say when, and so which data are passed over",
        }
        every = self.checkpoint.every_steps
        if self.stability.spikes == "rollback" and every in wrong:
            raise ValueError(
                "`stability.spikes: rollback` goes back to checkpoints, and `checkpoint.every_steps: "
                f"{every}` {wrong[every]}; set a number of steps"
            )
        return self

    @property
    def sequences_per_step(self) -> int:
        return self.train.microbatch * self.train.grad_accum_steps

    @property
    def highest_rate(self) -> float:
        """`learning_rate`, for this batch. linear: Goyal et al. 2017, for SGD; sqrt: Malladi et al. 2022, for Adam."""
        optimizer = self.optimizer
        times = self.sequences_per_step / (optimizer.rate_for_batch or self.sequences_per_step)
        return optimizer.learning_rate * (
            times if optimizer.rate_scaling == "linear" else times**0.5
        )

    @property
    def decay_steps(self) -> int:
        """The last steps, over which `wsd` falls."""
        return round(self.schedule.decay_fraction * self.train.steps)

    @property
    def end_of_decay(self) -> int:
        """The step (from 0) whose rate is `schedule.final_fraction` of the highest: the last one."""
        return self.train.steps - 1

    @property
    def may_compile(self) -> bool:
        """False where no compiler has to be looked for."""
        return self.train.compile is not False

    def flat(self) -> dict[str, Any]:
        """`{"train.steps": 1000, ...}` for every setting."""
        return dict(_flatten(self.model_dump(mode="json"), ""))

    def replaced(self, changes: Mapping[str, Any]) -> Self:
        """A copy with dotted keys changed, validated again."""
        values = self.model_dump(mode="python", exclude_unset=True)
        for key, value in changes.items():
            set_dotted(values, key, value)
        return type(self).model_validate(values)

    def digest(self) -> str:
        """Twelve hex digits over every value; equal digests mean equal settings."""
        canonical = json.dumps(self.flat(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]


class RunConfig(LoopConfig):
    data: DataConfig
    model: ModelConfig = ModelConfig()

    @property
    def global_batch_tokens(self) -> int:
        """Targets of one step."""
        return self.sequences_per_step * self.model.context


def computes_grad_norm(config: LoopConfig) -> bool:
    """True if a step knows its gradient norm: for clipping, or because an action depends on it."""
    return (
        config.train.clip_norm is not None
        or config.stability.nonfinite == "skip"
        or config.stability.spikes != "warn"
    )


def _flatten(values: Mapping[str, Any], prefix: str) -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            pairs.extend(_flatten(value, f"{prefix}{key}."))
        else:
            pairs.append((f"{prefix}{key}", value))
    return pairs


def set_dotted(values: dict[str, Any], key: str, value: Any) -> None:
    """Set `a.b.c` in nested dictionaries, making the inner ones as needed."""
    *parents, last = key.split(".")
    for parent in parents:
        inner = values.get(parent)
        if not isinstance(inner, dict):
            inner = {}
            values[parent] = inner
        values = inner
    values[last] = value


@dataclass(frozen=True, slots=True)
class Key:
    """One setting, as its section declares it."""

    description: str
    default: str
    """As YAML; empty for a key that must be given."""

    @property
    def summary(self) -> str:
        """The first sentence of the description, on one line."""
        text = " ".join(self.description.split())
        end = re.search(r"(?<=[^.])\.(?=\s+[A-Z`])", text)
        return text[: end.start() + 1] if end else text


def known_keys(kind: type[LoopConfig] = RunConfig) -> dict[str, Key]:
    """Every dotted key, in the order of the file."""
    return dict(_keys_of(kind, ""))


def _keys_of(section: type[BaseModel], prefix: str) -> list[tuple[str, Key]]:
    keys: list[tuple[str, Key]] = []
    for name, info in section.model_fields.items():
        annotation = info.annotation
        if isinstance(annotation, type) and issubclass(annotation, Section):
            keys.extend(_keys_of(annotation, f"{prefix}{name}."))
        else:
            default = (
                ""
                if info.is_required()
                else json.dumps(info.get_default(call_default_factory=True))
            )
            keys.append((f"{prefix}{name}", Key(info.description or "", default)))
    return keys
