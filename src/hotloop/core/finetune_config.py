"""The settings of a fine-tuning: those of every training, with defaults that suit it, and its own data and model."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from hotloop.core.config import (
    EvalConfig,
    LoopConfig,
    OptimizerConfig,
    ScheduleConfig,
    StabilityConfig,
    TrainConfig,
)
from hotloop.core.model_config import MAX_COUNT, Natural, Positive, PositiveNumber, Section, Seed

Task = Literal["classification", "multilabel", "regression", "tokens", "classification+tokens"]
ALIASES = {"sentiment": "classification", "entities": "tokens", "ner": "tokens"}
"""Other names of tasks."""
LOWER_IS_BETTER = frozenset({"loss", "mae", "rmse"})
"""Measures of an evaluation; of all others more is better."""
MEASURES: dict[str, tuple[str, ...]] = {
    "classification": ("loss", "macro_f1", "accuracy"),
    "multilabel": ("loss", "macro_f1", "micro_f1", "accuracy"),
    "regression": ("loss", "mae", "rmse", "r2"),
    "tokens": ("loss", "f1", "precision", "recall", "accuracy"),
    "classification+tokens": ("loss", "mean_f1"),
}
"""What an evaluation of each task can be judged by."""

Name = Annotated[str, Field(min_length=1)]
Column = Name
Layout = bool | Literal["buckets", "auto"]
TYPED_TABS = {"tab": "\t", "\\t": "\t"}
Delimiter = Annotated[str, BeforeValidator(lambda given: TYPED_TABS.get(str(given), given)), Field(min_length=1, max_length=1)]  # fmt: skip


class ExamplesConfig(Section):
    file: str
    """Labelled texts: a csv, tsv or jsonl file with a header or keys. Of `tokens` jsonl, or columns as CoNLL has them."""
    text: Column = "text"
    """Column that holds the text."""
    label: Column | list[Column] = "label"
    """Column that holds the label; any text or number, taken as text. Of `multilabel` also a list of columns, 0 or 1 each."""
    separator: Column = "|"
    """What stands between the labels of one text of `multilabel`."""
    no_label: list[str] = Field(default=["nan", "null", "none", "n/a", "na"])
    """Words, in any case, that are refused as the label of a text, since tables have them where one is missing. `[]` takes
    each as a label."""
    words: Column = "words"
    """Of `tokens`, in jsonl: key of the words of a text."""
    tags: Column = "tags"
    """Of `tokens`, in jsonl: key of a tag for each word (O, B-PLACE, I-PLACE)."""
    spans: Column = "spans"
    """Of `tokens`, in jsonl, where there are no words: key of the entities of the text, each {start, end, label}, in characters."""
    held_out: Annotated[float, Field(ge=0, lt=1)] | str = 0.1
    """Part of each label's examples that is evaluated on and not trained on, or a file of such examples. 0 trains on all."""
    limit: Positive | None = None
    """Most examples that are read, drawn at random; null reads all."""
    delimiter: Delimiter | None = None
    """What stands between columns, a character or `tab`; else a comma, or a tab in .tsv."""
    seed: Seed = 0
    """Seed of the order, a permutation per epoch, and of which examples are held out."""


class LoraConfig(Section):
    rank: Natural = 0
    """Rank of the matrices that are added to the weights and trained in their place (LoRA, Hu et al. 2021, by peft), beside
    the head of an encoder. 0 trains the weights themselves."""
    alpha: PositiveNumber = 16.0
    """What is added is scaled by this over `rank`."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the inputs of what is added that is dropped."""
    target: Name | list[Name] = "auto"
    """Names of the layers to add to; `auto` takes all linear ones but the output, or the head."""
    merge: bool = False
    """Also write `merged/`: the model with the adapter in its weights. A finished run that is started again with it does so."""
    quantize: Literal["none", "4bit"] = "none"
    """`4bit` keeps the weights that are not trained in NF4 (QLoRA, Dettmers et al. 2023, by bitsandbytes).
    Ran on a CPU, and on an H100 with torch 2.11."""


class EncoderConfig(Section):
    path: str
    """Directory (or cached name) of an encoder in the format of transformers, with safetensors weights."""
    max_tokens: Annotated[int, Field(ge=3, le=1 << 16)] = 128
    """Longer texts are cut."""
    packed: Layout = "auto"
    """Examples lie one after the other without padding, where the model can do so. `buckets` pads those of similar length
    together, which all models take. `false` pads those of a microbatch to the longest, as `Trainer` does: what it is compared with.
    `auto` chooses among them by the lengths of the examples, and says why."""
    trust_remote_code: bool = False
    """Run the code of a model that brings its own (`auto_map` in its config). It can do here whatever you can."""
    lora: LoraConfig = LoraConfig()


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
    class_weights: Literal["balanced"] | dict[str, PositiveNumber] | None = None
    """How much an example counts, by its label: `balanced` as the labels are rare, or `{label: weight}`, 1 where none is given."""
    steps: Natural = 0
    """0 takes as many as `epochs` need; else that many are made, whatever the `epochs`."""
    microbatch: Positive = 16
    """Examples in one forward and backward. The last step of an epoch takes what is left."""
    microbatch_tokens: Positive | None = None
    """Most tokens, padding among them, in one forward and backward: a step has the same `microbatch` x `grad_accum_steps` examples
    and gradient, in other parts, and what is longer is one by itself. null divides by number."""
    init_from: None = None
    """No effect here: `model.path` is where the training starts from."""
    compile: bool | Literal["auto"] = "auto"
    """`true` compiles the layers, once for rows of any length. `auto` does not: on a CPU steps of encoders took longer, those of
    decoders and those on a GPU were not measured."""
    attention: Literal["sdpa"] = "sdpa"
    gelu: Literal["tanh"] = "tanh"
    """No effect here: the model's own is taken."""
    loss: Literal["plain"] = "plain"
    activation_checkpointing: Literal["none"] = "none"


class FinetuneEval(EvalConfig):
    windows: Positive = MAX_COUNT
    """Held-out examples per evaluation, at most."""
    every_epochs: Positive | None = None
    """Evaluate after so many epochs, in place of `every_steps`. With `patience` or `export: best`, each epoch if neither is given."""
    metric: str = "loss"
    """What evaluations are compared by: loss, or a measure of the task (accuracy, macro_f1; f1 of `tokens`; mae, rmse, r2)."""
    patience: Positive | None = None
    """End the training after so many evaluations without a better `metric`; null trains to the end."""
    export: Literal["last", "best"] = "last"
    """Which weights become the model: those of the last step, or of the best evaluation, whose checkpoint is kept."""


class FinetuneStability(StabilityConfig):
    spike_factor: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = None
    """null looks at the loss alone: once most examples are learned, a batch with one that is not has many times the usual gradient."""


class FinetuneLoop(LoopConfig):
    """What fine-tunings of every kind share."""

    optimizer: FinetuneOptimizer = FinetuneOptimizer()
    schedule: FinetuneSchedule = FinetuneSchedule()
    train: FinetuneTrain = FinetuneTrain()
    eval: FinetuneEval = FinetuneEval()
    stability: FinetuneStability = FinetuneStability()

    @model_validator(mode="after")
    def _quantized(self) -> Self:
        lora = getattr(self.model, "lora", None)
        if lora is None or lora.quantize == "none":
            return self
        if lora.merge:
            raise ValueError("`model.lora.merge` is not there for `model.lora.quantize: 4bit` yet")
        if not lora.rank:
            raise ValueError(
                "`model.lora.quantize` keeps weights that are not trained; set `model.lora.rank`, or remove it"
            )
        return self

    @model_validator(mode="after")
    def _evaluated(self) -> Self:
        chooses = self.eval.patience is not None or self.eval.export == "best"
        if chooses and getattr(self.data, "held_out", None) == 0:
            raise ValueError(
                "`eval.patience` and `eval.export: best` need evaluations, and `data.held_out` 0 leaves no example for them"
            )
        if chooses and not (self.eval.every_steps or self.eval.every_epochs):
            raise ValueError(
                "`eval.patience` and `eval.export: best` need evaluations, and `eval.every_steps` 0 makes none"
            )
        return self

    @property
    def may_compile(self) -> bool:
        return self.train.compile is True

    @property
    def end_of_decay(self) -> int:
        """As `Trainer` of transformers counts: a rate that falls to 0 does so behind the last step, which still learns."""
        return self.train.steps


class FinetuneConfig(FinetuneLoop):
    task: Task
    """What is learned: `classification` gives each text one label, `multilabel` any number of them, `regression` a number,
    `tokens` finds entities in it; `classification+tokens` learns a label and entities with one encoder."""
    data: ExamplesConfig
    model: EncoderConfig

    @field_validator("task", mode="before")
    @classmethod
    def _one_name(cls, given: Any) -> Any:
        if isinstance(given, list) and all(isinstance(each, str) for each in given):
            given = "+".join(sorted(ALIASES.get(str(each), str(each)) for each in given))
        return ALIASES.get(given, given) if isinstance(given, str) else given

    @model_validator(mode="after")
    def _of_this_task(self) -> Self:
        measures = MEASURES[self.task]
        if self.eval.metric not in measures:
            raise ValueError(
                f"`eval.metric` {self.eval.metric} is none of `task: {self.task}`, which has {', '.join(measures)}"
            )
        if isinstance(self.data.label, list) and self.task != "multilabel":
            raise ValueError(f"`data.label` is one column with `task: {self.task}`")
        if self.train.class_weights is not None and not self.task.startswith("classification"):
            raise ValueError(f"`train.class_weights` has no effect with `task: {self.task}`")
        return self
