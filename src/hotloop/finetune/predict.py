"""An exported model over many texts: labels with probabilities, numbers, or entities.

Texts are computed beside others of about their length, so that next to nothing is padding, and come out in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from hotloop.core.errors import EnvironmentFailed, UsageError
from hotloop.core.finetune_config import LoraConfig
from hotloop.core.progress import Progress, silent
from hotloop.core.untrusted import parse_object, read_bytes
from hotloop.finetune.adapters import check_lora, read_adapter
from hotloop.finetune.conduct import MODEL_DIRECTORY
from hotloop.finetune.encoder import check_ids, longest_text, pad_id_of
from hotloop.finetune.entities import entities_of
from hotloop.finetune.input_rows import InputRow, config_of
from hotloop.finetune.pretrained import check_directory, loading, tokenizer_json
from hotloop.finetune.start import ENTITY_MODEL_DIRECTORY
from hotloop.finetune.tagged import TAG, iob2
from hotloop.finetune.tokens import encoded, padded_rows
from hotloop.finetune.words import encode_words
from hotloop.report.numbers import counted

CHUNK = 4096
"""Texts that are tokenized and sorted together, and whose answers are kept until they are in order."""
BATCH_TOKENS = 2048
WIDEST = 1.15
"""The longest text of a batch, as a multiple of its shortest."""
MOST_TOKENS = 1 << 16
ADAPTERS = {
    "SEQ_CLS": "AutoPeftModelForSequenceClassification",
    "TOKEN_CLS": "AutoPeftModelForTokenClassification",
}
"""Classes of peft, by the task of an adapter."""
WHOLE = LoraConfig()
Kind = Literal["classification", "multilabel", "regression", "tokens"]
Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Predictor:
    model: Any
    tokenizer: Any
    kind: Kind
    names: tuple[str, ...]
    longest: int
    """Tokens that are read of a text: as many as were learned from, where a run says so, else as the model can."""
    device: torch.device
    identity: str = ""
    """Another one where the files of the model are others."""


def answer_columns(predictors: Sequence[Predictor]) -> list[str]:
    """What answers have but for the list of all probabilities."""
    others = {"tokens": ["entities"], "classification": ["predicted", "probability"]}
    return [name for own in predictors for name in others.get(own.kind, ["predicted"])]


def load_predictors(
    directory: Path, device: torch.device, warn: Callable[[str], None], *, trusted: bool = False
) -> list[Predictor]:
    """Of a model directory, or of a run of fine-tuning; two where it has labels and entities. trusted: with code of its own. Raises `UsageError`."""
    if (directory / "config.yaml").is_file() and not (directory / "config.json").is_file():
        own = [directory / name for name in (MODEL_DIRECTORY, ENTITY_MODEL_DIRECTORY)]
        there = [each for each in own if each.is_dir()]
        if not there:
            raise UsageError(
                "this run has no model yet",
                where=str(directory),
                do="run the same `hotloop train` again to its end; of a run that trains on text, `hotloop generate` is the command",
            )
        config = config_of(directory)
        longest, lora = (None, WHOLE) if config is None else (config.model.max_tokens, config.model.lora)  # fmt: skip
        return [load_predictor(each, device, warn, longest=longest, lora=lora, trusted=trusted) for each in there]  # fmt: skip
    return [load_predictor(directory, device, warn, trusted=trusted)]


def load_predictor(
    directory: Path,
    device: torch.device,
    warn: Callable[[str], None],
    *,
    longest: int | None = None,
    lora: LoraConfig = WHOLE,
    trusted: bool = False,
) -> Predictor:
    """longest: tokens of a text that the model has learned from; `None` reads as many as it and its tokenizer take. lora: how the weights are kept that an adapter was trained beside."""
    directory = directory.expanduser()
    is_adapter = (directory / "adapter_config.json").is_file()
    task, base = _adapter_of(directory) if is_adapter else ("", str(directory))
    needed = "config.json", "adapter_model.safetensors"
    if is_adapter and not (task in ADAPTERS and all((directory / name).is_file() for name in needed)):  # fmt: skip
        what = "this is an adapter of a decoder, which gives neither labels nor entities"
        do = "`hotloop generate RUN` answers with it; `peft.PeftModel.from_pretrained` reads it"
        if task in ADAPTERS:
            what = "this is an adapter of peft, and no whole model"
            do = f"`peft.{ADAPTERS[task]}.from_pretrained(DIR, num_labels=N).merge_and_unload().save_pretrained(WHOLE)`, and its tokenizer beside it, make one"
        raise UsageError(what, where=str(directory), do=do)
    if is_adapter:
        check_lora(LoraConfig(rank=1, quantize=lora.quantize))
    else:
        check_directory(directory)
    source, missing = str(directory), list[str]()
    with loading(base, warn, trusted=trusted) as (transformers, _, common):
        config = transformers.AutoConfig.from_pretrained(directory, **common)
        kind, auto = _kind_of(config, source)
        tokenizer = transformers.AutoTokenizer.from_pretrained(directory, **common)
        if is_adapter:
            model = read_adapter(directory, lora, auto, device, use_safetensors=True, **common).get_base_model()  # fmt: skip
        else:
            model, report = getattr(transformers, auto).from_pretrained(
                directory, use_safetensors=True, dtype=torch.float32, output_loading_info=True, **common
            )  # fmt: skip
            missing = sorted(map(str, report["missing_keys"]))
    if missing:
        what = f"this model has no trained head: {missing[0]} is missing"
        raise UsageError(what, where=source, do="fine-tune it first: `hotloop train --task ...`")
    tokenizer_json(tokenizer, source)
    names = tuple(str(config.id2label[number]) for number in range(config.num_labels))
    if kind == "tokens" and not any(map(TAG.fullmatch, names)):
        what = f"none of this model's labels is a tag of an entity: {', '.join(names[:10])}"
        do = "name them B-KIND, I-KIND and O in `id2label` of its config.json"
        raise UsageError(what, where=source, do=do)
    model.config.get_text_config().pad_token_id = pad_id_of(model, tokenizer)
    # Training cuts at no other length than its own, whatever the tokenizer names.
    longest = min(longest_text(model) or MOST_TOKENS, longest or tokenizer.model_max_length)
    files = [(each.name, each.stat()) for each in sorted(directory.iterdir())]
    identity = [(name, found.st_size, found.st_mtime_ns) for name, found in files]
    if lora.quantize == "none":  # else it is there
        model.to(device)
    return Predictor(model.eval(), tokenizer, kind, names, longest, device, f"{identity} {longest}")


def _adapter_of(directory: Path) -> tuple[str, str]:
    """What peft calls its task, and the model that it was trained beside."""
    try:
        found = parse_object(read_bytes(directory / "adapter_config.json"))
    except (OSError, ValueError):
        return "", ""
    return str(found.get("task_type")), str(found.get("base_model_name_or_path"))


def _kind_of(config: Any, source: str) -> tuple[Kind, str]:
    name = next(iter(config.architectures or ()), "")
    if name.endswith("ForTokenClassification"):
        return "tokens", "AutoModelForTokenClassification"
    if not name.endswith("ForSequenceClassification"):
        raise UsageError(
            f"this is a {name or 'model without a class'}, which gives neither labels nor entities",
            where=source,
            do="of a decoder, `hotloop generate RUN --prompt TEXT` shows what its run has learned"
            if name.endswith(("ForCausalLM", "LMHeadModel"))
            else "give a directory that `hotloop train --task ...` made, or its run",
        )
    kinds: dict[str, Kind] = {
        "multi_label_classification": "multilabel",
        "regression": "regression",
        "single_label_classification": "classification",
    }
    plain: Kind = "regression" if config.num_labels == 1 else "classification"
    return kinds.get(config.problem_type or "", plain), "AutoModelForSequenceClassification"


def predict(
    predictors: Sequence[Predictor],
    rows: Sequence[InputRow],
    *,
    begin: int = 0,
    progress: Progress = silent,
    warn: Callable[[str], None] = lambda message: None,
) -> Iterator[list[Answer]]:
    """Answers in the order of the rows from `begin` on, some of them at a time. A text without a token has none: `{}`."""
    num_cut, num_unread, done = 0, 0, begin * len(predictors)
    by_words = any(own.kind == "tokens" for own in predictors)  # as both heads learned them
    for start in range(begin, len(rows), CHUNK):
        chunk = rows[start : start + CHUNK]
        answers: list[Answer] = [{} for _ in chunk]
        there = [number for number, each in enumerate(chunk) if each.text.strip()]
        texts = [chunk[number].text for number in there]
        spans = [chunk[number].spans for number in there] if by_words else []
        cut = unread = 0
        for own in predictors:
            ids, word_of = _encoded(own, texts, spans)
            cut = sum(len(each) >= own.longest for each in ids)
            unread = sum(not len(each) for each in ids)
            for place, logits in _computed(own, ids):
                answers[there[place]] |= (
                    _entities(own, logits, word_of[place], spans[place], texts[place])
                    if own.kind == "tokens"
                    else _labels(own, logits)
                )
                done += 1
                progress("predicting", done / len(predictors), len(rows), "")
        num_cut, num_unread = num_cut + cut, num_unread + unread
        yield answers
    if num_unread:
        warn(f"without a token of this model, and so without an answer: {counted(num_unread, 'text')}")  # fmt: skip
    if num_cut:
        shortest = min(each.longest for each in predictors)
        warn(
            f"as long as what is read of a text ({shortest} tokens), and perhaps cut: {counted(num_cut, 'text')}"
        )


def _encoded(
    own: Predictor, texts: Sequence[str], spans: Sequence[Sequence[tuple[int, int]]]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """ids, and words where there are spans."""
    if not texts:
        return [], []
    words: list[np.ndarray] = []
    if spans:
        pieces = [[text[a:b] for a, b in parts] for text, parts in zip(texts, spans, strict=True)]
        ids, words = encode_words(own.tokenizer, pieces, own.longest)
    else:
        ids, _ = encoded(own.tokenizer, [text.strip() for text in texts], own.longest)
    check_ids(ids, own.model, own.model.name_or_path)
    return ids, words


@torch.no_grad()
def _computed(own: Predictor, ids: Sequence[np.ndarray]) -> Iterator[tuple[int, Tensor]]:
    """The place of each text that has a token, and its logits: (outputs), or (tokens, outputs)."""
    order = sorted((n for n in range(len(ids)) if len(ids[n])), key=lambda n: len(ids[n]))
    pad_id = own.model.config.get_text_config().pad_token_id
    begin = 0
    while begin < len(order):
        shortest = len(ids[order[begin]])
        end = begin + 1
        while (
            end < len(order) and pad_id is not None
        ):  # without one texts are computed one at a time
            width = len(ids[order[end]])
            if width > WIDEST * shortest + 1 or width * (end + 1 - begin) > BATCH_TOKENS:
                break
            end += 1
        chosen, begin = order[begin:end], end
        rows, mask = padded_rows([ids[place] for place in chosen], pad_id or 0)
        named = {"input_ids": rows.to(own.device), "attention_mask": mask.to(own.device)}
        logits = own.model(**named).logits.float().cpu()
        if not torch.isfinite(logits).all():
            raise EnvironmentFailed(
                "the model gives no numbers (NaN or infinity)",
                where=own.model.name_or_path,
                do="its training diverged: train it again with a lower rate",
            )
        for row, place in enumerate(chosen):
            yield place, logits[row, : len(ids[place])] if own.kind == "tokens" else logits[row]


def _labels(own: Predictor, logits: Tensor) -> Answer:
    if own.kind == "regression":
        return {"predicted": float(logits[0])}
    chances = logits.sigmoid() if own.kind == "multilabel" else logits.softmax(0)
    each = dict(zip(own.names, (round(float(p), 6) for p in chances), strict=True))
    if own.kind == "multilabel":
        return {"predicted": [name for name, p in each.items() if p > 0.5], "probabilities": each}
    best = own.names[int(chances.argmax())]
    return {"predicted": best, "probability": each[best], "probabilities": each}


def _entities(
    own: Predictor,
    logits: Tensor,
    words: np.ndarray,
    spans: Sequence[tuple[int, int]],
    text: str,
) -> Answer:
    chances, best = logits.softmax(1).max(1)
    tags, sure = ["O"] * len(spans), [0.0] * len(spans)
    before = -1
    for place, word in enumerate(words.tolist()):
        if word >= 0 and word != before:
            tags[word], sure[word] = own.names[int(best[place])], float(chances[place])
            before = word
    tags = [tag if TAG.fullmatch(tag) else "O" for tag in tags]
    return {
        "entities": [
            {
                "label": kind,
                "start": spans[first][0],
                "end": spans[last][1],
                "text": text[spans[first][0] : spans[last][1]],
                "probability": round(min(sure[first : last + 1]), 6),
            }
            for kind, first, last in entities_of(iob2(tags, ""))
        ]
    }
