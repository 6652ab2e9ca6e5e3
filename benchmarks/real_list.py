"""Public training scripts, and how each is run offline in seconds: data for `real_scripts.py`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


def shakespeare(checkouts: Path) -> str:
    """A text to learn, as the checkout of pytorch/examples holds it."""
    path = checkouts / "examples/distributed/minGPT-ddp/mingpt/data/input.txt"
    return path.read_text(encoding="utf-8")


def input_txt(workdir: Path, text: str) -> None:
    (workdir / "input.txt").write_text(text, encoding="utf-8")


def shakespeare_char(workdir: Path, text: str) -> None:
    """What data/shakespeare_char/prepare.py makes of a text that it downloads."""
    import pickle

    import numpy as np

    folder = workdir / "data" / "shakespeare_char"
    number = {each: place for place, each in enumerate(sorted(set(text)))}
    meta = {"vocab_size": len(number), "stoi": number, "itos": dict(enumerate(number))}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))
    ids = np.array([number[each] for each in text], dtype=np.uint16)
    split = int(0.9 * len(ids))
    ids[:split].tofile(folder / "train.bin")
    ids[split:].tofile(folder / "val.bin")


def wikitext(workdir: Path, text: str) -> None:
    folder = workdir / "data" / "small"
    folder.mkdir(parents=True)
    lines = text.splitlines(keepends=True)
    for name, first, last in (("train", 0, 3000), ("valid", 3000, 3300), ("test", 3300, 3600)):
        (folder / f"{name}.txt").write_text("".join(lines[first:last]), encoding="utf-8")


def letters_as_words(workdir: Path, text: str) -> None:
    """A small text with few words, in place of the one that Lightning's demo downloads."""
    (workdir / "data").mkdir()
    lines = [" ".join(line.replace(" ", "_")) for line in text.splitlines()[:6200]]
    (workdir / "data" / "wikitext-2.txt").write_text("\n".join(lines), encoding="utf-8")


def sine_waves(workdir: Path, text: str) -> None:
    """As generate_sine_wave.py, fewer and shorter."""
    import numpy as np
    import torch

    shift = np.random.default_rng(2).integers(-80, 80, (20, 1))
    torch.save(np.sin((np.arange(100) + shift) / 20.0), workdir / "traindata.pt")


def mnist_at(*places: str, num: int = 60_000) -> Callable[[Path, str], None]:
    """Images of noise whose mean says the digit, in MNIST's own format, in these folders beside the script."""

    def prepare(workdir: Path, text: str) -> None:
        import numpy as np

        draw = np.random.default_rng(0)
        checkout = next(each for each in (workdir, *workdir.parents) if each.name == "checkout")
        for place in places:
            if not (workdir / place).resolve().is_relative_to(checkout.resolve()):
                continue
            raw = workdir / place / "MNIST" / "raw"
            raw.mkdir(parents=True, exist_ok=True)
            for name, count in (("train", num), ("t10k", num // 6)):
                labels = draw.integers(0, 10, count, dtype=np.uint8)
                shape = (count, 28, 28)
                images = draw.integers(0, 64, shape, dtype=np.uint8) + labels[:, None, None] * 19
                head = np.array([2051, *shape], dtype=">i4").tobytes()
                pixels = images.astype(np.uint8).tobytes()
                (raw / f"{name}-images-idx3-ubyte").write_bytes(head + pixels)
                head = np.array([2049, count], dtype=">i4").tobytes()
                (raw / f"{name}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())

    return prepare


mnist_files = mnist_at("data", "../data", "../../../Datasets", num=6400)


def tokenizer_and_lines(workdir: Path, text: str) -> None:
    """A tokenizer of 500 pieces and a text file, in place of what would come from a hub."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    lines = [line for line in text.splitlines() if line][:4000]
    (workdir / "train.txt").write_text("\n".join(lines), encoding="utf-8")
    (workdir / "valid.txt").write_text("\n".join(lines[:400]), encoding="utf-8")
    pieces = ByteLevelBPETokenizer()
    pieces.train_from_iterator(lines, vocab_size=500, show_progress=False)
    fast = PreTrainedTokenizerFast(tokenizer_object=pieces._tokenizer, model_max_length=128)
    fast.save_pretrained(workdir / "tiny")
    config = {"model_type": "gpt2", "n_layer": 2, "n_head": 4, "n_embd": 128, "n_positions": 128}
    config |= {"vocab_size": 500, "architectures": ["GPT2LMHeadModel"]}
    (workdir / "tiny" / "config.json").write_text(json.dumps(config), encoding="utf-8")


@dataclass(frozen=True)
class Script:
    """One public training script and how to run it offline, in seconds."""

    name: str
    checkout: str
    repository: str
    workdir: str
    arguments: tuple[str, ...]
    """After `python`."""
    what: str
    """How it trains."""
    prepare: Callable[[Path, str], None] | None = None
    seeded: bool = True
    """Sets its seed itself."""
    needs: tuple[str, ...] = ()
    """Packages besides torch and numpy; `name<5`: of a major version below."""
    iterations: int | str | None = None
    """How many times it updates its weights, where that is known; or how it says so, a pattern."""
    path: str | None = None
    """Put on PYTHONPATH, relative to the checkout: in place of installing the repository."""
    env: dict[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    """Of the doctor in `real_fixes.py`, in place of a budget."""


NANO = (
    "train.py", "config/train_shakespeare_char.py", "--device=cpu", "--compile=False",
    "--eval_iters=5", "--eval_interval=40", "--block_size=64", "--batch_size=12", "--n_layer=4", "--n_head=4",
    "--n_embd=128", "--max_iters=120", "--lr_decay_iters=120", "--dropout=0.0",
)  # fmt: skip

TINY_GPT2 = (
    "--config_name=tiny", "--tokenizer_name=tiny", "--train_file=train.txt",
    "--validation_file=valid.txt", "--block_size=64", "--output_dir=out", "--seed=1",
    "--per_device_train_batch_size=4",
)  # fmt: skip


def lesson(folder: str, file: str, updates: int, *needs: str) -> Script:
    """One of graykode/nlp-tutorial: a network on a handful of sentences."""
    return Script(
        f"nlp-tutorial {file}", "nlp-tutorial", "graykode/nlp-tutorial", folder, (f"{file}.py",),
        "plain loop, Adam, tiny steps", seeded=False, needs=needs, iterations=updates,
        env={"MPLBACKEND": "Agg"},
    )  # fmt: skip


SCRIPTS = (
    Script("minGPT adder", "minGPT", "karpathy/minGPT", "projects/adder",
           ("adder.py", "--trainer.max_iters=300"), "own Trainer class, AdamW, DataLoader", path=".", iterations=300),
    Script("minGPT chargpt", "minGPT", "karpathy/minGPT", "projects/chargpt",
           ("chargpt.py", "--trainer.max_iters=60", "--model.model_type=gpt-nano", "--trainer.batch_size=16"),
           "own Trainer class, AdamW, DataLoader", input_txt, path=".", iterations=60),
    Script("nanoGPT", "nanoGPT", "karpathy/nanoGPT", ".", NANO,
           "plain loop, no DataLoader, AdamW, checkpoints", shakespeare_char, iterations=121),
    Script("nanoGPT, accumulating", "nanoGPT", "karpathy/nanoGPT", ".",
           (*NANO, "--gradient_accumulation_steps=4", "--max_iters=60"),
           "4 microbatches per step", shakespeare_char, iterations=61),
    Script("nanoGPT, compiled", "nanoGPT", "karpathy/nanoGPT", ".",
           tuple("--compile=True" if each == "--compile=False" else each for each in NANO),
           "torch.compile", shakespeare_char, iterations=121),
    Script("makemore", "makemore", "karpathy/makemore", ".",
           ("makemore.py", "--max-steps=501", "--num-workers=1"), "plain loop, endless loader, AdamW",
           needs=("tensorboard",), iterations=501),
    Script("bigram", "ng-video-lecture", "karpathy/ng-video-lecture", ".", ("bigram.py",),
           "plain loop at top level, no DataLoader", input_txt, iterations=3000),
    Script("regression", "examples", "pytorch/examples", "regression", ("main.py",),
           "no optimizer, no DataLoader", seeded=False, iterations=r"after (\d+) batches"),
    Script("word_language_model, LSTM", "examples", "pytorch/examples", "word_language_model",
           ("main.py", "--data=data/small", "--epochs=2", "--log-interval=10"),
           "no optimizer: updates by hand", wikitext, iterations=50),
    Script("word_language_model, Transformer", "examples", "pytorch/examples", "word_language_model",
           ("main.py", "--data=data/small", "--epochs=2", "--log-interval=10", "--model=Transformer",
            "--use-optimizer", "--lr=0.001"), "no DataLoader, AdamW", wikitext, iterations=50),
    Script("time_sequence_prediction", "examples", "pytorch/examples", "time_sequence_prediction",
           ("train.py", "--steps=24"), "LBFGS with a closure, float64", sine_waves,
           needs=("matplotlib",),
           env={"SOURCE_DATE_EPOCH": "0", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}, iterations=24),
    Script("reinforce", "examples", "pytorch/examples", "reinforcement_learning",
           ("reinforce.py",), "reinforcement learning, Adam", needs=("gymnasium",)),
    Script("actor_critic", "examples", "pytorch/examples", "reinforcement_learning",
           ("actor_critic.py",), "reinforcement learning, Adam", needs=("gymnasium",)),
    Script("mnist", "examples", "pytorch/examples", "mnist", ("main.py", "--epochs=2", "--save-model"),
           "plain loop, DataLoader, Adadelta", mnist_files, needs=("torchvision",), iterations=200),
    Script("vae", "examples", "pytorch/examples", "vae", ("main.py", "--epochs=2"),
           "plain loop, DataLoader, Adam", mnist_files, needs=("torchvision",), iterations=100),
    Script("siamese_network", "examples", "pytorch/examples", "siamese_network",
           ("main.py", "--epochs=1", "--batch-size=128"), "plain loop, DataLoader, Adadelta", mnist_files,
           needs=("torchvision",), seeded=False, iterations=50),
    Script("mnist_hogwild", "examples", "pytorch/examples", "mnist_hogwild",
           ("main.py", "--epochs=2"), "two training processes share the weights", mnist_files,
           needs=("torchvision",), iterations=200),
    Script("mnist_rnn", "examples", "pytorch/examples", "mnist_rnn", ("main.py", "--epochs=1"),
           "LSTM, DataLoader, Adadelta", mnist_files, needs=("torchvision",), iterations=100),
    Script("mnist_forward_forward", "examples", "pytorch/examples", "mnist_forward_forward",
           ("main.py", "--epochs=80", "--train_size=1000", "--save-model"),
           "an optimizer per layer, one layer after the other", mnist_files, needs=("torchvision",),
           seeded=False, iterations=160),
    Script("dcgan", "examples", "pytorch/examples", "dcgan",
           ("main.py", "--dataset=fake", "--niter=1", "--imageSize=64", "--batchSize=16", "--ngf=16",
            "--ndf=16", "--manualSeed=1"),
           "two networks, two optimizers, loader workers", needs=("torchvision",), iterations=63),
    Script("two_layer_net_optim", "jc-pytorch-examples", "jcjohnson/pytorch-examples", "nn",
           ("two_layer_net_optim.py",), "top level, Adam, no function", seeded=False, iterations=500),
    Script("two_layer_net_autograd", "jc-pytorch-examples", "jcjohnson/pytorch-examples", "autograd",
           ("two_layer_net_autograd.py",), "no optimizer, no module", seeded=False, iterations=500),
    Script("nlp-tutorial TextCNN", "nlp-tutorial", "graykode/nlp-tutorial", "2-1.TextCNN",
           ("TextCNN.py",), "plain loop, Adam, one batch", seeded=False, iterations=5000),
    Script("nlp-tutorial Transformer", "nlp-tutorial", "graykode/nlp-tutorial", "5-1.Transformer",
           ("Transformer.py",), "plain loop, one batch", seeded=False, needs=("matplotlib",),
           env={"MPLBACKEND": "Agg"}, iterations=20),
    lesson("1-1.NNLM", "NNLM", 5000),
    lesson("1-2.Word2Vec", "Word2Vec-Skipgram(Softmax)", 5000, "matplotlib"),
    lesson("3-1.TextRNN", "TextRNN", 5000),
    lesson("3-2.TextLSTM", "TextLSTM", 1000),
    lesson("3-3.Bi-LSTM", "Bi-LSTM", 10000),
    lesson("4-1.Seq2Seq", "Seq2Seq", 5000),
    lesson("4-2.Seq2Seq(Attention)", "Seq2Seq(Attention)", 2000, "matplotlib"),
    lesson("4-3.Bi-LSTM(Attention)", "Bi-LSTM(Attention)", 5000, "matplotlib"),
    lesson("5-2.BERT", "BERT", 100),
    Script("Lightning bug_report", "pytorch-lightning", "Lightning-AI/pytorch-lightning",
           "examples/pytorch/bug_report", ("bug_report_model.py",), "Lightning Trainer, one step",
           seeded=False, needs=("lightning",), iterations=1),
    Script("Lightning transformer", "pytorch-lightning", "Lightning-AI/pytorch-lightning",
           "examples/pytorch/basics", ("transformer.py",), "Lightning Trainer, clipping, validation",
           letters_as_words, needs=("lightning", "requests"), iterations=640),
    Script("Fabric image_classifier", "pytorch-lightning", "Lightning-AI/pytorch-lightning",
           "examples/fabric/image_classifier", ("train_fabric.py", "--epochs=1", "--save-model"),
           "Lightning Fabric, Adadelta", mnist_files, needs=("lightning", "torchmetrics", "torchvision"),
           iterations=100),
    Script("run_clm_no_trainer", "6.7960_GPT2", "chase06harmon/6.7960_GPT2", ".",
           ("run_clm_no_trainer.py", *TINY_GPT2, "--max_train_steps=100"),
           "Hugging Face's example with Accelerate (before 1.0)", tokenizer_and_lines,
           needs=("accelerate<1", "datasets", "transformers<5"), iterations=100),
    Script("run_clm", "6.7960_GPT2", "chase06harmon/6.7960_GPT2", ".",
           ("run_clm.py", *TINY_GPT2, "--max_steps=100", "--do_train", "--report_to=none", "--use_cpu"),
           "Hugging Face's example with its Trainer (transformers 4)", tokenizer_and_lines,
           needs=("accelerate", "datasets", "evaluate", "transformers<5"), iterations=100),
    Script("accelerate test_script", "accelerate", "huggingface/accelerate",
           "src/accelerate/test_utils/scripts", ("test_script.py",), "Accelerate, many tiny trainings",
           needs=("transformers",), path="src", iterations=120),
)  # fmt: skip
