"""The stacks people train with, how each is started, what is right by construction: for `stacks.py`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMPUTING = ("compute", "balanced", "launch", "memory_bandwidth")
"""Bounds that say that the model is the bulk of the step."""


WAITING = 0.2
"""Share of the time that waits for data beside which "nothing to gain" is wrong."""


@dataclass(frozen=True)
class Stack:
    """One command over the scripts in `stacks/`, and what the doctor must and must not say of it."""

    name: str
    command: str
    """For a shell, in a directory that holds the scripts."""
    steps: tuple[int, ...] | None
    """Updates of each training process; `None`: one process, which writes the number to the file `made`."""
    bound: tuple[str, ...] = ()
    """One of these; or none of those that begin with `!`."""
    must: tuple[str, ...] = ()
    """Findings that were planted: `HL102`, or `HL102@file.py` with its place."""
    never: tuple[str, ...] = ()
    """Findings that would be false."""
    says: tuple[str, ...] = ()
    """Patterns that the report must hold."""
    silent: tuple[str, ...] = ()
    """Patterns that the report must not hold."""
    code: int = 0
    """The doctor's own exit code."""
    options: tuple[str, ...] = ()
    """Of the doctor."""
    needs: tuple[str, ...] = ()
    """Packages besides torch and numpy."""
    before: str | None = None
    """Run first, without the doctor."""
    busy: bool = False
    """Two processes spin beside it."""
    alike: bool = True
    """Prints the same with and without the doctor, and leaves with the same exit code."""
    signal_after_s: float | None = None
    """The doctor alone gets SIGTERM after so long."""
    wait_s: float = 0
    """For what the command leaves running."""


def judged(stack: Stack, diagnosis: dict[str, Any], report: str, errors: str) -> list[str]:
    """What the doctor said that is wrong, or did not say."""
    wrong = []
    bound, found = diagnosis.get("bound"), diagnosis.get("findings", [])
    if diagnosis and stack.bound:
        ruled_out = f"!{bound}" in stack.bound
        if ruled_out or (stack.bound[0][0] != "!" and bound not in stack.bound):
            wrong.append(f"bound by {bound}")
    # On a machine that others fill, HL101 says that they hide the cause.
    hidden = any("other_programs_fraction" in each["evidence"] for each in found)
    for wanted in stack.must:
        if not any(fits(each, wanted) for each in found) and not (hidden and wanted[:4] == "HL10"):
            wrong.append(f"no {wanted}")
    for false in stack.never:
        if not (hidden and false == "HL101"):
            wrong += [f"{named(each)} is false" for each in found if fits(each, false)]
    wrong += [f"{named(each)} names installed code" for each in found if "site-packages" in (each["site"] or "")]  # fmt: skip
    waits = diagnosis.get("breakdown", {}).get("data_wait", 0)
    worth = diagnosis.get("worth") or {}
    gains = any(not f["gain_is_loose"] and f["gain_at_most"] >= 1.05 for f in found)
    if waits > WAITING and worth.get("answer") == "nothing to gain here" and not gains:
        wrong.append(f'"nothing to gain" beside {waits:.0%} waiting for data')
    wrong += [f"says /{each}/" for each in (*stack.silent, "over 1 lines") if re.search(each, report)]  # fmt: skip
    wrong += [f"does not say /{each}/" for each in stack.says if not re.search(each, report)]
    if re.search(r'File ".*/hotloop/', errors) and stack.code != 5:
        wrong.append("a traceback of ours in the command's output")
    return wrong


def named(finding: dict[str, Any]) -> str:
    site = f"@{Path(finding['site']).name}" if finding["site"] else ""
    return f"{finding['code']}{site}{' (loose)' if finding['gain_is_loose'] else ''}"


def fits(finding: dict[str, Any], wanted: str) -> bool:
    code, _, file = wanted.partition("@")
    return finding["code"] == code and file in (finding["site"] or "")


def ways() -> tuple[Stack, ...]:
    """One plain loop, started in every way."""
    commands = (
        ("./train.py", "./plain.py --x 'y z'", ()),
        ("bash run.sh, tee, pipefail", "bash run.sh a b", ()),
        ("make", "make -s -f train.mk", ()),
        ("python -m package.train", "python -m package.train", ()),
        ("click, `--`", "python click_app.py --updates 60 -- --x 'y z'", ("click",)),
        ("fire", "python fire_app.py train --updates 60", ("fire",)),
        ("a wrapper that execs", "./wrapper.sh python plain.py", ()),
        ("path with spaces, `-- --x 'y z'`", "mkdir 'a b' && cp plain.py 'a b/my train.py' && python 'a b/my train.py' -- --x 'y z'", ()),
    )  # fmt: skip
    return tuple(
        Stack(name, command, (60,), bound=(*COMPUTING, "optimizer"), never=("HL801",), needs=needs)
        for name, command, needs in commands
    )


SERIAL = ("HL102",)
LIBRARY = ("[Dd]o(es)? (that|it) less often",)
"""Advice that would have the caller of a library train less."""

STACKS = (
    Stack("HF Trainer, BERT classification, accumulation 2, evaluates and saves every 10", "python hf_classification.py",
          (30,), (*COMPUTING, "checkpoint", "evaluation"), must=("HL111",), silent=(*LIBRARY, "<module>"), needs=("transformers", "accelerate")),
    Stack("HF Trainer, GPT-2, 60 steps, saves", "python hf_language_model.py --steps 60", (60,), (*COMPUTING, "checkpoint"),
          must=("HL111",), silent=("attn_implementation", "written out", *LIBRARY), needs=("transformers", "accelerate")),
    Stack("the same, resumed from step 30 to 90", "python hf_language_model.py --steps 90 --resume", (60,), (*COMPUTING, "checkpoint"),
          must=("HL111",), silent=("attn_implementation", "written out", *LIBRARY), needs=("transformers", "accelerate"),
          before="python hf_language_model.py --steps 30"),
    Stack("the same, SIGTERM to the doctor alone", "python hf_language_model.py --steps 100000", None, must=("HL111",),
          says=("interrupted",), silent=("attn_implementation", "written out", *LIBRARY), needs=("transformers", "accelerate"), code=75, alike=False, signal_after_s=90),
    Stack("accelerate launch, 1 process, accumulation", "accelerate launch --cpu --num_processes 1 accelerated.py", (50,), ("input",),
          must=SERIAL, needs=("accelerate",)),
    Stack("accelerate launch --num_processes 2 --cpu (starts 1)", "accelerate launch --cpu --num_processes 2 accelerated.py", (50,), ("input",),
          must=SERIAL, needs=("accelerate",)),
    Stack("accelerate, on a busy machine", "accelerate launch --cpu --num_processes 1 accelerated.py", (50,), ("input",),
          needs=("accelerate",), busy=True),
    Stack("torchrun, 2 ranks, DDP over gloo", "torchrun --nproc-per-node 2 ddp.py", (50, 50), ("communication",), must=("HL601",)),
    Stack("Lightning Trainer, validation, 2 loggers, 3 callbacks", "python lightning_trainer.py", (60,), ("input",),
          must=("HL106@lightning_trainer.py",), silent=LIBRARY, needs=("lightning", "tensorboard")),
    Stack("Lightning Fabric", "python fabric.py", (50,), COMPUTING, must=("HL401",), needs=("lightning",)),
    Stack("TRL SFTTrainer, LoRA, accumulation 2", "python trl_sft.py", (30,), COMPUTING, must=("HL111",), silent=LIBRARY, needs=("trl", "peft", "datasets")),
    Stack("PEFT LoRA, own loop, gradient checkpointing", "python peft_raw.py", (40,), COMPUTING, never=("HL801", "HL702"), needs=("peft", "transformers")),
    Stack("sentence-transformers, 2 columns", "python sentence_pairs.py", (40,), COMPUTING, must=("HL111",), silent=LIBRARY,
          needs=("sentence_transformers", "datasets")),
    Stack("timm: mixup, EMA, RandAugment, clipping", "python timm_mixup.py", (40,), (*COMPUTING, "input"), must=("HL401",), needs=("timm", "PIL")),
    Stack("ultralytics YOLOv8n, 3 epochs", "python yolo.py", (24,), (*COMPUTING, "checkpoint"), silent=LIBRARY, needs=("ultralytics", "torchvision"), alike=False),
    Stack("stable-baselines3 PPO", "python sb3_ppo.py", (64,), ("!evaluation",), never=("HL702",), silent=(*LIBRARY, r"[Ee]valuate less"),
          needs=("stable_baselines3", "gymnasium")),
    Stack("stable-baselines3 DQN", "python sb3_dqn.py", (150,), ("!evaluation",), never=("HL702",), silent=(*LIBRARY, r"[Ee]valuate less"),
          needs=("stable_baselines3", "gymnasium")),
    Stack("Keras 3 on torch, model.fit", "python keras_fit.py", (40,), never=("HL801@keras_fit.py",), silent=LIBRARY, needs=("keras", "h5py")),
    Stack("fastai Learner", "python fastai_learner.py", (30,), never=("HL801@fastai_learner.py",), silent=LIBRARY, needs=("fastai",)),
    Stack("Ignite, an evaluator per epoch", "python ignite_engine.py", (80,), ("evaluation",), must=("HL702", "HL401"), needs=("ignite",)),
    Stack("pytorch-metric-learning, 2 optimizers", "python metric_learning.py", (40,), ("input",), must=("HL102",), needs=("pytorch_metric_learning",)),
    Stack("PyTorch Geometric, full batch, evaluates each epoch", "python graph_full_batch.py", (80,), (*COMPUTING, "evaluation"), never=("HL702",),
          needs=("torch_geometric",)),
    Stack("diffusers UNet, Accelerate, EMA", "python diffusion.py", (40,), COMPUTING, must=("HL401",), needs=("diffusers", "accelerate")),
    Stack("skorch", "python skorch_fit.py", (120,), ("!host", "!evaluation"), must=("HL401",), silent=LIBRARY, needs=("skorch",)),
    Stack("as torchtitan: meta device, YAML, accumulation 2", "python meta_device.py", (60,), COMPUTING, never=("HL801",), needs=("yaml",)),
    Stack("hydra, chdir, outputs/", "python hydra_app.py hydra.job.chdir=True", (60,), (*COMPUTING, "optimizer"), must=("HL401",), never=("HL801",), needs=("hydra",)),
    Stack("webdataset WebLoader, 1 worker", "python web_dataset.py", (120,), ("input",), needs=("webdataset",)),
    Stack("the same, on a busy machine", "python web_dataset.py", (120,), ("input",), needs=("webdataset",), busy=True),
    Stack("torchdata StatefulDataLoader", "python stateful_loader.py", (120,), ("input",), must=("HL102@stateful_loader.py",), never=("HL101",), needs=("torchdata",)),
    Stack("IterableDataset, no workers", "python iterable_dataset.py", (80,), ("input",), must=("HL102@iterable_dataset.py",)),
    Stack("an iterator class of its own (as DALI)", "python own_iterator.py", (300,), ("input",), must=("HL107@own_iterator.py",), never=("HL801",)),
    Stack("a prefetch thread and queue.Queue", "python thread_queue.py", (100,), ("input",), never=("HL801",), silent=LIBRARY),
    Stack("spawned workers, main guard", "python spawned_workers.py", (80,)),
    Stack("spawned workers, no main guard", "python spawned_workers.py --unguarded", (), code=5),
    Stack("mp.spawn, 2 training processes", "python two_processes.py spawn", (60,), says=(r"(?i)(another|other|second|more) process",)),
    Stack("hogwild, 2 processes", "python two_processes.py hogwild", (60,), says=(r"(?i)(another|other|second|more) process",)),
    Stack("GAN, 2 updates of D per update of G: a step is a round", "python gan.py", (50,), ("!host", "!evaluation"), must=("HL401",)),
    Stack("MAML, functional_call, create_graph", "python maml.py", (60,), never=("HL801",)),
    Stack("LBFGS closures", "python lbfgs.py", (30,), COMPUTING, never=("HL801", "HL702")),
    Stack("notebook, nbconvert --execute", "python notebook.py && jupyter nbconvert --execute --to notebook --output done.ipynb notebook.ipynb", (80,),
          needs=("nbconvert", "ipykernel")),
    Stack("stdin read, the rest later", "printf 'one\\ntwo three\\nfour\\n' | python endings.py stdin", (60,)),
    *ways(),
    Stack("os.chdir before training", "python endings.py chdir && ls sub", (60,)),
    Stack("own SIGTERM and USR1 handlers, exits with 7", "python endings.py signals", None, code=5),
    Stack("sys.exit(3)", "python endings.py exit3", (60,), code=5),
    Stack("atexit that trains", "python endings.py atexit", (65,)),
    Stack("os._exit(0) at the end", "python endings.py os_exit", (60,), silent=("fewer than",)),
    Stack("crash in step 41", "python endings.py crash", (41,), says=("exit code 1",), code=5),
    Stack("endless, --steps 40", "python endings.py endless", None, options=("--steps", "40"), alike=False),
    Stack("3 steps", "python endings.py three", (3,), says=(r"[Oo]nly 3 steps",), code=3),
    Stack("double fork, setsid", "python daemon.py", (60,), says=("left running",), silent=("imported no torch",), code=3, wait_s=60, alike=False),
    Stack("tqdm alive at exit", "python endings.py tqdm", (60,), needs=("tqdm",)),
    Stack("transforms are modules, 2 forked workers", "python picture_workers.py", (60,), ("!host",), never=("HL801",), silent=("nothing goes backward",)),
    Stack("the same, torchvision's", "python picture_workers.py --torchvision", (60,), ("!host",), never=("HL801",), silent=("nothing goes backward",), needs=("torchvision",)),
    Stack("the same, --steps 12", "python picture_workers.py --torchvision", None, ("!host",), never=("HL801",), silent=("nothing goes backward",),
          options=("--steps", "12"), needs=("torchvision",), alike=False),
    Stack("the same, --steps 40", "python picture_workers.py --torchvision", None, ("!host",), never=("HL801",), silent=("nothing goes backward",),
          options=("--steps", "40"), needs=("torchvision",), alike=False),
)  # fmt: skip
