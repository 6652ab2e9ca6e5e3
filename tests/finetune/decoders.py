"""Small decoders of transformers with random weights, a tokenizer trained here, and answers to learn."""

import json
import random
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

ANSWERS = {"sky": "blue", "grass": "green", "snow": "white", "coal": "black", "rose": "red"}
FILLER = ["please", "tell", "me", "now", "what", "colour", "is", "the", "really", "so", "and"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def asked(num: int = 64) -> list[tuple[str, str]]:
    """Prompts of 5 to 60 words, and their answers."""
    draw = random.Random(0)
    found = []
    for _ in range(num):
        thing = draw.choice(list(ANSWERS))
        length = min(60, max(4, int(draw.lognormvariate(2.2, 0.8))))
        words = [*(draw.choice(FILLER) for _ in range(length)), thing]
        found.append((" ".join(words) + ":", f" {ANSWERS[thing]}, {thing} is {ANSWERS[thing]}"))
    return found


def chat(prompt: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_prompts(path: Path, num: int = 64) -> Path:
    return write_lines(path, [{"prompt": a, "completion": b} for a, b in asked(num)])


def write_chats(path: Path, num: int = 64) -> Path:
    return write_lines(path, [{"messages": chat(a, b)} for a, b in asked(num)])


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|end|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["".join(pair) for pair in asked()], trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|end|>")


def config(kind: str) -> Any:
    sizes: dict[str, Any] = {
        "vocab_size": 328,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 160,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    match kind:
        case "gpt2":
            return transformers.GPT2Config(
                vocab_size=328,
                n_embd=32,
                n_layer=2,
                n_head=4,
                n_positions=160,
                bos_token_id=0,
                eos_token_id=0,
            )
        case "llama":
            return transformers.LlamaConfig(num_key_value_heads=2, pad_token_id=None, **sizes)
        case "qwen2":
            return transformers.Qwen2Config(num_key_value_heads=2, **sizes)
        case "pythia":
            return transformers.GPTNeoXConfig(**sizes)
        case "mistral":
            return transformers.MistralConfig(num_key_value_heads=2, sliding_window=16, **sizes)
        case "bloom":  # takes no position ids
            return transformers.BloomConfig(
                vocab_size=328, hidden_size=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
            )
        case "lfm2":  # a convolution, which keeps no keys, and attention
            return transformers.Lfm2Config(
                num_key_value_heads=2, layer_types=["conv", "full_attention"], **sizes
            )
        case "mamba":  # no attention at all
            return transformers.MambaConfig(
                vocab_size=328, hidden_size=32, num_hidden_layers=2, state_size=4, eos_token_id=0
            )
        case "gemma2":  # caps what attention sees
            return transformers.Gemma2Config(num_key_value_heads=2, head_dim=8, **sizes)
    raise AssertionError(kind)


def model_of(kind: str) -> Any:
    torch.manual_seed(1)
    return transformers.AutoModelForCausalLM.from_config(config(kind))


def save_decoder(kind: str, directory: Path, template: str | None = None) -> Path:
    model_of(kind).save_pretrained(directory)
    made = tokenizer()
    made.chat_template = template
    made.save_pretrained(directory)
    return directory
