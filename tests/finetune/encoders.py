"""Small encoders of transformers with random weights, a tokenizer trained here, and labelled texts to learn."""

import csv
import random
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

TELLING = {
    "bad": ["awful", "poor", "sad", "terrible"],
    "good": ["great", "lovely", "happy", "superb"],
    "so-so": ["plain", "usual", "okay", "fair"],
}
FILLER = [
    "the",
    "a",
    "film",
    "was",
    "and",
    "it",
    "i",
    "think",
    "that",
    "of",
    "with",
    "story",
    "very",
    "really",
    "quite",
]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def rows(num: int = 120) -> list[tuple[str, str]]:
    """Texts of 3 to 100 words and their labels."""
    draw = random.Random(0)
    found = []
    for _ in range(num):
        label = draw.choice(list(TELLING))
        length = min(100, max(3, int(draw.lognormvariate(2.3, 0.8))))
        words = [draw.choice(FILLER + 3 * TELLING[label]) for _ in range(length)]
        found.append((" ".join(words), label))
    return found


def write_csv(path: Path, num: int = 120) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows(num)])
    return path


def _vocabulary() -> dict[str, int]:
    """Every word as a whole, and what others are made of. A trainer would number them in another order in each process."""
    words = sorted({word for text, _ in rows() for word in text.split()})
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    pieces = [*SPECIAL, *",.-", *letters, *(f"##{each}" for each in letters), *words]
    return {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    made = Tokenizer(models.WordPiece(_vocabulary(), unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    )


def config(kind: str) -> Any:
    sizes = {
        "vocab_size": 128,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        "max_position_embeddings": 140,
        "pad_token_id": 0,
    }
    match kind:
        case "bert":
            return transformers.BertConfig(**sizes)
        case "roberta":
            return transformers.RobertaConfig(**sizes)
        case "electra":
            return transformers.ElectraConfig(embedding_size=16, **sizes)
        case "distilbert":
            return transformers.DistilBertConfig(
                vocab_size=128,
                dim=32,
                n_layers=2,
                n_heads=2,
                hidden_dim=48,
                max_position_embeddings=140,
            )
        case "modernbert":  # every second layer reads 8 tokens to each side
            special = {"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
            layers = ["full_attention", "sliding_attention"]
            return transformers.ModernBertConfig(local_attention=16, layer_types=layers, **special, **sizes)  # fmt: skip
        case "gpt2":  # its head reads the last token
            return transformers.GPT2Config(
                vocab_size=128, n_embd=32, n_layer=2, n_head=2, n_positions=140, pad_token_id=0
            )
        case "xlnet":  # takes no position ids
            return transformers.XLNetConfig(
                vocab_size=128, d_model=32, n_layer=2, n_head=2, d_inner=48, pad_token_id=0
            )
    raise AssertionError(kind)


def save_encoder(kind: str, directory: Path) -> Path:
    """Without a head, as pretrained encoders are."""
    torch.manual_seed(0)
    transformers.AutoModel.from_config(config(kind)).save_pretrained(directory)
    tokenizer().save_pretrained(directory)
    return directory


NAMES = {"PLACE": (["great", "oslo"], "superb"), "PERSON": (["plain", "anna"], "usual")}
"""First words of entities, of one token and of several, and the second one."""


def tagged(num: int = 120) -> list[tuple[list[str], list[str]]]:
    """Words and IOB2 tags, of entities of one or two words."""
    draw = random.Random(1)
    found = []
    for _ in range(num):
        words, tags = [], []
        for _ in range(draw.randint(1, 6)):
            for filler in draw.choices(FILLER, k=draw.randint(0, 3)):
                words.append(filler)
                tags.append("O")
            kind = draw.choice(list(NAMES))
            length = draw.randint(1, 2)
            first, second = NAMES[kind]
            words += [draw.choice(first), second][:length]
            tags += [f"B-{kind}", f"I-{kind}"][:length]
        found.append((words, tags))
    return found


def write_conll(path: Path, num: int = 120) -> Path:
    sentences = (
        "\n".join(f"{w} x {t}" for w, t in zip(*each, strict=True)) for each in tagged(num)
    )
    path.write_text("-DOCSTART- -X- O\n\n" + "\n\n".join(sentences) + "\n")
    return path
