"""`RunConfig`: every setting of a training run, its origin, and a digest.

Frozen, strict, unknown keys refused. Values of `auto` are resolved by the command before training
starts (`hardware` knows the device, the judge knows nothing of this).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[int, Field(gt=0)]
Natural = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """One block of settings."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )


class DataConfig(Section):
    source: str | None = None
    """Text to train on: `python-stdlib`, or a file or directory. Prepared into the cache on first use."""
    prepared: str | None = None
    """A directory written by `hotloop prepare`, instead of `source`."""
    tokenizer: str | None = "train:8192"
    """`train:N`, `bytes`, or a `tokenizer.json`; used when `source` is prepared. null means `bytes`."""
    order: Literal["shuffled", "sequential"] = "shuffled"
    """Order of the training windows: a seeded permutation per epoch, or as they stand in the shards."""
    seed: Natural = 0
    """Seed of the order."""
    verify: Literal["checksum", "size"] = "checksum"
    """What is checked of every shard before training."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.source is None) == (self.prepared is None):
            raise ValueError("set exactly one of `source` and `prepared`")
        return self


class ModelConfig(Section):
    family: Literal["gpt2"] = "gpt2"
    layers: Positive = 6
    width: Positive = 384
    """Width of the residual stream. Must be a multiple of `heads`."""
    heads: Positive = 6
    context: Positive = 256
    """Tokens a window holds, and the longest context the model can see."""
    vocabulary: Positive | None = None
    """Ids the model can embed; null takes the tokenizer's size."""
    dropout: Fraction = 0.0

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"`width` {self.width} is not a multiple of `heads` {self.heads}")
        return self


class OptimizerConfig(Section):
    name: Literal["adamw"] = "adamw"
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """Highest learning rate, reached after the warmup."""
    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    epsilon: Annotated[float, Field(gt=0)] = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Applied to every parameter, as `torch.optim.AdamW` does by default."""
    fused: bool | Literal["auto"] = "auto"
    """One kernel for the whole update."""


class ScheduleConfig(Section):
    name: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_steps: Natural = 100
    """Steps over which the learning rate rises linearly from 0."""
    final_fraction: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Learning rate at the last step, as a fraction of the highest. No effect with `constant`."""


class TrainConfig(Section):
    steps: Positive = 1000
    """Optimizer updates."""
    microbatch: Positive = 8
    """Windows in one forward and backward."""
    grad_accum_steps: Positive = 1
    """Microbatches in one step. The loss is the mean over all targets of the step."""
    seed: Natural = 0
    """Seed of the weights and of dropout."""
    device: str = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:N`."""
    num_threads: Positive | Literal["auto"] = "auto"
    """Intra-op CPU threads; `auto` is what the process may really use (cgroup quota, affinity)."""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "auto"
    """Arithmetic of matrix products. Weights, gradients and optimizer state stay fp32.
    fp16 uses a gradient scaler; tf32 needs a GPU that has it."""
    compile: bool | Literal["auto"] = "auto"
    """Compile the model with `torch.compile`. Falls back to eager, and says so, without a C++ compiler."""
    attention: Literal["auto", "sdpa", "plain"] = "auto"
    """`sdpa` calls scaled_dot_product_attention; `plain` writes the product out, for the compiler to fuse."""
    clip: Literal["auto", "builtin", "fused"] = "auto"
    """How gradients are clipped: `builtin` calls clip_grad_norm_; `fused` folds the factor into one pass."""
    clip_norm: Annotated[float, Field(gt=0)] | None = 1.0
    """Gradients are scaled down to this global L2 norm; null does not clip."""


class EvalConfig(Section):
    every_steps: Natural = 250
    """0 evaluates never."""
    windows: Positive = 64
    """Held-out windows per evaluation; the same ones every time."""


class CheckpointConfig(Section):
    every_steps: Natural = 250
    """0 saves only at the end and on Ctrl-C."""
    keep: Annotated[int, Field(ge=2)] = 2
    """Newest checkpoints kept."""


class LoggingConfig(Section):
    tensorboard: bool | Literal["auto"] = "auto"
    """Write TensorBoard event files into the run directory; `auto` does so where it is installed."""


class RunConfig(Section):
    name: str = "run"
    """Names the run directory when none is given."""
    data: DataConfig
    model: ModelConfig = ModelConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    train: TrainConfig = TrainConfig()
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    logging: LoggingConfig = LoggingConfig()

    @model_validator(mode="after")
    def _combinations(self) -> Self:
        if self.schedule.name != "constant" and self.schedule.warmup_steps >= self.train.steps:
            raise ValueError(
                f"`schedule.warmup_steps` {self.schedule.warmup_steps} leaves nothing of "
                f"`train.steps` {self.train.steps}; lower the one or raise the other"
            )
        return self

    @property
    def windows_per_step(self) -> int:
        return self.train.microbatch * self.train.grad_accum_steps

    @property
    def global_batch_tokens(self) -> int:
        """Targets of one step."""
        return self.windows_per_step * self.model.context

    def flat(self) -> dict[str, Any]:
        """`{"train.steps": 1000, ...}` for every setting."""
        return dict(_flatten(self.model_dump(mode="json"), ""))

    def replaced(self, changes: Mapping[str, Any]) -> RunConfig:
        """A copy with dotted keys changed, validated again."""
        values = self.model_dump(mode="python", exclude_unset=True)
        for key, value in changes.items():
            set_dotted(values, key, value)
        return RunConfig.model_validate(values)

    def digest(self) -> str:
        """Twelve hex digits over every value; equal digests mean equal settings."""
        canonical = json.dumps(self.flat(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def without_effect(config: RunConfig, given: Collection[str]) -> tuple[str, str] | None:
    """The first key among those the user gave that changes nothing here, and the fix."""
    if config.schedule.name == "constant" and "schedule.final_fraction" in given:
        return "schedule.final_fraction", "remove it, or choose another `schedule.name`"
    if config.train.clip_norm is None and "train.clip" in given:
        return "train.clip", "set `train.clip_norm`, or remove it"
    if config.data.prepared is not None and "data.tokenizer" in given:
        return "data.tokenizer", "remove it: a prepared directory holds its own tokenizer"
    if not config.eval.every_steps and "eval.windows" in given:
        return "eval.windows", "set `eval.every_steps`, or remove it"
    return None


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


def known_keys() -> dict[str, str]:
    """Every dotted key with its description, in the order of the file."""
    return dict(_keys_of(RunConfig, ""))


def _keys_of(section: type[BaseModel], prefix: str) -> list[tuple[str, str]]:
    keys: list[tuple[str, str]] = []
    for name, info in section.model_fields.items():
        annotation = info.annotation
        if isinstance(annotation, type) and issubclass(annotation, Section):
            keys.extend(_keys_of(annotation, f"{prefix}{name}."))
        else:
            keys.append((f"{prefix}{name}", info.description or ""))
    return keys
