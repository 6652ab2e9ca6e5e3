"""The settings of a fine-tuning: those of every training, with defaults that suit it, and its own data and model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hotloop.core.config import (
    EvalConfig,
    LoopConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
)
from hotloop.core.model_config import MAX_COUNT, Natural, Positive, PositiveNumber, Section, Seed


class ExamplesConfig(Section):
    file: str
    """Labelled texts: a csv, tsv or jsonl file with a header or keys."""
    text: Annotated[str, Field(min_length=1)] = "text"
    """Column that holds the text."""
    label: Annotated[str, Field(min_length=1)] = "label"
    """Column that holds the label; any text or number, taken as text."""
    held_out: Annotated[float, Field(ge=0, lt=1)] | str = 0.1
    """Part of each label's examples that is evaluated on and not trained on, or a file of such examples."""
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    """What stands between columns; else a comma, or a tab in .tsv."""
    seed: Seed = 0
    """Seed of the order, a permutation per epoch, and of which examples are held out."""


class EncoderConfig(Section):
    path: str
    """Directory (or cached name) of an encoder in the format of transformers, with safetensors weights."""
    max_tokens: Annotated[int, Field(ge=3, le=1 << 16)] = 128
    """Longer texts are cut."""


class FinetuneOptimizer(OptimizerConfig):
    name: Literal["adamw", "sgd"] = "adamw"
    learning_rate: PositiveNumber = 5e-5
    """Highest learning rate, reached after the warmup."""
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0


class FinetuneSchedule(ScheduleConfig):
    name: Literal["cosine", "linear", "constant", "wsd", "onecycle"] = "linear"
    warmup_steps: Natural = 0
    final_fraction: Annotated[float, Field(ge=0, le=1)] = 0.0


class FinetuneTrain(TrainConfig):
    epochs: Positive = 3
    """Passes over the examples; `train.steps` follows from them."""
    steps: Natural = 0
    """0 takes as many as `epochs` need; else that many are made, whatever the `epochs`."""
    microbatch: Positive = 16
    """Examples in one forward and backward. The last step of an epoch takes what is left."""
    init_from: None = None
    """No effect here: `model.path` is where the training starts from."""
    compile: Literal[False] = False
    """Not yet: every step has another number of tokens, for which it would be compiled anew."""
    attention: Literal["sdpa"] = "sdpa"
    gelu: Literal["tanh"] = "tanh"
    """No effect here: the model's own is taken."""
    loss: Literal["plain"] = "plain"
    activation_checkpointing: Literal["none"] = "none"


class FinetuneEval(EvalConfig):
    windows: Positive = MAX_COUNT
    """Held-out examples per evaluation, at most."""


class FinetuneConfig(LoopConfig):
    task: Literal["classification"]
    """What is learned: `classification` gives each text one label."""
    data: ExamplesConfig
    model: EncoderConfig
    optimizer: FinetuneOptimizer = FinetuneOptimizer()
    schedule: FinetuneSchedule = FinetuneSchedule()
    train: FinetuneTrain = FinetuneTrain()
    eval: FinetuneEval = FinetuneEval()
