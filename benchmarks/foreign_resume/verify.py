"""Public scripts that resume, and what `hotloop verify-resume -- COMMAND` says of each.

    python benchmarks/foreign_resume/verify.py CHECKOUTS NAME ... --json benchmarks/results/foreign_resume.json

CHECKOUTS holds nanoGPT, llama2.c, makemore (karpathy) and examples (pytorch). `--python` is the interpreter that has what
they need: transformers and accelerate, lightning, torchvision, sentencepiece.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Script:
    name: str
    folder: str
    """In CHECKOUTS; empty: here."""
    arguments: str
    resume: str | None = None
    """Added to continue."""
    prepare: Callable[[Path], None] = lambda workdir: None


def letters(workdir: Path) -> None:
    """What data/shakespeare_char/prepare.py makes of a text that it downloads, of its own sources."""
    text = "".join(path.read_text("utf-8") for path in sorted(workdir.glob("*.py"))) * 10
    number = {each: place for place, each in enumerate(sorted(set(text)))}
    folder = workdir / "data" / "shakespeare_char"
    meta = {"vocab_size": len(number), "stoi": number, "itos": dict(enumerate(number))}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))
    ids = np.array([number[each] for each in text], dtype=np.uint16)
    ids.tofile(folder / "train.bin")
    ids.tofile(folder / "val.bin")


def random_tokens(workdir: Path) -> None:
    folder, draw = workdir / "data" / "tok512", np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(3):
        draw.integers(0, 512, 64 * 300, dtype=np.uint16).tofile(folder / f"data{number}.bin")


def pictures(workdir: Path) -> None:
    """As binary PPM, which needs no library to write."""
    draw = np.random.default_rng(0)
    for number in range(40):
        part, label = ("val", "train")[number % 5 > 0], "ab"[number % 2]
        folder = workdir / "small" / part / label
        folder.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 255, (64, 64, 3), dtype=np.uint8).tobytes()
        (folder / f"{number}.ppm").write_bytes(b"P6 64 64 255\n" + pixels)


NANO = (
    "train.py config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=2 --eval_interval=10 "
    "--always_save_checkpoint=True --block_size=64 --batch_size=8 --n_layer=2 --n_head=4 --n_embd=64 --max_iters=60 "
    "--lr_decay_iters=60 --warmup_iters=20"
)
LLAMA = (
    "train.py --device=cpu --compile=False --dtype=float32 --vocab_source=custom --vocab_size=512 --max_seq_len=64 "
    "--dim=64 --n_layers=2 --n_heads=2 --n_kv_heads=2 --batch_size=8 --gradient_accumulation_steps=2 --eval_iters=2 "
    "--eval_interval=10 --always_save_checkpoint=True --max_iters=60 --warmup_iters=10"
)
MAKEMORE = (
    "makemore.py -i names.txt -o out --type transformer --n-layer 2 --n-embd 32 --n-embd2 32 --num-workers 0 "
    "--max-steps 1600"
)
IMAGENET = "main.py small -a resnet18 -b 8 -j 0 --epochs 6 --lr 0.01"
SCRIPTS = (
    Script("nanoGPT", "nanoGPT", NANO, "--init_from=resume", letters),
    Script("llama2.c", "llama2.c", LLAMA, "--init_from=resume", random_tokens),
    Script("makemore", "makemore", MAKEMORE, "--resume"),
    Script("imagenet", "examples/imagenet", IMAGENET, "--resume checkpoint.pth.tar", pictures),
    Script("imagenet --seed 1", "examples/imagenet", f"{IMAGENET} --seed 1", "--resume checkpoint.pth.tar", pictures),
    Script("Hugging Face Trainer", "", "hf_trainer.py"),
    Script("Hugging Face Trainer, TransformersCallback", "", "hf_trainer.py hotloop"),
    Script("Lightning, each epoch", "", "lightning_trainer.py"),
    Script("Lightning, every 7 steps", "", "lightning_trainer.py steps"),
    Script("Lightning, LightningCheckpointIO", "", "lightning_trainer.py hotloop"),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("names", nargs="*", help="of scripts; all where none is given")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    for script in SCRIPTS:
        if not options.names or script.name in options.names:
            found[script.name] = verified(script, options.checkouts, options.python)
            if options.json:
                options.json.write_text(json.dumps(found, indent=1) + "\n")


def verified(script: Script, checkouts: Path, python: str) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as temporary:
        workdir, answer = Path(temporary) / "work", Path(temporary) / "found.json"
        source = checkouts / script.folder if script.folder else HERE
        shutil.copytree(source, workdir, ignore=shutil.ignore_patterns(".git"))
        script.prepare(workdir)
        command = f"{shlex.quote(python)} {script.arguments}"
        asked = [] if script.resume is None else ["--resume-cmd", f"{command} {script.resume}"]
        words = [sys.executable, "-m", "hotloop", "verify-resume", "--json", str(answer), *asked]
        print(f"== {script.name}", flush=True)
        env = {"OMP_NUM_THREADS": "1", **os.environ}
        done = subprocess.run(
            [*words, "--", *shlex.split(command)], cwd=workdir, env=env, check=False
        )
        read = json.loads(answer.read_text()) if answer.exists() else {}
        read.pop("run", None)
        return {
            "command": f"python {script.arguments}",
            "resume": script.resume,
            "exit": done.returncode,
            **read,
        }


if __name__ == "__main__":
    main()
