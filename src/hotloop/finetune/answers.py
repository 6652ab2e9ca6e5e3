"""What a fine-tuned decoder says to prompts: `hotloop generate` of such a run."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hotloop.core.causal_config import CausalConfig, CausalModel
from hotloop.core.errors import UsageError
from hotloop.core.files import read_json
from hotloop.core.finetune_config import LoraConfig
from hotloop.core.settings import load_settings
from hotloop.finetune.adapters import check_lora
from hotloop.finetune.chats import PROMPTS_FILE, Prompts, read_sources
from hotloop.finetune.conduct import MERGED_DIRECTORY, MODEL_DIRECTORY
from hotloop.finetune.decoder import Vocabulary, load_decoder, load_vocabulary
from hotloop.finetune.pretrained import Warn
from hotloop.hardware.device import pick_device
from hotloop.models.export import quiet
from hotloop.models.sampling import choose, store_by_inputs
from hotloop.optimizations.compiling.trainer import compile_model
from hotloop.train.trained import MOST_CACHE_BYTES, Text

TOLERANCE = 1e-3
"""Largest difference of a padded prompt's logits from its own, relative to the largest where that is above 1."""


@torch.inference_mode()
def write_answers(
    run: Path,
    texts: Sequence[Text],
    *,
    device: str,
    warn: Warn,
    trusted: bool = False,
    compiled: bool = False,
    num_tokens: int,
    **how: Any,
) -> Iterator[None]:
    """As `train.trained.write_texts`; trusted: with code of the model's own. how: temperature, top_k, top_p.

    The first `next` reads the model and the prompts, the second compiles.
    """
    config, place = load_settings(run / "config.yaml", kind=CausalConfig).config, pick_device(device, asked_by="--device")  # fmt: skip
    own = run / MERGED_DIRECTORY if (run / MERGED_DIRECTORY).is_dir() else run / MODEL_DIRECTORY
    if not own.is_dir():
        do = "run the same `hotloop train` again, to its end"
        raise UsageError("this run has no model yet", where=str(own), do=do)
    model, vocabulary = _with_adapter(own, config.model.lora, place, warn, trusted) or _whole(own, place, warn, trusted)  # fmt: skip
    model.eval()
    if not getattr(model.config.get_text_config(), "num_attention_heads", None):
        what = f"{type(model).__name__} has no attention, whose keys and values `hotloop generate` keeps"
        raise UsageError(
            what, where=str(own), do="generate with transformers, which loads it from there"
        )
    tokenizer, longest = vocabulary.tokenizer, vocabulary.longest or 1 << 30
    named = model.generation_config.eos_token_id
    stops = {tokenizer.eos_token_id, *(named if isinstance(named, list) else [named])}
    chats = _are_chats(run, config, tokenizer, warn)
    if chats:  # the template ends an answer, often with another token
        said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "ANSWER"}]
        behind = tokenizer.apply_chat_template(said, tokenize=False).rpartition("ANSWER")[2]
        ids = tokenizer(behind.strip(), add_special_tokens=False)["input_ids"]
        stops |= {*ids[:1]} & {*tokenizer.get_added_vocab().values()}
    prompts = []
    for text in texts:
        prompts.append(_asked(tokenizer, text.prompt, chats=chats))
        text.begin(prompts[-1])
    most = max(map(len, prompts))
    if most >= longest:
        raise UsageError(f"a prompt has {most} tokens, and the model reads {longest}", do="shorten it")  # fmt: skip
    room = [min(num_tokens, longest - len(each)) for each in prompts]
    together = max(1, MOST_CACHE_BYTES // _row_bytes(model.config, min(most + num_tokens, longest)))
    if together > 1 and not _takes_padding(model, prompts):
        warn(f"{type(model).__name__} answers one prompt after the other: padded it gives other logits")  # fmt: skip
        together = 1
    yield
    cache = _compiled(model, prompts[:together], room, most + max(room), warn) if compiled else None
    if cache is None:
        store_by_inputs(model)
    yield
    for first in range(0, len(texts), together):
        part = slice(first, first + together)
        draws = [torch.Generator(place).manual_seed(text.seed) for text in texts[part]]

        def chosen(logits: Tensor, rows: list[int], draws: list[Any] = draws) -> list[int]:
            return choose(logits, [draws[row] for row in rows], **how)

        for row, number in _continued(model, prompts[part], room[part], stops, chosen, cache):
            text = texts[first + row]
            text.grow(tokenizer, number)
            if number is None:
                text.ended = "tokens" if text.tokens == room[first + row] else "end_of_text"
            yield


def _asked(tokenizer: Any, prompt: str, *, chats: bool) -> list[int]:
    """A prompt as token ids, without what the tokenizer puts behind a whole text: it ends an answer, and comes before none."""
    import jinja2

    words = prompt
    if chats:
        said = [{"role": "user", "content": prompt}]
        try:
            words = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
        except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
            what = f"the chat template does not take a single turn of a user: {str(error)[:200]}"
            raise UsageError(what, do="give the run's tokenizer one that does") from error
    ids: list[int] = tokenizer(words, add_special_tokens=False)["input_ids"]
    if not chats:
        whole = tokenizer(words)["input_ids"]
        ends = range(len(ids), len(whole) + 1)
        ids = next((whole[:end] for end in ends if whole[end - len(ids) : end] == ids), whole)
    if not ids and tokenizer.eos_token_id is None:
        what = "an empty prompt, and this tokenizer has no token that a text begins or ends with"
        raise UsageError(what, do="give a prompt")
    return ids or [tokenizer.eos_token_id]


def _are_chats(run: Path, config: CausalConfig, tokenizer: Any, warn: Warn) -> bool:
    """Whether prompts are turns of a chat, as those that the run learned from."""
    if (run / PROMPTS_FILE).is_file():
        return read_json(run / PROMPTS_FILE, Prompts).chats
    try:  # a run of before that file was written
        return read_sources(config).train[0].chat is not None
    except UsageError as error:
        chats = config.task == "instructions" and tokenizer.chat_template is not None
        if chats:
            warn(f"the prompts are written as chats, which nothing shows that the examples were: {error.what} ({config.data.file})")  # fmt: skip
        return chats


def _whole(own: Path, place: torch.device, warn: Warn, trusted: bool) -> tuple[Any, Vocabulary]:
    config = CausalModel(path=str(own), trust_remote_code=trusted)
    return load_decoder(config, place, warn).model.to(place), load_vocabulary(config, warn)


def _with_adapter(
    own: Path, lora: LoraConfig, place: torch.device, warn: Warn, trusted: bool
) -> tuple[Any, Vocabulary] | None:
    """The model that an adapter was trained beside, with it; `None` where `own` is no adapter."""
    if not (own / "adapter_config.json").is_file():
        return None
    check_lora(lora)
    import peft
    import transformers

    base = peft.PeftConfig.from_pretrained(str(own)).base_model_name_or_path
    plain = CausalModel(path=base, lora=lora.model_copy(update={"rank": 0}), trust_remote_code=trusted)  # fmt: skip
    vocabulary = load_vocabulary(plain, warn)
    tokenizer = transformers.AutoTokenizer.from_pretrained(own, local_files_only=True, trust_remote_code=trusted)  # fmt: skip
    model = load_decoder(plain, place, warn).model
    if lora.quantize == "none":
        model.to(place)
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = peft.PeftModel.from_pretrained(model, str(own)).get_base_model()
    return adapted, replace(vocabulary, tokenizer=tokenizer)


def _compiled(
    model: Any, prompts: Sequence[list[int]], room: Sequence[int], width: int, warn: Warn
) -> Any | None:
    """Compile what makes one more token of each prompt; returns the cache that its shapes are of, `width` tokens a row."""
    from transformers.cache_utils import Cache, StaticLayer

    config = model.config.get_text_config()
    kinds = {*(getattr(config, "layer_types", None) or ())}
    if not model._can_compile_fullgraph or kinds - {"full_attention", "sliding_attention"}:
        warn(f"--compile is off: transformers says of {type(model).__name__} that it cannot be compiled whole")  # fmt: skip
        return None
    # Layers of a sliding window count in Python, and would be compiled again in each step; its mask makes it as well.
    layers = [StaticLayer(max_cache_len=width) for _ in range(config.num_hidden_layers)]
    cache = Cache(layers=layers)
    compile_model(model, "reduce-overhead" if model.device.type == "cuda" else True)
    # The first token is the prompts' own; a CUDA graph is recorded in the second step.
    few = [min(4, each) for each in room]
    for _ in _continued(model, prompts, few, set(), lambda logits, rows: [0] * len(rows), cache):
        pass
    return cache


def _continued(
    model: Any,
    prompts: Sequence[list[int]],
    room: Sequence[int],
    stops: set[Any],
    chosen: Callable[[Tensor, list[int]], list[int]],
    cache: Any | None = None,
) -> Iterator[tuple[int, int | None]]:
    """Up to `room` ids that follow each of `prompts`, as (row, id); (row, None) ends a row.

    cache: a fixed one, whose rows all stay, for a model that is compiled: each step has the same shapes.
    """
    rows, left, past = list(range(len(prompts))), list(room), cache
    at = list(rows)  # of `rows` in the batch
    if cache is not None and cache.is_initialized:
        cache.reset()
        prompts = [*prompts, *[prompts[0]] * (len(cache.layers[0].keys) - len(prompts))]
    ids, mask, positions = _padded(prompts, model.device)
    if cache is not None:
        rest = cache.layers[0].max_cache_len - mask.shape[1]
        mask = torch.cat([mask, mask.new_ones(len(mask), rest)], 1)
    step = model.forward  # prompts have many lengths: the model itself is what may be compiled
    while rows:
        found = _read(step, ids, mask, positions, past, use_cache=True)
        past, step = found["cache" if "cache" in found else "past_key_values"], model
        numbers = chosen(found.logits[at, -1].float(), rows)
        kept = []
        for place, (row, number) in enumerate(zip(rows, numbers, strict=True)):
            if number not in stops:
                left[row] -= 1
                yield row, number
            if number in stops or not left[row]:
                yield row, None
            else:
                kept.append(place)
        rows, at, numbers = ([each[place] for place in kept] for each in (rows, at, numbers))
        ids, positions = _last(ids), _last(positions)
        if cache is None:
            if 0 < len(at) < len(ids):
                past.reorder_cache(torch.tensor(at, device=model.device))
                ids, mask, positions = ids[at], mask[at], positions[at]
                at = list(range(len(at)))
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
        # A row that has ended and is still there repeats its last token in place.
        ids[at] = torch.tensor(numbers, dtype=ids.dtype, device=model.device)[:, None]
        positions[at] += 1


def _padded(prompts: Sequence[list[int]], device: Any) -> tuple[Tensor, Tensor, Tensor]:
    """ids, mask and positions (B, T): the padding stands before a prompt, where what follows needs no gap."""
    widest = max(map(len, prompts))
    empty = [widest - len(each) for each in prompts]
    ids = [[each[0]] * num + each for num, each in zip(empty, prompts, strict=True)]
    at = torch.arange(widest) - torch.tensor(empty)[:, None]
    return torch.tensor(ids, device=device), (at >= 0).long().to(device), at.clamp(min=0).to(device)


def _last(each: Tensor) -> Tensor:
    """Its last column (B, 1), in strides that are the same whatever its width was."""
    return each[:, -1:].clone(memory_format=torch.contiguous_format)


def _read(step: Any, ids: Tensor, mask: Tensor, positions: Tensor, past: Any = None, **more: Any) -> Any:  # fmt: skip
    """What a model or its `forward` returns, of the last place alone where it can."""
    named = {"attention_mask": mask, "position_ids": positions, "logits_to_keep": 1}
    known = inspect.signature(getattr(step, "forward", step)).parameters
    if past is not None:  # by its name from transformers 5.24 on, or before
        more["cache" if "cache" in known else "past_key_values"] = past
    return step(input_ids=ids, **{k: v for k, v in named.items() if k in known}, **more)


def _takes_padding(model: Any, prompts: Sequence[list[int]]) -> bool:
    """Whether the shortest prompt padded to the longest is what it is by itself."""
    shortest, longest = min(prompts, key=len), max(prompts, key=len)
    if len(shortest) == len(longest):
        return True
    alone, both = (
        _read(model, *_padded(each, model.device), use_cache=False).logits[0, -1]
        for each in ([shortest], [shortest, longest])
    )
    return float((both - alone).abs().max()) <= TOLERANCE * max(1.0, float(alone.abs().max()))


def _row_bytes(config: Any, num_tokens: int) -> int:
    """Keys and values of one row in fp32."""
    own = config.get_text_config()
    heads = getattr(own, "num_key_value_heads", None) or own.num_attention_heads
    width = getattr(own, "head_dim", None) or own.hidden_size // own.num_attention_heads
    return int(8 * own.num_hidden_layers * heads * width * num_tokens)
