"""Fine-tuning without padding against transformers' Trainer: examples per second, and what is learned.

    python benchmarks/finetune_speed.py [--size small|base|bert] [--batch 8] [--entities] [--rounds 3] [--examples 800] [--cpu-seconds] [--out FILE.json]
    python benchmarks/finetune_speed.py --few [--epochs 200] [--cpu-seconds]

Pieces of the Python standard library, of 4 to 128 tokens (log-normal, about 25 in the mean), are told apart by the
package that they are from; with `--entities` keywords, names (dotted ones are one) and numbers are found in them. All arms start from the same random BERT (`SIZES`; its vocabulary is of the whole standard
library), take the same number of examples per step (8, Trainer's default), and run in fresh processes, interleaved.
Trainer needs `accelerate`. Timed is the training alone, without loading, evaluations and saves; `late` is its second
half, when all is compiled (`hotloop-bf16-compiled` is compiled before its first step, which is not counted). `--cpu-seconds` counts CPU seconds of one thread in place of time, for a machine that
others use. On a GPU, where there is one, all arms train there, and the clock is read when it has done its work. `--few` is 25 examples against a plain loop of batch 1 that tokenizes in `__getitem__`.
"""

from __future__ import annotations

import argparse
import csv
import json
import keyword
import math
import os
import platform
import random
import re
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("asyncio", "email", "unittest", "xml")
KINDS = ("KEYWORD", "NAME", "NUMBER")
TAGS = ("O", *(f"{mark}-{kind}" for kind in KINDS for mark in "BI"))
BATCH, RATE, MAX_TOKENS = int(os.environ.get("FINETUNE_BATCH", "8")), 1e-4, 128
ARMS = (
    "hotloop",
    "hotloop-bf16",
    "trainer-max",
    "trainer-dynamic",
    "trainer-bf16-grouped",
    "trainer-bf16-grouped-compiled",
)
FEW_ARMS = ("hotloop", "plain", "plain-max")
SIZES = {
    "tiny": (2, 128, 8192),
    "small": (4, 256, 8192),
    "base": (6, 384, 30522),
    "bert": (12, 768, 30522),
}
"""Layers, width, tokens of the vocabulary at most."""
CLOCK = time.process_time if os.environ.get("OMP_NUM_THREADS") == "1" else time.perf_counter
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def tagged(text: str) -> dict[str, list[str]]:
    """Words, and a tag for each: those of Python's keywords, of names, of numbers."""
    words = re.findall(r"\w+|[^\w\s]", text)
    tags: list[str] = []
    for number, word in enumerate(words):
        goes_on = word == "." or words[max(number - 1, 0)] == "."
        if keyword.iskeyword(word):
            tags.append("B-KEYWORD")
        elif word[0].isdigit():
            tags.append("B-NUMBER")
        elif word.isidentifier() or (word == "." and words[number + 1 : number + 2]):
            after = bool(tags) and tags[-1].endswith("-NAME") and goes_on
            tags.append("I-NAME" if after else "B-NAME" if word != "." else "O")
        else:
            tags.append("O")
    return {"words": words, "tags": tags}


def lengths_of(num: int, draw: random.Random) -> list[int]:
    """Tokens of each text, without the special ones, in random order: quantiles of a log-normal distribution.

    Drawn, the shortest and the longest would be missing from some hundred texts.
    """
    spread = statistics.NormalDist(math.log(18), 0.75)
    quantiles = [math.exp(spread.inv_cdf((number + 0.5) / num)) for number in range(num)]
    return draw.sample([min(126, max(2, round(each))) for each in quantiles], num)


def make(directory: Path, num: int, size: str, entities: bool = False) -> None:
    """train and held-out, csv or jsonl, and a model directory."""
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
    for wanted in [*lengths_of(num, draw), *lengths_of(num // 4, draw)]:
        package = draw.choice(PACKAGES)
        begin = draw.randrange(len(words[package]) - 128)
        pieces = made.encode(
            " ".join(words[package][begin : begin + 128]), add_special_tokens=False
        )
        end = pieces.offsets[min(wanted, len(pieces)) - 1][1]
        text = " ".join(words[package][begin : begin + 128])[:end]
        rows.append((text, package))
    for name, part in (("train", rows[:num]), ("held-out", rows[num:])):
        if entities:
            lines = [json.dumps(tagged(text)) + "\n" for text, _ in part]
            (directory / f"{name}.jsonl").write_text("".join(lines))
            continue
        with (directory / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
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
    outputs = TAGS if entities else PACKAGES
    config = transformers.BertConfig(
        vocab_size=made.get_vocab_size(),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        max_position_embeddings=MAX_TOKENS,
        num_labels=len(outputs),
        id2label=dict(enumerate(outputs)),
        label2id={name: number for number, name in enumerate(outputs)},
    )
    made_for = "BertForTokenClassification" if entities else "BertForSequenceClassification"
    getattr(transformers, made_for)(config).save_pretrained(directory / "model")


def clock(number: int, num: int) -> float:
    """At the end of a step of so many; at the two that `late` is made of a GPU has done its work."""
    if torch.cuda.is_available() and number in (num // 2, num):
        torch.cuda.synchronize()
    return CLOCK()


def step_ends(module: Any, name: str, num: int) -> list[float]:
    """The clock at the end of each step of so many, which ends with a call of that function."""
    real, found = getattr(module, name), list[float]()

    def call(*args: Any, **named: Any) -> Any:
        result = real(*args, **named)
        found.append(clock(len(found) + 1, num))
        return result

    setattr(module, name, call)
    return found


def late(ends: list[float], num: int) -> float:
    """Examples per second in the second half of the steps."""
    half = len(ends) // 2
    return num * (len(ends) - half) / len(ends) / (ends[-1] - ends[half - 1])


def training_alone() -> Callable[[], float]:
    """From now on timed: asked for the seconds of hotloop's trainings, without evaluations and saves."""
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
    return lambda: seconds["train"] - seconds["evaluate"] - seconds["save"]


def trainer_arguments(out: Path, epochs: int, arm: str, seed: int, rate: float) -> Any:
    """Of transformers' Trainer."""
    import transformers

    named: dict[str, Any] = {}
    if arm.startswith("trainer-bf16-grouped"):
        fields = transformers.TrainingArguments.__dataclass_fields__
        grouped = {"train_sampling_strategy": "group_by_length"}
        named = {
            "bf16": True,
            "torch_compile": arm.endswith("compiled"),
            **(grouped if "train_sampling_strategy" in fields else {"group_by_length": True}),
        }
    return transformers.TrainingArguments(
        output_dir=str(out),
        num_train_epochs=epochs,
        per_device_train_batch_size=BATCH,
        learning_rate=rate,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=seed,
        use_cpu=not torch.cuda.is_available(),
        **named,
    )


def by_hotloop(
    place: Path, out: Path, epochs: int, arm: str, few: bool, seed: int = 0
) -> dict[str, Any]:
    """Called in a process of its own."""
    from hotloop.cli.main import run
    from hotloop.train import loop

    spent = training_alone()
    (train,) = place.glob("train.*")
    is_tagged = train.suffix == ".jsonl"
    num = len(train.read_text().splitlines()) - (not is_tagged)
    ends = step_ends(loop, "update", epochs * -(-num // (1 if few else BATCH)))
    words = ["train", "--task", "entities" if is_tagged else "classification"]
    words += ["--data", str(train), "--model", str(place / "model")]
    words += [f"data.held_out={place / f'held-out{train.suffix}'}", f"train.epochs={epochs}"]
    words += [f"train.seed={seed}", f"data.seed={seed}"]
    words += [f"train.microbatch={1 if few else BATCH}", f"optimizer.learning_rate={RATE}"]
    words += ["schedule.name=constant", "train.clip_norm=null"] if few else []
    words += [f"train.precision={'bf16' if 'bf16' in arm else 'fp32'}"]
    words += [f"train.compile={str(arm.endswith('compiled')).lower()}"]
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
    losses = [json.loads(line)["loss"] for line in (out / "steps.jsonl").open()]
    return {
        "rate": epochs * num / spent(),
        "late": late(ends, epochs * num),
        "last_loss": statistics.fmean(losses[-25:]),
        **{k: task[k] for k in ("accuracy", "f1" if is_tagged else "macro_f1")},
    }


def plain_loop(
    model: Any, examples: Any, epochs: int, device: str, seed: int
) -> tuple[list[float], list[float]]:
    """One example a step, as many write it: the loss of each, and the clock before the first and after each."""
    torch.manual_seed(seed)
    loader = torch.utils.data.DataLoader(examples, batch_size=1, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    model.train()
    losses: list[float] = []
    ends = [CLOCK()]
    for _ in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            loss = model(**{name: each.to(device) for name, each in batch.items()}).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            ends.append(CLOCK())
    return losses, ends


def by_loop(place: Path, out: Path, epochs: int, arm: str, few: bool) -> dict[str, Any]:
    """Called in a process of its own."""
    import transformers

    rows = list(csv.DictReader((place / "train.csv").open(encoding="utf-8")))
    tokenizer = transformers.AutoTokenizer.from_pretrained(place / "model")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(place / "model")
    model.to(device := "cuda" if torch.cuda.is_available() else "cpu")

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

    losses, ends = plain_loop(model, Texts(), epochs, device, seed=0)
    num = epochs * len(rows)
    return {
        "rate": num / (ends[-1] - ends[0]),
        "late": late(ends[1:], num),
        "last_loss": statistics.fmean(losses[-25:]),
    }


def entity_scores(logits: Any, labels: Any, examples: Any) -> dict[str, float]:
    """Counted by hotloop's own function, which the tests hold to seqeval, from Trainer's predictions."""
    from hotloop.finetune.entities import Entities, Labelled

    head = Entities(KINDS)
    tally = head.tally()
    for row, own, tags in zip(logits, labels, examples.labels, strict=True):
        first = own != -100
        word_of = tuple(range(int(first.sum())))
        labelled = Labelled(own[first], word_of, tuple(tags))
        tally.add(row[torch.from_numpy(first)], (torch.from_numpy(own[first]),), [labelled])
    found = tally.metrics()
    return {name: found[name] for name in ("accuracy", "f1")}


def by_trainer(
    place: Path, out: Path, epochs: int, arm: str, few: bool, seed: int = 0
) -> dict[str, Any]:
    """Called in a process of its own."""
    import transformers

    from hotloop.core.finetune_config import ExamplesConfig
    from hotloop.finetune.examples import read_dataset
    from hotloop.finetune.scores import metrics

    (train,) = place.glob("train.*")
    is_tagged = train.suffix == ".jsonl"
    config = ExamplesConfig(
        file=str(train), held_out=str(place / f"held-out{train.suffix}"), text="text"
    )
    data = read_dataset(config, task="tokens" if is_tagged else "classification")
    tokenizer = transformers.AutoTokenizer.from_pretrained(place / "model")
    kind = "Token" if is_tagged else "Sequence"
    named_class = getattr(transformers, f"AutoModelFor{kind}Classification")
    model = named_class.from_pretrained(place / "model")

    def labels_of_tokens(words: list[int | None], tags: Any) -> list[int]:
        """The first token of a word has its tag, as in transformers' examples."""
        return [
            -100 if word is None or word == before else TAGS.index(tags[word])
            for before, word in zip([None, *words], words, strict=False)
        ]

    def rows(examples: Any) -> list[dict[str, Any]]:
        padding = "max_length" if arm == "trainer-max" else False
        made = tokenizer(
            [list(text) for text in examples.texts] if is_tagged else list(examples.texts),
            is_split_into_words=is_tagged,
            truncation=True,
            max_length=MAX_TOKENS,
            padding=padding,
        )
        labels: Any = (
            [labels_of_tokens(made.word_ids(n), tags) for n, tags in enumerate(examples.labels)]
            if is_tagged
            else list(map(data.classes.index, examples.labels))
        )
        return [
            {"input_ids": ids, "attention_mask": mask, "labels": label}
            for ids, mask, label in zip(
                made["input_ids"], made["attention_mask"], labels, strict=True
            )
        ]

    trainer = transformers.Trainer(
        model=model,
        args=trainer_arguments(out, epochs, arm, seed, RATE),
        train_dataset=rows(data.train),
        eval_dataset=rows(data.held_out),
        data_collator=(
            transformers.DataCollatorForTokenClassification(tokenizer)
            if is_tagged
            else transformers.DataCollatorWithPadding(tokenizer)
        ),
    )
    ends: list[float] = []

    class Ends(transformers.TrainerCallback):
        def on_step_end(self, *args: Any, **named: Any) -> None:
            ends.append(clock(len(ends) + 1, epochs * -(-len(data.train) // BATCH)))

    trainer.add_callback(Ends())
    began = CLOCK()
    trainer.train()
    seconds = CLOCK() - began
    rate = epochs * len(data.train) / seconds
    # or they would come out in the order of their lengths, too
    trainer.args.train_sampling_strategy, trainer.args.group_by_length = "random", False
    answer = trainer.predict(trainer.eval_dataset)
    logits = torch.from_numpy(answer.predictions)
    if is_tagged:
        scored = entity_scores(logits, answer.label_ids, data.held_out)
    else:
        counts = [[0] * len(data.classes) for _ in data.classes]
        for true, guess in zip(
            map(data.classes.index, data.held_out.labels), logits.argmax(1).tolist(), strict=True
        ):
            counts[true][guess] += 1
        found = metrics(counts)
        scored = {name: found[name] for name in ("accuracy", "macro_f1")}
    return {"rate": rate, "late": late(ends, epochs * len(data.train)), **scored}


def measured(place: Path, arm: str, round_: int, epochs: int, few: bool) -> dict[str, Any]:
    out = place / f"{arm}-{round_}"
    os.environ["HOTLOOP_CACHE"] = str(place / "cache")
    words = [sys.executable, __file__, "--arm", arm, str(place), str(out), str(epochs), str(few)]
    ended = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
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
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--few", action="store_true")
    parser.add_argument("--entities", action="store_true")
    parser.add_argument("--cpu-seconds", action="store_true")
    parser.add_argument("--arms", nargs="+")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.cpu_seconds:
        os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["FINETUNE_BATCH"] = str(given.batch)
    arms = given.arms or (FEW_ARMS if given.few else ARMS)
    epochs = given.epochs or (200 if given.few else 1)
    found: dict[str, list[dict[str, Any]]] = {arm: [] for arm in arms}
    with tempfile.TemporaryDirectory() as directory:
        num = given.examples or (25 if given.few else 800)
        make(Path(directory), num, given.size, given.entities)
        for number in range(given.rounds or (1 if given.few else 3)):
            for arm in random.Random(number).sample(arms, len(arms)):
                found[arm].append(measured(Path(directory), arm, number, epochs, given.few))
                print(number, arm, json.dumps(found[arm][-1]), flush=True)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    print(
        f"{platform.processor() or platform.machine()}, {gpu}, batches of {given.batch}, torch {torch.__version__}"
    )
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
