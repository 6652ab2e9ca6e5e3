"""The settings of a decoder that learns answers to instructions, or goes on learning text."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from hotloop.core.finetune_config import (
    Delimiter,
    FinetuneEval,
    FinetuneLoop,
    FinetuneTrain,
    Layout,
)
from hotloop.core.model_config import Natural, Positive, PositiveNumber, Section, Seed

CAUSAL_TASKS = ("instructions", "text")
Name = Annotated[str, Field(min_length=1)]


class CausalData(Section):
    file: str
    """jsonl, csv or tsv with the columns below; of `task: text` also any other file, as one text."""
    messages: Name = "messages"
    """Column of whole chats: a list of `{role, content}`, which the chat template writes out. Where the file has it, the
    two below are not read. Only in jsonl."""
    prompt: Name = "prompt"
    """Column of what is only read."""
    completion: Name = "completion"
    """Column of what is learned."""
    text: Name = "text"
    """Column of texts that are learned as a whole, for `task: text`."""
    chat_template: str | None = None
    """A file with the template (jinja) to write chats with; null takes the tokenizer's own. It is exported with the model."""
    held_out: Annotated[float, Field(ge=0, lt=1)] | str = 0.1
    """Part of the examples that is evaluated on and not trained on, or a file of such examples."""
    delimiter: Delimiter | None = None
    """What stands between columns, a character or `tab`; else a comma, or a tab in .tsv."""
    seed: Seed = 0
    """Seed of the order, a permutation per epoch, and of which examples are held out."""


class LoraConfig(Section):
    rank: Natural = 0
    """Rank of the matrices that are added to the weights and trained in their place (LoRA, Hu et al. 2021, by peft). 0
    trains the weights themselves."""
    alpha: PositiveNumber = 16.0
    """What is added is scaled by this over `rank`."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the inputs of what is added that is dropped."""
    target: Name | list[Name] = "auto"
    """Names of the layers to add to; `auto` takes all linear ones but the output."""
    merge: bool = False
    """Also write `merged/`: the model with the adapter in its weights. A finished run that is started again with it does so."""
    quantize: Literal["none", "4bit"] = "none"
    """`4bit` keeps the weights that are not trained in NF4 (QLoRA, Dettmers et al. 2023, by bitsandbytes).
    Ran on a CPU, and on an H100 with torch 2.11."""


class CausalModel(Section):
    path: str
    """Directory (or cached name) of a decoder in the format of transformers, with safetensors weights."""
    max_tokens: Annotated[int, Field(ge=2, le=1 << 20)] | Literal["auto"] = "auto"
    """Longer examples are cut; a longer text becomes several. `auto` is 1024, or what the model has positions for."""
    packed: Layout = True
    """Examples lie one after the other without padding, where the model can do so. `buckets` pads those of similar length
    together, which all models take. `false` pads those of a microbatch to the longest, as `Trainer` does: what it is compared with."""
    trust_remote_code: bool = False
    """Run the code of a model that brings its own (`auto_map` in its config). It can do here whatever you can."""
    lora: LoraConfig = LoraConfig()


class CausalTrain(FinetuneTrain):
    microbatch: Positive = 8
    """Examples in one forward and backward. The last step of an epoch takes what is left."""


class CausalEval(FinetuneEval):
    metric: Literal["loss"] = "loss"
    """What evaluations are compared by: the held-out loss."""


class CausalConfig(FinetuneLoop):
    task: Literal["instructions", "text"]
    """What is learned: `instructions` answers to prompts or in chats, `text` all that is there (continued pretraining)."""
    data: CausalData
    model: CausalModel
    train: CausalTrain = CausalTrain()
    eval: CausalEval = CausalEval()

    @model_validator(mode="after")
    def _quantized(self) -> Self:
        lora = self.model.lora
        if lora.quantize != "none" and lora.merge:
            raise ValueError("`model.lora.merge` is not there for `model.lora.quantize: 4bit` yet")
        if lora.quantize != "none" and not lora.rank:
            raise ValueError(
                "`model.lora.quantize` keeps weights that are not trained; set `model.lora.rank`, or remove it"
            )
        return self


def idle_causal_settings(config: CausalConfig) -> tuple[tuple[str, bool, str], ...]:
    """Rows of `idle_settings.without_effect`."""
    lora = "model.lora.alpha model.lora.dropout model.lora.target model.lora.merge"
    of_chats = "data.messages data.prompt data.completion data.chat_template"
    text = config.task == "text"
    return (
        ("train.class_weights", True, "remove it: a decoder has no classes"),
        (lora, not config.model.lora.rank, "set `model.lora.rank`, or remove it"),
        (of_chats, text, "set `task: instructions`, or remove it"),
        ("data.text", not text, "set `task: text`, or remove it"),
    )
