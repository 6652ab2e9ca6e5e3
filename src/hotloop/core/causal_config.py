"""The settings of a decoder that learns answers to instructions, or goes on learning text."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hotloop.core.finetune_config import (
    Delimiter,
    FinetuneEval,
    FinetuneLoop,
    FinetuneTrain,
    Layout,
    LoraConfig,
    Name,
)
from hotloop.core.model_config import Positive, Section, Seed

CAUSAL_TASKS = ("instructions", "text")


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


class CausalModel(Section):
    path: str
    """Directory (or cached name) of a decoder in the format of transformers, with safetensors weights."""
    max_tokens: Annotated[int, Field(ge=2, le=1 << 20)] | Literal["auto"] = "auto"
    """Longer examples are cut; a longer text becomes several. `auto` is 1024, or what the model has positions for."""
    packed: Layout = "auto"
    """Examples lie one after the other without padding, where the model can do so. `buckets` pads those of similar length
    together, which all models take. `false` pads those of a microbatch to the longest, as `Trainer` does: what it is compared with.
    `auto` chooses among them by the lengths of the examples, and says why."""
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


def idle_causal_settings(config: CausalConfig) -> tuple[tuple[str, bool, str], ...]:
    """Rows of `idle_settings.without_effect`."""
    of_chats = "data.messages data.prompt data.completion data.chat_template"
    text = config.task == "text"
    return (
        ("train.class_weights", True, "remove it: a decoder has no classes"),
        (of_chats, text, "set `task: instructions`, or remove it"),
        ("data.text", not text, "set `task: text`, or remove it"),
    )
