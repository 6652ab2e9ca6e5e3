"""The settings of `hotloop.fit` with a module and examples of one's own."""

from __future__ import annotations

from typing import Literal

from hotloop.core.finetune_config import (
    FinetuneEval,
    FinetuneLoop,
    FinetuneOptimizer,
    FinetuneTrain,
)
from hotloop.core.model_config import Positive, PositiveNumber, Section, Seed


class ModuleData(Section):
    seed: Seed = 0
    """Seed of the order, a permutation per epoch, and of which examples are held out."""


class NoSettings(Section):
    """The module is what it was built as."""


class ModuleOptimizer(FinetuneOptimizer):
    learning_rate: PositiveNumber = 1e-3
    """Highest learning rate, reached after the warmup."""


class ModuleTrain(FinetuneTrain):
    microbatch: Positive = 32
    """Examples in one forward and backward. The last step of an epoch takes what is left."""
    compile: Literal[False] = False
    """Not yet: compile the module before it is given."""
    microbatch_tokens: None = None
    class_weights: None = None
    """Neither has an effect here: how long an example is, is not known, and the loss is given."""


class ModuleEval(FinetuneEval):
    metric: Literal["loss"] = "loss"
    """What evaluations are compared by: the held-out loss."""


class ModuleConfig(FinetuneLoop):
    task: Literal["module"] = "module"
    data: ModuleData = ModuleData()
    model: NoSettings = NoSettings()
    optimizer: ModuleOptimizer = ModuleOptimizer()
    train: ModuleTrain = ModuleTrain()
    eval: ModuleEval = ModuleEval()
