"""Public training scripts for walks with default options: data for `real_fixes.py --default`.

Each is run as its README says, on data made here in the format that it reads. Where today's torch or NumPy lacks a name that
the script uses, as anybody who runs it has to, the data's function replaces it (`renamed`).
"""

from __future__ import annotations

import csv
import gzip
import math
import random
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

from real_list import Script, mnist_at


def renamed(workdir: Path, old: str, new: str) -> None:
    """In every source file of the script."""
    for path in workdir.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if old in source:
            path.write_text(source.replace(old, new), encoding="utf-8")


def headlines(workdir: Path, text: str) -> None:
    """The training part, which the repository's snapshot lacks, made of its two other parts."""
    folder = workdir / "THUCNews" / "data"
    parts = [(folder / f"{name}.txt").read_text(encoding="utf-8") for name in ("dev", "test")]
    lines = "".join(parts).splitlines()
    random.Random(0).shuffle(lines)
    (folder / "train.txt").write_text("\n".join(lines * 3) + "\n", encoding="utf-8")
    (workdir / "THUCNews" / "saved_dict").mkdir(exist_ok=True)


def plain_text(workdir: Path, text: str) -> None:
    (workdir / "input.txt").write_text(text, encoding="utf-8")
    renamed(workdir, "loss.data[0]", "loss.item()")


def enwik8(workdir: Path, text: str) -> None:
    """As much text as the script takes from that file, at most 95 MB."""
    repeated = text.encode() * math.ceil(95e6 / len(text.encode()))
    with gzip.open(workdir / "data" / "enwik8.gz", "wb", compresslevel=1) as file:
        file.write(repeated[: int(95e6)])


def hourly() -> Iterator[list[object]]:
    """Two years of transformer temperatures: six loads and the oil's."""
    start = datetime(2016, 7, 1)
    for hour in range(24 * 30 * 21):
        waves = [math.sin(hour / (7 + each)) + 0.1 * each for each in range(7)]
        yield [str(start + timedelta(hours=hour)), *(f"{wave:.5f}" for wave in waves)]


def ett(folder: str) -> Callable[[Path, str], None]:
    def prepare(workdir: Path, text: str) -> None:
        place = workdir / folder
        place.mkdir(parents=True, exist_ok=True)
        with (place / "ETTh1.csv").open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(["date", "HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT"])
            table.writerows(hourly())
        renamed(workdir, "np.Inf", "np.inf")

    return prepare


def cars(workdir: Path, text: str) -> None:
    """Photographs of noise with a bright ellipse, and its mask, at a third of Carvana's size."""
    from PIL import Image, ImageDraw

    draw = random.Random(0)
    for name in ("imgs", "masks"):
        (workdir / "data" / name).mkdir(parents=True, exist_ok=True)
    for number in range(120):
        image = Image.effect_noise((640, 426), 60).convert("RGB")
        mask = Image.new("1", image.size)
        left, top = draw.randrange(300), draw.randrange(200)
        box = (left, top, left + draw.randrange(80, 300), top + draw.randrange(60, 200))
        ImageDraw.Draw(image).ellipse(box, fill="white")
        ImageDraw.Draw(mask).ellipse(box, fill=1)
        image.save(workdir / "data" / "imgs" / f"{number:03}.jpg")
        mask.save(workdir / "data" / "masks" / f"{number:03}_mask.gif")


def digits(workdir: Path, text: str) -> None:
    mnist_at("data")(workdir, text)
    renamed(workdir, "loss.data[0]", "loss.item()")


def cora(workdir: Path, text: str) -> None:
    """The bags of words, which the snapshot lacks, of the papers that its citations name."""
    folder = workdir / "data" / "cora"
    draw = random.Random(0)
    papers = sorted(set((folder / "cora.cites").read_text().split()))
    kinds = [f"Kind_{number}" for number in range(7)]
    rows = []
    for paper in papers:
        kind = draw.choice(kinds)
        words = [str(int(draw.random() < 0.012)) for _ in range(1433)]
        rows.append("\t".join([paper, *words, kind]))
    (folder / "cora.content").write_text("\n".join(rows) + "\n", encoding="utf-8")


FORECAST = ("--data=ETTh1", "--root_path=./data/ETT/", "--features=M")

WALKS = (
    Script("Chinese-Text-Classification TextCNN", "Chinese-Text-Classification-Pytorch",
           "649453932/Chinese-Text-Classification-Pytorch", ".", ("run.py", "--model", "TextCNN", "--embedding", "random"),
           "own iterator, Adam", headlines, needs=("sklearn", "tensorboardX")),
    Script("Chinese-Text-Classification TextRNN_Att", "Chinese-Text-Classification-Pytorch",
           "649453932/Chinese-Text-Classification-Pytorch", ".", ("run.py", "--model", "TextRNN_Att", "--embedding", "random"),
           "own iterator, LSTM", headlines, needs=("sklearn", "tensorboardX")),
    Script("char-rnn", "char-rnn.pytorch", "spro/char-rnn.pytorch", ".", ("train.py", "input.txt"),
           "no DataLoader, a character at a time", plain_text, seeded=False, needs=("unidecode",)),
    Script("TCN adding_problem", "TCN", "locuslab/TCN", "TCN/adding_problem", ("add_test.py", "--cuda"), "data in one tensor"),
    Script("TCN mnist_pixel", "TCN", "locuslab/TCN", "TCN/mnist_pixel", ("pmnist_test.py", "--cuda"), "DataLoader, MNIST",
           mnist_at("data/mnist"), needs=("torchvision",)),
    Script("cleanrl dqn", "cleanrl", "vwxyzjn/cleanrl", ".", ("cleanrl/dqn.py", "--total-timesteps=60000", "--learning-starts=1000"),
           "reinforcement learning, replay", needs=("gymnasium", "tyro"), path="."),
    Script("cleanrl ppo", "cleanrl", "vwxyzjn/cleanrl", ".", ("cleanrl/ppo.py",), "reinforcement learning, rollouts",
           needs=("gymnasium", "tyro"), path="."),
    Script("Informer2020", "Informer2020", "zhouhaoyi/Informer2020", ".",
           ("main_informer.py", "--model=informer", *FORECAST), "DataLoader, attention", ett("data/ETT"),
           needs=("pandas",), seeded=False),
    Script("LTSF-Linear", "LTSF-Linear", "cure-lab/LTSF-Linear", ".",
           ("run_longExp.py", "--is_training=1", "--model_id=t", "--model=DLinear", *FORECAST), "ten loader workers, tiny steps",
           ett("data/ETT"), needs=("pandas",)),
    Script("pytorch-beginner VAE", "pytorch-beginner", "L1aoXingyu/pytorch-beginner", "08-AutoEncoder",
           ("Variational_autoencoder.py",), "DataLoader, MNIST", digits, seeded=False, needs=("torchvision",)),
    Script("pyGAT", "pyGAT", "Diego999/pyGAT", ".", ("train.py", "--epochs=400"), "one graph", cora, needs=("scipy",)),
    Script("Pytorch-UNet", "Pytorch-UNet", "milesial/Pytorch-UNet", ".", ("train.py", "--scale=0.25", "--batch-size=2"),
           "loader workers, images", cars, seeded=False, needs=("torchvision", "wandb"), env={"WANDB_MODE": "offline"}),
    Script("x-transformers enwik8", "x-transformers", "lucidrains/x-transformers", ".",
           ("train_enwik8.py", "--cpu=True", "--seq_len=256"), "Accelerate, accumulation", enwik8, seeded=False,
           needs=("accelerate", "wandb", "fire", "einops"), path=".", env={"WANDB_MODE": "offline"}),
    Script("PyTorch-GAN acgan", "PyTorch-GAN", "eriklindernoren/PyTorch-GAN", "implementations/acgan", ("acgan.py",),
           "two optimizers", mnist_at("../../data/mnist"), seeded=False, needs=("torchvision",)),
)  # fmt: skip
