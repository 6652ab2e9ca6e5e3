"""Fine-tuning without padding against transformers' Trainer: examples per second, and what is learned.

    python benchmarks/finetune_speed.py [--size small|base] [--rounds 3] [--examples 800] [--cpu-seconds] [--out FILE.json]
    python benchmarks/finetune_speed.py --few [--epochs 200] [--cpu-seconds]

Pieces of the Python standard library, of 4 to 128 tokens (log-normal, about 25 in the mean), are told apart by the
package that they are from. All arms start from the same random BERT (`SIZES`; its vocabulary is of the whole standard
library), take the same number of examples per step (8, Trainer's default), and run in fresh processes, interleaved.
Trainer needs `accelerate`. Timed is the training alone, without loading, evaluations and saves; `late` is its second
half, when all is compiled. `--cpu-seconds` counts CPU seconds of one thread in place of time, for a machine that
others use. `--few` is 25 examples against a plain loop of batch 1 that tokenizes in `__getitem__`.
"""

from __future__ import annotations

import argparse
import csv
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
import time
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("asyncio", "email", "unittest", "xml")
BATCH, RATE, MAX_TOKENS = 8, 1e-4, 128
ARMS = (
    "hotloop",
    "hotloop-bf16",
    "trainer-max",
    "trainer-dynamic",
    "trainer-bf16-grouped",
    "trainer-bf16-grouped-compiled",
)
FEW_ARMS = ("hotloop", "plain", "plain-max")
SIZES = {"tiny": (2, 128, 8192), "small": (4, 256, 8192), "base": (6, 384, 30522)}
"""Layers, width, tokens of the vocabulary at most."""
CLOCK = time.process_time if os.environ.get("OMP_NUM_THREADS") == "1" else time.perf_counter
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def make(directory: Path, num: int, size: str) -> None:
    """train.csv, held-out.csv and a model directory."""
    layers, width, vocabulary = SIZES[size]
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
        (
            path.read_text(encoding="utf-8", errors="replace")
            for path in sorted(library.rglob("*.py"))
            if not {"test", "site-packages"} & set(path.parts)
        ),
        trainers.WordPieceTrainer(
            vocab_size=vocabulary, special_tokens=SPECIAL, show_progress=False
        ),
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
        f"{num} examples of {min(lengths)} to {max(lengths)} tokens, {statistics.fmean(lengths):.1f} in the mean; "
        f"BERT of {layers} layers, width {width}, {made.get_vocab_size()} tokens"
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
        vocab_size=made.get_vocab_size(),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        max_position_embeddings=MAX_TOKENS,
        num_labels=len(PACKAGES),
        id2label=dict(enumerate(PACKAGES)),
        label2id={name: number for number, name in enumerate(PACKAGES)},
    )
    transformers.BertForSequenceClassification(config).save_pretrained(directory / "model")


def step_ends(module: Any, name: str) -> list[float]:
    """The clock at the end of each step, which ends with a call of that function."""
    real, found = getattr(module, name), list[float]()

    def call(*args: Any, **named: Any) -> Any:
        result = real(*args, **named)
        found.append(CLOCK())
        return result

    setattr(module, name, call)
    return found


def late(ends: list[float], num: int) -> float:
    """Examples per second in the second half of the steps."""
    half = len(ends) // 2
    return num * (len(ends) - half) / len(ends) / (ends[-1] - ends[half - 1])


def by_hotloop(
    place: Path, out: Path, epochs: int, arm: str, few: bool, seed: int = 0
) -> dict[str, Any]:
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
    ends = step_ends(loop, "update")
    words = ["train", "--task", "classification"]
    words += ["--data", str(place / "train.csv"), "--model", str(place / "model")]
    words += [f"data.held_out={place / 'held-out.csv'}", f"train.epochs={epochs}"]
    words += [f"train.seed={seed}", f"data.seed={seed}"]
    words += [f"train.microbatch={1 if few else BATCH}", f"optimizer.learning_rate={RATE}"]
    words += ["schedule.name=constant", "train.clip_norm=null"] if few else []
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
    losses = [json.loads(line)["loss"] for line in (out / "steps.jsonl").open()]
    return {
        "rate": epochs * num / spent,
        "late": late(ends, epochs * num),
        "last_loss": statistics.fmean(losses[-25:]),
        **{k: task[k] for k in ("accuracy", "macro_f1")},
    }


def by_loop(place: Path, out: Path, epochs: int, arm: str, few: bool) -> dict[str, Any]:
    """A plain loop of batch 1, as many write it. Called in a process of its own."""
    import transformers

    rows = list(csv.DictReader((place / "train.csv").open(encoding="utf-8")))
    tokenizer = transformers.AutoTokenizer.from_pretrained(place / "model")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(place / "model")

    class Texts(torch.utils.data.Dataset[dict[str, Any]]):
        def __len__(self) -> int:
            return len(rows)

        def __getitem__(self, index: int) -> dict[str, Any]:
            padding = "max_length" if arm == "plain-max" else False
            made = tokenizer(
                rows[index]["text"],
                truncation=True,
                max_length=MAX_TOKENS,
                padding=padding,
                return_tensors="pt",
            )
            label = torch.tensor(PACKAGES.index(rows[index]["label"]))
            return {**{name: each[0] for name, each in made.items()}, "labels": label}

    torch.manual_seed(0)
    loader = torch.utils.data.DataLoader(Texts(), batch_size=1, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    model.train()
    losses: list[float] = []
    ends = [CLOCK()]
    for _ in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            ends.append(CLOCK())
    num = epochs * len(rows)
    return {
        "rate": num / (ends[-1] - ends[0]),
        "late": late(ends[1:], num),
        "last_loss": statistics.fmean(losses[-25:]),
    }


def by_trainer(
    place: Path, out: Path, epochs: int, arm: str, few: bool, seed: int = 0
) -> dict[str, Any]:
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
                made["input_ids"],
                made["attention_mask"],
                map(data.classes.index, examples.labels),
                strict=True,
            )
        ]

    named: dict[str, Any] = {}
    if arm.startswith("trainer-bf16-grouped"):
        fields = transformers.TrainingArguments.__dataclass_fields__
        grouped = {"train_sampling_strategy": "group_by_length"}
        named = {
            "bf16": True,
            "torch_compile": arm.endswith("compiled"),
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
        seed=seed,
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
    ends: list[float] = []

    class Ends(transformers.TrainerCallback):
        def on_step_end(self, *args: Any, **named: Any) -> None:
            ends.append(CLOCK())

    trainer.add_callback(Ends())
    began = CLOCK()
    trainer.train()
    seconds = CLOCK() - began
    logits = torch.from_numpy(trainer.predict(trainer.eval_dataset).predictions)
    counts = [[0] * len(data.classes) for _ in data.classes]
    for true, guess in zip(
        map(data.classes.index, data.held_out.labels), logits.argmax(1).tolist(), strict=True
    ):
        counts[true][guess] += 1
    found = metrics(counts)
    rate = epochs * len(data.train) / seconds
    scored = {name: found[name] for name in ("accuracy", "macro_f1")}
    return {"rate": rate, "late": late(ends, epochs * len(data.train)), **scored}


def measured(place: Path, arm: str, round_: int, epochs: int, few: bool) -> dict[str, Any]:
    out = place / f"{arm}-{round_}"
    os.environ["HOTLOOP_CACHE"] = str(place / "cache")
    words = [sys.executable, __file__, "--arm", arm, str(place), str(out), str(epochs), str(few)]
    ended = subprocess.run(words, check=True, capture_output=True, text=True)
    shutil.rmtree(out, ignore_errors=True)
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def main() -> None:
    if sys.argv[1:2] == ["--arm"]:
        arm, place, out, epochs, few = sys.argv[2:]
        by = {"hotloop": by_hotloop, "plain": by_loop, "trainer": by_trainer}[arm.partition("-")[0]]
        print(json.dumps(by(Path(place), Path(out), int(epochs), arm, few == "True")))
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=list(SIZES), default="small")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--examples", type=int)
    parser.add_argument("--few", action="store_true")
    parser.add_argument("--cpu-seconds", action="store_true")
    parser.add_argument("--arms", nargs="+")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.cpu_seconds:
        os.environ["OMP_NUM_THREADS"] = "1"
    arms = given.arms or (FEW_ARMS if given.few else ARMS)
    epochs = given.epochs or (200 if given.few else 1)
    found: dict[str, list[dict[str, Any]]] = {arm: [] for arm in arms}
    with tempfile.TemporaryDirectory() as directory:
        make(Path(directory), given.examples or (25 if given.few else 800), given.size)
        for number in range(given.rounds or (1 if given.few else 3)):
            for arm in random.Random(number).sample(arms, len(arms)):
                found[arm].append(measured(Path(directory), arm, number, epochs, given.few))
                print(number, arm, json.dumps(found[arm][-1]), flush=True)
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}")
    own = [arm for arm in arms if arm.startswith("hotloop")]
    for arm in arms:
        line = f"{arm:30}"
        for name in ("rate", "late"):
            line += f" {name} {statistics.median(each[name] for each in found[arm]):7.1f}/s"
            for base in own:
                pairs = zip(found[base], found[arm], strict=True)
                ratios = sorted(mine[name] / theirs[name] for mine, theirs in pairs)
                line += f" {base} {statistics.median(ratios):.2f}x ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(line)
    if given.out:
        given.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
