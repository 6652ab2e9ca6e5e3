"""Fine-tuning a decoder on answers, without padding, against transformers' Trainer: tokens per CPU second, and what is learned.

    python benchmarks/finetune_causal.py [--rounds 3] [--examples 320] [--kind llama] [--out FILE.json]
    python benchmarks/finetune_causal.py --few [--epochs 200] [--rounds 3] [--kind llama] [--size small]

Pieces of the Python standard library: a prompt that is only read, and what follows it, which is learned. Lengths are
log-normal, of prompts about 30 tokens in the median (sigma 0.9) and of answers 60 (sigma 1.0), as sets of instructions are
spread, cut at 512. All arms start from the same random decoder (4 layers, width 256, 8192 tokens), take 8 examples per step
and the same number of steps, each round in an order of its own, and run in fresh processes of one thread, interleaved. Trainer pads each batch to its longest
example, which is its default with the collator that it brings for this. Counted are CPU seconds of the training alone, without
loading, evaluations and saves; and the mean loss over the held-out answers afterwards, by the same code for all arms.
Trainer needs `accelerate`. `--few` is 25 examples, one a step, against a plain loop that tokenizes in `__getitem__`; as it is written most often it pads
to a fixed length (`plain-max`, 128 tokens), `plain` does not. There all CPUs work and the clock counts, the loss is the mean of the last 25 steps.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import finetune_speed

BATCH, RATE, MAX_TOKENS = 8, 1e-3, 512
ARMS = ("hotloop", "hotloop-bf16", "trainer", "trainer-bf16-grouped")
FEW_ARMS = ("hotloop", "hotloop-bf16", "plain", "plain-max")
FEW_TOKENS = 128
SIZES = {"small": (4, 256, 8192), "base": (6, 384, 30522), "gpt2": (12, 768, 50257)}
"""Layers, width, tokens of the vocabulary at most."""
COMPILED = ("hotloop-compiled", "hotloop-bf16-compiled")
"""Compiled before the first step, which is not counted."""


def make(directory: Path, num: int, kind: str, size: str, max_tokens: int) -> None:
    """train.jsonl, held-out.jsonl and a model directory."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    layers, width, vocabulary = SIZES[size]
    library = Path(sysconfig.get_paths()["stdlib"])
    text = "\n".join(
        path.read_text(encoding="utf-8", errors="replace")
        for path in sorted(library.glob("*.py"))[: 120 if size == "small" else None]
    )
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(
        text.split("\n"),
        trainers.BpeTrainer(
            vocab_size=vocabulary,
            special_tokens=["<|end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    places = made.encode(text[:2_000_000]).offsets
    draw = random.Random(0)
    rows, lengths = [], []

    def length(median: float, sigma: float, most: int) -> int:
        return min(most, max(2, round(draw.lognormvariate(math.log(median), sigma))))

    for _ in range(num + num // 4):
        prompt = length(30, 0.9, max_tokens // 2)
        answer = length(60, 1.0, max_tokens - prompt - 2)
        begin = draw.randrange(len(places) - MAX_TOKENS)
        a, b, c = (places[begin + n][0] for n in (0, prompt, prompt + answer))
        rows.append({"prompt": text[a:b], "completion": text[b:c]})
        lengths.append(prompt + answer + 1)
    for name, part in (("train.jsonl", rows[:num]), ("held-out.jsonl", rows[num:])):
        (directory / name).write_text("".join(json.dumps(row) + "\n" for row in part))
    mean = statistics.fmean(lengths[:num])
    each = [lengths[at : at + BATCH] for at in range(0, num, BATCH)]
    padded = sum(max(batch) * len(batch) for batch in each) / sum(lengths[:num])
    print(
        f"{num} examples of {min(lengths)} to {max(lengths)} tokens, {mean:.1f} in the mean; padded to the longest of {BATCH} they are {padded:.2f} times as many"
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|end|>", pad_token="<|end|>"
    )
    tokenizer.save_pretrained(directory / "model")
    torch.manual_seed(0)
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    if kind == "gpt2":
        config: Any = transformers.GPT2Config(
            vocab_size=made.get_vocab_size(),
            n_embd=width,
            n_layer=layers,
            n_head=width // 64,
            n_positions=MAX_TOKENS,
            **ends,
        )
    else:
        config = transformers.LlamaConfig(
            vocab_size=made.get_vocab_size(),
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=width // 64,
            num_key_value_heads=width // 64,
            intermediate_size=round(width * 8 / 3 / 16) * 16,
            max_position_embeddings=MAX_TOKENS,
            pad_token_id=None,
            **ends,
        )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(directory / "model")


def examples(place: Path, name: str, tokenizer: Any) -> list[Any]:
    from hotloop.core.causal_config import CausalConfig
    from hotloop.finetune.chats import read_sources
    from hotloop.finetune.sequences import Counts, examples_of

    config = CausalConfig.model_validate(
        {
            "task": "instructions",
            "data": {"file": str(place / name), "held_out": 0.0},
            "model": {"path": "", "max_tokens": MAX_TOKENS},
        }
    )
    return examples_of(config, tokenizer, name, read_sources(config).train, Counts())


def held_out_loss(place: Path, model: Any) -> float:
    """The same for all arms: each example by itself, the mean over what is learned."""
    import torch
    import torch.nn.functional as F
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(place / "model")
    total, number = 0.0, 0
    model.eval()
    with torch.no_grad():
        for each in examples(place, "held-out.jsonl", tokenizer):
            ids = torch.from_numpy(each.ids.astype("int64"))[None]
            labels = ids[0].where(torch.from_numpy(each.learned), torch.tensor(-100))
            logits = model(input_ids=ids).logits[0].float()
            total += float(F.cross_entropy(logits[:-1], labels[1:], reduction="sum"))
            number += each.num_targets
    return total / number


def by_hotloop(place: Path, out: Path, epochs: int, arm: str, seed: int, few: bool) -> float:
    """CPU seconds, of few examples seconds. Called in a process of its own."""
    from hotloop.cli.main import run

    spent = finetune_speed.training_alone()
    words = ["train", "--task", "instructions"]
    words += ["--data", str(place / "train.jsonl"), "--model", str(place / "model")]
    words += [f"data.held_out={place / 'held-out.jsonl'}", f"train.epochs={epochs}"]
    words += [f"data.seed={seed}", f"train.seed={seed}"]
    words += [f"train.microbatch={1 if few else BATCH}"]
    words += [f"optimizer.learning_rate={finetune_speed.RATE if few else RATE}"]
    words += ["schedule.name=constant", "train.clip_norm=null"] if few else []
    words += [f"train.precision={'bf16' if 'bf16' in arm else 'fp32'}"]
    words += [f"train.compile={str(arm in COMPILED).lower()}"]
    words += [f"model.max_tokens={MAX_TOKENS}", "eval.every_steps=100000"]
    words += ["checkpoint.every_steps=0", "logging.tensorboard=false"]
    words += ["train.num_threads=auto" if few else "train.num_threads=1"]
    if run([*words, "--out", str(out)]):
        raise SystemExit(1)
    return spent()


def by_trainer(place: Path, out: Path, epochs: int, arm: str, seed: int) -> float:
    """CPU seconds. Called in a process of its own."""
    import numpy as np
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(place / "model")
    model = transformers.AutoModelForCausalLM.from_pretrained(place / "model")
    rows = [
        {
            "input_ids": each.ids.tolist(),
            "attention_mask": [1] * len(each.ids),
            "labels": np.where(each.learned, each.ids, -100).tolist(),
        }
        for each in examples(place, "train.jsonl", tokenizer)
    ]
    collator = transformers.DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=-100)
    trainer = transformers.Trainer(
        model=model,
        args=finetune_speed.trainer_arguments(out, epochs, arm, seed, RATE),
        train_dataset=rows,
        data_collator=collator,
    )
    began = finetune_speed.CLOCK()
    trainer.train()
    seconds = finetune_speed.CLOCK() - began
    trainer.model.save_pretrained(out / "model")
    return seconds


def by_loop(place: Path, out: Path, epochs: int, arm: str, seed: int) -> float:
    """Seconds. Called in a process of its own."""
    import torch
    import transformers

    rows = [json.loads(line) for line in (place / "train.jsonl").open(encoding="utf-8")]
    tokenizer = transformers.AutoTokenizer.from_pretrained(place / "model")
    model = transformers.AutoModelForCausalLM.from_pretrained(place / "model")
    model.to(device := "cuda" if torch.cuda.is_available() else "cpu")

    class Answers(torch.utils.data.Dataset[dict[str, Any]]):
        def __len__(self) -> int:
            return len(rows)

        def __getitem__(self, index: int) -> dict[str, Any]:
            prompt = tokenizer(rows[index]["prompt"])["input_ids"]
            answer = tokenizer(rows[index]["completion"])["input_ids"] + [tokenizer.eos_token_id]
            ids = torch.tensor(prompt + answer)[:FEW_TOKENS]
            labels = torch.tensor([-100] * len(prompt) + answer)[:FEW_TOKENS]
            mask = torch.ones_like(ids)
            if arm == "plain-max":
                rest = (0, FEW_TOKENS - len(ids))
                ids = torch.nn.functional.pad(ids, rest, value=tokenizer.pad_token_id)
                labels = torch.nn.functional.pad(labels, rest, value=-100)
                mask = torch.nn.functional.pad(mask, rest)
            return {"input_ids": ids, "attention_mask": mask, "labels": labels}

    losses, ends = finetune_speed.plain_loop(model, Answers(), epochs, device, seed)
    out.mkdir()
    (out / "steps.jsonl").write_text("".join(json.dumps({"loss": each}) + "\n" for each in losses))
    return ends[-1] - ends[0]


def one(place: Path, out: Path, epochs: int, arm: str, seed: int) -> dict[str, Any]:
    import transformers

    if few := arm.startswith("few-"):
        arm = arm.removeprefix("few-")
        if arm.startswith("plain"):
            seconds = by_loop(place, out, epochs, arm, seed)
        else:
            seconds = by_hotloop(place, out, epochs, arm, seed, few)
        losses = [json.loads(line)["loss"] for line in (out / "steps.jsonl").open()]
        return {"seconds": seconds, "loss": statistics.fmean(losses[-25:])}
    if arm.startswith("hotloop"):
        seconds = by_hotloop(place, out, epochs, arm, seed, few)
    else:
        seconds = by_trainer(place, out, epochs, arm, seed)
    model = transformers.AutoModelForCausalLM.from_pretrained(out / "model")
    return {"seconds": seconds, "loss": held_out_loss(place, model)}


def measured(place: Path, arm: str, number: int, epochs: int) -> dict[str, Any]:
    words = [sys.executable, __file__, "--arm", arm, str(place), str(place / f"{arm}-{number}")]
    environment = {
        **os.environ,
        **({} if arm.startswith("few-") else {"OMP_NUM_THREADS": "1"}),
        "TOKENIZERS_PARALLELISM": "false",
        "HOTLOOP_CACHE": str(place / "cache"),
    }
    ended = subprocess.run(
        [*words, str(epochs), str(number)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    shutil.rmtree(place / f"{arm}-{number}")
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def main() -> None:
    if sys.argv[1:2] == ["--arm"]:
        arm, place, out, epochs, *seed = sys.argv[2:]
        print(json.dumps(one(Path(place), Path(out), int(epochs), arm, int((seed or [0])[0]))))
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--few", action="store_true")
    parser.add_argument("--examples", type=int, default=320)
    parser.add_argument("--size", choices=tuple(SIZES), default="small")
    parser.add_argument("--kind", choices=("llama", "gpt2"), default="llama")
    parser.add_argument("--arms", nargs="+", choices=(*ARMS, *COMPILED, *FEW_ARMS))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    few: bool = given.few
    given.arms = given.arms or (FEW_ARMS if few else ARMS)
    epochs = given.epochs or (200 if few else 1)
    num, max_tokens = (25, FEW_TOKENS) if few else (given.examples, MAX_TOKENS)
    found: dict[str, list[dict[str, Any]]] = {arm: [] for arm in given.arms}
    with tempfile.TemporaryDirectory() as directory:
        make(Path(directory), num, given.kind, given.size, max_tokens)
        for number in range(given.rounds):
            for arm in random.Random(number).sample(given.arms, len(given.arms)):
                named = f"few-{arm}" if few else arm
                found[arm].append(measured(Path(directory), named, number, epochs))
                print(number, arm, json.dumps(found[arm][-1]), flush=True)
    threads = "all CPUs" if few else "one thread"
    print(f"{platform.processor() or platform.machine()}, {given.kind}, {threads}")
    unit = "seconds" if few else "CPU seconds"
    for arm in given.arms:
        seconds = [each["seconds"] for each in found[arm]]
        losses = [each["loss"] for each in found[arm]]
        told = f"{arm:22} {statistics.median(seconds):7.1f} {unit}, {'last' if few else 'held-out'} loss {statistics.fmean(losses):.4f} ({min(losses):.4f} to {max(losses):.4f})"
        for own in ("hotloop", "hotloop-bf16"):
            if own in found:
                pairs = zip(seconds, found[own], strict=True)
                ratios = [theirs / each["seconds"] for theirs, each in pairs]
                told += f"; {own} is {statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})"
        print(told)
    if given.out:
        given.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
