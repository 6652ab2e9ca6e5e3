"""Fine-tuning without padding against transformers' Trainer: examples per second, and what is learned.

    python benchmarks/finetune_speed.py [--rounds 3] [--epochs 1] [--examples 1200] [--cpu-seconds] [--out FILE.json]

Pieces of the Python standard library, of 4 to 128 tokens (log-normal, about 25 in the mean), are told apart by the
package that they are from. All arms start from the same random BERT (4 layers, width 256), take the same number of
examples per step and epoch, and run in fresh processes, interleaved. Trainer needs `accelerate`. Timed is the training
alone, without loading, evaluations and saves. `--cpu-seconds` counts CPU seconds of one thread in place of time, for a
machine that others use.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("asyncio", "email", "unittest", "xml")
BATCH, RATE, MAX_TOKENS = 16, 2e-4, 128
ARMS = ("hotloop", "hotloop-bf16", "trainer-max", "trainer-dynamic", "trainer-bf16-grouped")
CLOCK = time.process_time if os.environ.get("OMP_NUM_THREADS") == "1" else time.perf_counter
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def make(directory: Path, num: int) -> None:
    """train.csv, held-out.csv and a model directory."""
    import transformers
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    library = Path(sysconfig.get_paths()["stdlib"])
    words = {
        package: " ".join(
            path.read_text(encoding="utf-8", errors="replace")
            for path in sorted((library / package).rglob("*.py"))
            if "test" not in path.parts
        ).split()
        for package in PACKAGES
    }
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.train_from_iterator(
        (" ".join(each) for each in words.values()),
        trainers.WordPieceTrainer(vocab_size=8192, special_tokens=SPECIAL, show_progress=False),
    )
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    draw = random.Random(0)
    rows = []
    for _ in range(num + num // 4):
        package = draw.choice(PACKAGES)
        wanted = min(126, max(2, round(draw.lognormvariate(math.log(18), 0.75))))
        begin = draw.randrange(len(words[package]) - 128)
        pieces = made.encode(
            " ".join(words[package][begin : begin + 128]), add_special_tokens=False
        )
        end = pieces.offsets[min(wanted, len(pieces)) - 1][1]
        text = " ".join(words[package][begin : begin + 128])[:end]
        rows.append((text, package))
    for name, part in (("train.csv", rows[:num]), ("held-out.csv", rows[num:])):
        with (directory / name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("text", "label"), *part])
    lengths = [len(made.encode(text)) for text, _ in rows[:num]]
    print(
        f"{num} examples of {min(lengths)} to {max(lengths)} tokens, {statistics.fmean(lengths):.1f} in the mean"
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    )
    tokenizer.save_pretrained(directory / "model")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=8192,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        max_position_embeddings=MAX_TOKENS,
        num_labels=len(PACKAGES),
        id2label=dict(enumerate(PACKAGES)),
        label2id={name: number for number, name in enumerate(PACKAGES)},
    )
    transformers.BertForSequenceClassification(config).save_pretrained(directory / "model")


def by_hotloop(place: Path, out: Path, epochs: int, arm: str) -> dict[str, Any]:
    """Called in a process of its own."""
    from hotloop.cli.main import run
    from hotloop.train import loop, start

    seconds = {"train": 0.0, "evaluate": 0.0, "save": 0.0}

    def timed(module: Any, name: str) -> None:
        real = getattr(module, name)

        def call(*args: Any, **named: Any) -> Any:
            began = CLOCK()
            try:
                return real(*args, **named)
            finally:
                seconds[name] += CLOCK() - began

        setattr(module, name, call)

    timed(start, "train")
    timed(loop, "evaluate")
    timed(loop, "save")
    words = ["train", "--task", "classification"]
    words += ["--data", str(place / "train.csv"), "--model", str(place / "model")]
    words += [f"data.held_out={place / 'held-out.csv'}", f"train.epochs={epochs}"]
    words += [f"train.microbatch={BATCH}", f"optimizer.learning_rate={RATE}"]
    words += [f"train.precision={'bf16' if arm.endswith('bf16') else 'fp32'}"]
    words += [f"model.max_tokens={MAX_TOKENS}", "eval.every_steps=100000"]
    words += [
        "checkpoint.every_steps=0",
        "logging.tensorboard=false",
        "train.num_threads=1"
        if os.environ.get("OMP_NUM_THREADS") == "1"
        else "train.num_threads=auto",
    ]
    if run([*words, "--out", str(out)]):
        raise SystemExit(1)
    task = json.loads((out / "task.json").read_text())
    spent = seconds["train"] - seconds["evaluate"] - seconds["save"]
    num = len((place / "train.csv").read_text().splitlines()) - 1
    return {"rate": epochs * num / spent, **{k: task[k] for k in ("accuracy", "macro_f1")}}


def by_trainer(place: Path, out: Path, epochs: int, arm: str) -> dict[str, Any]:
    """Called in a process of its own."""
    import transformers

    from hotloop.core.finetune_config import ExamplesConfig
    from hotloop.finetune.examples import read_dataset
    from hotloop.finetune.scores import metrics

    config = ExamplesConfig(file=str(place / "train.csv"), held_out=str(place / "held-out.csv"))
    data = read_dataset(config, per_step=1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(place / "model")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(place / "model")

    def rows(examples: Any) -> list[dict[str, Any]]:
        padding = "max_length" if arm == "trainer-max" else False
        made = tokenizer(
            list(examples.texts), truncation=True, max_length=MAX_TOKENS, padding=padding
        )
        return [
            {"input_ids": ids, "attention_mask": mask, "labels": label}
            for ids, mask, label in zip(
                made["input_ids"], made["attention_mask"], data.numbers(examples), strict=True
            )
        ]

    named: dict[str, Any] = {}
    if arm == "trainer-bf16-grouped":
        fields = transformers.TrainingArguments.__dataclass_fields__
        grouped = {"train_sampling_strategy": "group_by_length"}
        named = {
            "bf16": True,
            **(grouped if "train_sampling_strategy" in fields else {"group_by_length": True}),
        }
    arguments = transformers.TrainingArguments(
        output_dir=str(out),
        num_train_epochs=epochs,
        per_device_train_batch_size=BATCH,
        learning_rate=RATE,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        **named,
    )
    trainer = transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=rows(data.train),
        eval_dataset=rows(data.held_out),
        data_collator=transformers.DataCollatorWithPadding(tokenizer),
    )
    began = CLOCK()
    trainer.train()
    seconds = CLOCK() - began
    logits = torch.from_numpy(trainer.predict(trainer.eval_dataset).predictions)
    counts = [[0] * len(data.classes) for _ in data.classes]
    for true, guess in zip(data.numbers(data.held_out), logits.argmax(1).tolist(), strict=True):
        counts[true][guess] += 1
    found = metrics(counts)
    rate = epochs * len(data.train) / seconds
    return {"rate": rate, **{name: found[name] for name in ("accuracy", "macro_f1")}}


def measured(place: Path, arm: str, round_: int, epochs: int) -> dict[str, Any]:
    out = place / f"{arm}-{round_}"
    os.environ["HOTLOOP_CACHE"] = str(place / "cache")
    words = [sys.executable, __file__, "--arm", arm, str(place), str(out), str(epochs)]
    ended = subprocess.run(words, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def main() -> None:
    if sys.argv[1:2] == ["--arm"]:
        arm, place, out, epochs = sys.argv[2:]
        by = by_hotloop if arm.startswith("hotloop") else by_trainer
        print(json.dumps(by(Path(place), Path(out), int(epochs), arm)))
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--examples", type=int, default=1200)
    parser.add_argument("--cpu-seconds", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.cpu_seconds:
        os.environ["OMP_NUM_THREADS"] = "1"
    found: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
    with tempfile.TemporaryDirectory() as directory:
        make(Path(directory), given.examples)
        for number in range(given.rounds):
            for arm in random.Random(number).sample(ARMS, len(ARMS)):
                found[arm].append(measured(Path(directory), arm, number, given.epochs))
                print(number, arm, json.dumps(found[arm][-1]), flush=True)
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}")
    for arm in ARMS:
        rates = [each["rate"] for each in found[arm]]
        ratios = [
            own["rate"] / each["rate"]
            for own, each in zip(found["hotloop"], found[arm], strict=True)
        ]
        scored = statistics.fmean(each["accuracy"] for each in found[arm])
        print(
            f"{arm:22} {statistics.median(rates):8.1f} examples per {'CPU second' if given.cpu_seconds else 'second'}, hotloop is {statistics.median(ratios):.2f}x "
            f"({min(ratios):.2f} to {max(ratios):.2f}), accuracy {scored:.3f}"
        )
    if given.out:
        given.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
