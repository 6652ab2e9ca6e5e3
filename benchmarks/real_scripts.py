"""Run public training scripts, unmodified, with and without `hotloop doctor --no-try`.

    python benchmarks/real_scripts.py CHECKOUTS [NAME ...] [--json FILE] [--markdown FILE]

CHECKOUTS holds a checkout of each repository under its own name (`minGPT`, `examples`, ...): nothing of
them is kept here. What is not there, or needs a package that is not installed, is left out and said.
Each script runs in fresh copies of its directory, without network, on data that its checkout holds or
that is made here in the format it reads: twice by itself and once under the doctor. Compared are the
exit code, what it prints, times taken out, and every byte of the files it leaves. Where two runs by
themselves already differ, that is said. A script that sets no seed is started by a line that does.
Exits 1 when the doctor changed something.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

TIMEOUT_S = 300
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
SEEDED = (
    "-c",
    "import random, runpy, sys, torch; random.seed(0); torch.manual_seed(0); "
    "sys.argv = sys.argv[1:]; sys.path[0] = ''; runpy.run_path(sys.argv[0], run_name='__main__')",
)
"""Starts a script that sets no seed itself."""
TIMES = (
    r"\d+(\.\d+)?e?-?\d*\s?(ms|s|sec|secs|seconds|it/s)\b",
    r"ms/batch\s+\d+\.\d+",
    r"(mfu|dt|time)[ :=]+-?\d+(\.\d+)?%?",
    r"\d+:\d\d(:\d\d)?",
)
"""What a script prints about time; taken out before two runs are compared."""


def shakespeare(checkouts: Path) -> str:
    """A text to learn, as the checkout of pytorch/examples holds it."""
    path = checkouts / "examples/distributed/minGPT-ddp/mingpt/data/input.txt"
    return path.read_text(encoding="utf-8")


def input_txt(workdir: Path, text: str) -> None:
    (workdir / "input.txt").write_text(text, encoding="utf-8")


def shakespeare_char(workdir: Path, text: str) -> None:
    """What data/shakespeare_char/prepare.py makes of a text that it downloads."""
    import numpy as np

    folder = workdir / "data" / "shakespeare_char"
    number = {each: place for place, each in enumerate(sorted(set(text)))}
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


def sine_waves(workdir: Path, text: str) -> None:
    """As generate_sine_wave.py, fewer and shorter."""
    import numpy as np
    import torch

    shift = np.random.default_rng(2).integers(-80, 80, (20, 1))
    torch.save(np.sin((np.arange(100) + shift) / 20.0), workdir / "traindata.pt")


def mnist_files(workdir: Path, text: str) -> None:
    """Images of noise whose mean says the digit, in MNIST's own format."""
    import numpy as np

    draw = np.random.default_rng(0)
    for place in ("data", "../data"):
        raw = workdir / place / "MNIST" / "raw"
        raw.mkdir(parents=True, exist_ok=True)
        for name, num in (("train", 6400), ("t10k", 1000)):
            labels = draw.integers(0, 10, num, dtype=np.uint8)
            images = (
                draw.integers(0, 64, (num, 28, 28), dtype=np.uint8) + labels[:, None, None] * 19
            )
            head = np.array([2051, num, 28, 28], dtype=">i4").tobytes()
            (raw / f"{name}-images-idx3-ubyte").write_bytes(
                head + images.astype(np.uint8).tobytes()
            )
            head = np.array([2049, num], dtype=">i4").tobytes()
            (raw / f"{name}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())


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
    """Packages besides torch and numpy."""
    path: str | None = None
    """Put on PYTHONPATH, relative to the checkout: in place of installing the repository."""
    env: dict[str, str] = field(default_factory=dict)


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

SCRIPTS = (
    Script("minGPT adder", "minGPT", "karpathy/minGPT", "projects/adder",
           ("adder.py", "--trainer.max_iters=300"), "own Trainer class, AdamW, DataLoader", path="."),
    Script("minGPT chargpt", "minGPT", "karpathy/minGPT", "projects/chargpt",
           ("chargpt.py", "--trainer.max_iters=60", "--model.model_type=gpt-nano", "--trainer.batch_size=16"),
           "own Trainer class, AdamW, DataLoader", input_txt, path="."),
    Script("nanoGPT", "nanoGPT", "karpathy/nanoGPT", ".", NANO,
           "plain loop, no DataLoader, AdamW, checkpoints", shakespeare_char),
    Script("nanoGPT, accumulating", "nanoGPT", "karpathy/nanoGPT", ".",
           (*NANO, "--gradient_accumulation_steps=4", "--max_iters=60"),
           "4 microbatches per step", shakespeare_char),
    Script("nanoGPT, compiled", "nanoGPT", "karpathy/nanoGPT", ".",
           tuple("--compile=True" if each == "--compile=False" else each for each in NANO),
           "torch.compile", shakespeare_char),
    Script("makemore", "makemore", "karpathy/makemore", ".",
           ("makemore.py", "--max-steps=501", "--num-workers=1"), "plain loop, endless loader, AdamW",
           needs=("tensorboard",)),
    Script("bigram", "ng-video-lecture", "karpathy/ng-video-lecture", ".", ("bigram.py",),
           "plain loop at top level, no DataLoader", input_txt),
    Script("regression", "examples", "pytorch/examples", "regression", ("main.py",),
           "no optimizer, no DataLoader", seeded=False),
    Script("word_language_model, LSTM", "examples", "pytorch/examples", "word_language_model",
           ("main.py", "--data=data/small", "--epochs=2", "--log-interval=10"),
           "no optimizer: updates by hand", wikitext),
    Script("word_language_model, Transformer", "examples", "pytorch/examples", "word_language_model",
           ("main.py", "--data=data/small", "--epochs=2", "--log-interval=10", "--model=Transformer",
            "--use-optimizer", "--lr=0.001"), "no DataLoader, AdamW", wikitext),
    Script("time_sequence_prediction", "examples", "pytorch/examples", "time_sequence_prediction",
           ("train.py", "--steps=24"), "LBFGS with a closure, float64", sine_waves,
           needs=("matplotlib",), env={"SOURCE_DATE_EPOCH": "0"}),
    Script("reinforce", "examples", "pytorch/examples", "reinforcement_learning",
           ("reinforce.py",), "reinforcement learning, Adam", needs=("gymnasium",)),
    Script("actor_critic", "examples", "pytorch/examples", "reinforcement_learning",
           ("actor_critic.py",), "reinforcement learning, Adam", needs=("gymnasium",)),
    Script("mnist", "examples", "pytorch/examples", "mnist", ("main.py", "--epochs=2", "--save-model"),
           "plain loop, DataLoader, Adadelta", mnist_files, needs=("torchvision",)),
    Script("vae", "examples", "pytorch/examples", "vae", ("main.py", "--epochs=2"),
           "plain loop, DataLoader, Adam", mnist_files, needs=("torchvision",)),
    Script("siamese_network", "examples", "pytorch/examples", "siamese_network",
           ("main.py", "--epochs=1", "--batch-size=128"), "plain loop, DataLoader, Adadelta", mnist_files,
           needs=("torchvision",)),
    Script("mnist_hogwild", "examples", "pytorch/examples", "mnist_hogwild",
           ("main.py", "--epochs=2"), "two training processes share the weights", mnist_files,
           needs=("torchvision",)),
    Script("dcgan", "examples", "pytorch/examples", "dcgan",
           ("main.py", "--dataset=fake", "--niter=1", "--imageSize=64", "--batchSize=16", "--ngf=16",
            "--ndf=16", "--manualSeed=1"),
           "two networks, two optimizers, loader workers", needs=("torchvision",)),
    Script("two_layer_net_optim", "jc-pytorch-examples", "jcjohnson/pytorch-examples", "nn",
           ("two_layer_net_optim.py",), "top level, Adam, no function", seeded=False),
    Script("two_layer_net_autograd", "jc-pytorch-examples", "jcjohnson/pytorch-examples", "autograd",
           ("two_layer_net_autograd.py",), "no optimizer, no module", seeded=False),
    Script("nlp-tutorial TextCNN", "nlp-tutorial", "graykode/nlp-tutorial", "2-1.TextCNN",
           ("TextCNN.py",), "plain loop, Adam, one batch", seeded=False),
    Script("nlp-tutorial Transformer", "nlp-tutorial", "graykode/nlp-tutorial", "5-1.Transformer",
           ("Transformer.py",), "plain loop, one batch", seeded=False, needs=("matplotlib",),
           env={"MPLBACKEND": "Agg"}),
    Script("Lightning bug_report", "pytorch-lightning", "Lightning-AI/pytorch-lightning",
           "examples/pytorch/bug_report", ("bug_report_model.py",), "Lightning Trainer, one step",
           seeded=False, needs=("lightning",)),
    Script("Lightning transformer", "pytorch-lightning", "Lightning-AI/pytorch-lightning",
           "examples/pytorch/basics", ("transformer.py",), "Lightning Trainer, clipping, validation",
           needs=("lightning",)),
    Script("run_clm_no_trainer", "6.7960_GPT2", "chase06harmon/6.7960_GPT2", ".",
           ("run_clm_no_trainer.py", *TINY_GPT2, "--max_train_steps=100"),
           "Hugging Face's example with Accelerate", tokenizer_and_lines,
           needs=("accelerate", "datasets", "transformers")),
    Script("run_clm", "6.7960_GPT2", "chase06harmon/6.7960_GPT2", ".",
           ("run_clm.py", *TINY_GPT2, "--max_steps=100", "--do_train", "--report_to=none", "--use_cpu"),
           "Hugging Face's example with its Trainer (transformers 4)", tokenizer_and_lines,
           needs=("accelerate", "datasets", "evaluate", "transformers")),
    Script("accelerate test_script", "accelerate", "huggingface/accelerate",
           "src/accelerate/test_utils/scripts", ("test_script.py",), "Accelerate, many tiny trainings",
           needs=("transformers",), path="src"),
)  # fmt: skip


@dataclass(frozen=True)
class Seen:
    """One run of a script."""

    returncode: int
    output: str
    """What it printed, times taken out."""
    files: dict[str, bytes]
    seconds: float


@dataclass(frozen=True)
class Result:
    """One script, with and without."""

    name: str
    repository: str
    commit: str
    what: str
    returncode: int
    repeatable: bool
    """Two runs by themselves printed and wrote the same."""
    differences: tuple[str, ...]
    """What was other under the doctor."""
    alone_s: float
    examined_s: float
    steps: int
    step_ms: float | None
    bound: str | None
    unattributed: float | None
    overhead: float | None
    findings: tuple[str, ...]
    lines: tuple[str, ...]
    """Of the time outside any phase, where the sampler saw it."""
    breakdown: dict[str, float]


def missing(script: Script, checkouts: Path) -> str | None:
    """Why a script cannot run here; `None` where it can."""
    if not (checkouts / script.checkout / script.workdir / script.arguments[0]).is_file():
        return f"no checkout of {script.repository}"
    lacking = [name for name in script.needs if importlib.util.find_spec(name) is None]
    return f"needs {', '.join(lacking)}" if lacking else None


def run_script(script: Script, checkouts: Path, text: str, *, doctor: Path | None) -> Seen:
    """In a fresh copy; under the doctor, which writes to `doctor`, where that is given."""
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder) / "checkout"
        shutil.copytree(checkouts / script.checkout, checkout, symlinks=True)
        workdir = checkout / script.workdir
        if script.prepare is not None:
            script.prepare(workdir, text)
        before = files_below(checkout)
        # Its own streams in files of its own: what the doctor prints is not the script's.
        command = [
            "sh", "-c", 'out=$1; err=$2; shift 2; exec "$@" >"$out" 2>"$err"', "sh",
            f"{folder}/out", f"{folder}/err", sys.executable,
            *(() if script.seeded else SEEDED), *script.arguments,
        ]  # fmt: skip
        if doctor is not None:
            own = [
                sys.executable,
                "-m",
                "hotloop",
                "doctor",
                "--no-try",
                "--out",
                str(doctor),
                "--",
            ]
            command = [*own, *command]
        env = environment(script, checkout)
        start = time.monotonic()
        done = subprocess.run(
            command,
            cwd=workdir,
            env=env,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        seconds = time.monotonic() - start
        returncode = done.returncode
        if doctor is not None:
            returncode = returncode_of(doctor, done.stderr)
        output = Path(folder, "out").read_text(encoding="utf-8", errors="replace")
        if returncode:
            print(Path(folder, "err").read_text(encoding="utf-8")[-1500:], file=sys.stderr)
        after = files_below(checkout)
        new = {name: value for name, value in after.items() if before.get(name) != value}
        return Seen(returncode, without_times(output.replace(folder, "...")), new, seconds)


def environment(script: Script, checkout: Path) -> dict[str, str]:
    """The user's, without network, and with torch's own choice of threads."""
    env = {name: value for name, value in os.environ.items() if name not in THREADS}
    paths = [str(checkout / script.path)] if script.path else []
    if env.get("PYTHONPATH"):
        paths.append(env["PYTHONPATH"])
    env |= {
        "HF_HUB_OFFLINE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join(paths),
    }
    return {**env, **script.env}


def returncode_of(run: Path, said: str) -> int:
    """The script's own, as the doctor recorded it."""
    path = run / "doctor.json"
    if not path.is_file():
        raise RuntimeError(f"the doctor recorded nothing: {said[-800:]}")
    code = json.loads(path.read_text(encoding="utf-8"))["returncode"]
    return int(code) if code is not None else -1


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".git" not in path.parts
    }


def without_times(output: str) -> str:
    for pattern in TIMES:
        output = re.sub(pattern, "<time>", output)
    return output


def differences(one: Seen, other: Seen) -> tuple[str, ...]:
    found = []
    if one.returncode != other.returncode:
        found.append(f"exit code {one.returncode}, then {other.returncode}")
    if one.output != other.output:
        lines = zip(one.output.splitlines(), other.output.splitlines())
        first = next(((a, b) for a, b in lines if a != b), ("", "fewer or more lines"))
        found.append(f"printed {first[0][:80]!r}, then {first[1][:80]!r}")
    # The names of TensorBoard's files hold the time, and the process.
    names, others = (
        {re.sub(r"tfevents.*", "tfevents", name): value for name, value in each.files.items()}
        for each in (one, other)
    )
    for name in sorted(names.keys() ^ others.keys()):
        found.append(f"file {name} only {'without' if name in names else 'under'} the doctor")
    for name in sorted(names.keys() & others.keys()):
        if names[name] != others[name] and not name.endswith("tfevents"):
            found.append(f"file {name} differs")
    return tuple(found)


def examine(script: Script, checkouts: Path, text: str) -> Result:
    alone = run_script(script, checkouts, text, doctor=None)
    again = run_script(script, checkouts, text, doctor=None)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        under = run_script(script, checkouts, text, doctor=run)
        diagnosis = json.loads((run / "diagnosis.json").read_text(encoding="utf-8"))
        measurement = json.loads((run / "measurement.json").read_text(encoding="utf-8"))
    by_itself = differences(alone, again)
    known = set(by_itself)
    census = measurement["census"] or {}
    outside = [each for each in census.get("lines", ()) if each["phase"] == "unattributed"]
    outside.sort(key=lambda each: -each["fraction"])
    median_s = diagnosis["steps"]["median_s"]
    return Result(
        name=script.name,
        repository=script.repository,
        commit=commit_of(checkouts / script.checkout),
        what=script.what,
        returncode=under.returncode,
        repeatable=not by_itself,
        differences=tuple(each for each in differences(alone, under) if each not in known),
        alone_s=round(min(alone.seconds, again.seconds), 2),
        examined_s=round(under.seconds, 2),
        steps=diagnosis["steps"]["measured"],
        step_ms=None if median_s is None else round(1000 * median_s, 3),
        bound=diagnosis["bound"],
        unattributed=diagnosis["breakdown"].get("unattributed"),
        overhead=diagnosis["probe_overhead_fraction"],
        findings=tuple(
            f"{each['code']} {each['gain_at_most']:.2f}"
            + (" (loose)" if each["gain_is_loose"] else "")
            for each in diagnosis["findings"][:3]
        ),
        lines=tuple(f"{Path(each['site']).name} {each['fraction']:.1%}" for each in outside[:2]),
        breakdown=diagnosis["breakdown"],
    )


def commit_of(checkout: Path) -> str:
    """Of a git checkout, or from a file COMMIT beside the files of an archive."""
    if (checkout / "COMMIT").is_file():
        return (checkout / "COMMIT").read_text(encoding="utf-8").strip()[:12]
    done = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()[:12] or "unknown"


def markdown(results: list[Result]) -> str:
    lines = [
        "| script | commit | steps x median | alone / examined, s | same output, files, exit code | bound | unattributed | findings |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in results:
        step = "-" if each.step_ms is None else f"{each.steps} x {each.step_ms:.3g} ms"
        same = "; ".join(each.differences) or (
            "yes" if each.repeatable else "yes, as far as it repeats itself"
        )
        outside = "-" if each.unattributed is None else f"{each.unattributed:.1%}"
        if each.lines and each.unattributed is not None and each.unattributed >= 0.05:
            outside += f" ({', '.join(each.lines)})"
        lines.append(
            f"| {each.repository} {each.name}: {each.what} | {each.commit} | {step} "
            f"| {each.alone_s:.1f} / {each.examined_s:.1f} | {same}, {each.returncode} "
            f"| {each.bound or '-'} | {outside} | {', '.join(each.findings) or 'none'} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help="scripts; all where none is given")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    args = parser.parse_args()
    unknown = set(args.names) - {script.name for script in SCRIPTS}
    if unknown:
        parser.error(f"no such script: {', '.join(sorted(unknown))}")
    checkouts = args.checkouts.resolve()
    text = shakespeare(checkouts)
    results = []
    for script in SCRIPTS:
        if args.names and script.name not in args.names:
            continue
        reason = missing(script, checkouts)
        if reason is not None:
            print(f"{script.name:34} left out: {reason}", flush=True)
            continue
        result = examine(script, checkouts, text)
        results.append(result)
        print(f"{script.name:34} {json.dumps(asdict(result))}", flush=True)
    document: dict[str, Any] = {
        "torch": version("torch"),
        "packages": {
            name: version(name)
            for name in ("transformers", "accelerate", "lightning", "torchvision", "gymnasium")
            if importlib.util.find_spec(name)
        },
        "results": [asdict(each) for each in results],
    }
    if args.json:
        args.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if args.markdown:
        args.markdown.write_text(markdown(results), encoding="utf-8")
    return 1 if any(each.differences for each in results) else 0


if __name__ == "__main__":
    sys.exit(main())
