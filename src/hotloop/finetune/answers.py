"""What a fine-tuned decoder says to a prompt: `hotloop generate` of such a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from hotloop.core.causal_config import CausalConfig, CausalModel
from hotloop.core.errors import UsageError
from hotloop.core.settings import load_settings
from hotloop.finetune.causal_start import MERGED_DIRECTORY
from hotloop.finetune.chats import read_sources
from hotloop.finetune.conduct import MODEL_DIRECTORY
from hotloop.finetune.decoder import load_decoder, load_vocabulary
from hotloop.finetune.pretrained import Warn
from hotloop.hardware.device import pick_device
from hotloop.models.sampling import choose
from hotloop.train.trained import Text


@torch.inference_mode()
def write_answers(
    run: Path, texts: Sequence[Text], *, device: str, warn: Warn, num_tokens: int, **how: Any
) -> Iterator[None]:
    """As `train.trained.write_texts`, a text after the other; how: temperature, top_k, top_p. The first `next` reads the model."""
    config, place = load_settings(run / "config.yaml", kind=CausalConfig).config, pick_device(device, asked_by="--device")  # fmt: skip
    own = run / MERGED_DIRECTORY if (run / MERGED_DIRECTORY).is_dir() else run / MODEL_DIRECTORY
    if not (own / "config.json").is_file():
        do = "run the same `hotloop train` again, to its end; with an adapter add `model.lora.merge=true`"
        raise UsageError("this run has no whole model", where=str(own), do=do)
    vocabulary = load_vocabulary(str(own), warn)
    tokenizer, longest = vocabulary.tokenizer, vocabulary.longest or 1 << 30
    model = load_decoder(CausalModel(path=str(own)), place, warn).model.eval().to(place)
    named = model.generation_config.eos_token_id
    stops = {tokenizer.eos_token_id, *(named if isinstance(named, list) else [named])}
    try:
        chats = read_sources(config).train[0].chat is not None
    except UsageError:  # the file is gone
        chats = config.task == "instructions" and tokenizer.chat_template is not None
    if chats:  # the template ends an answer, often with another token
        said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "ANSWER"}]
        behind = tokenizer.apply_chat_template(said, tokenize=False).rpartition("ANSWER")[2]
        ids = tokenizer(behind.strip(), add_special_tokens=False)["input_ids"]
        stops |= {*ids[:1]} & {*tokenizer.get_added_vocab().values()}
    yield
    for text in texts:
        said = [{"role": "user", "content": text.prompt}]
        words = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True) if chats else text.prompt  # fmt: skip
        ids = tokenizer(words, add_special_tokens=not chats)["input_ids"] or [tokenizer.eos_token_id]  # fmt: skip
        if len(ids) >= longest:
            raise UsageError(f"a prompt has {len(ids)} tokens, and the model reads {longest}", do="shorten it")  # fmt: skip
        draw, past = torch.Generator(place).manual_seed(text.seed), None
        ended: Literal["end_of_text", "tokens"] = "tokens"
        for _ in range(min(num_tokens, longest - len(ids))):
            found = model(input_ids=torch.tensor([ids], device=place), past_key_values=past, use_cache=True)  # fmt: skip
            past, ids = found.past_key_values, choose(found.logits[:, -1].float(), [draw], **how)
            if ids[0] in stops:
                ended = "end_of_text"
                break
            text.grow(tokenizer, ids[0])
            yield
        text.grow(tokenizer, None)
        text.ended = ended
        yield
