"""Two arms on the same work: a script that imports nothing of ours, and hotloop's trainer."""

from __future__ import annotations

import hashlib
import io
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hotloop.core.cache import cache_directory
from hotloop.core.config import RunConfig
from hotloop.core.errors import EnvironmentFailed, UsageError
from hotloop.core.files import write_atomically
from hotloop.core.settings import Settings, store_settings
from hotloop.data.loader import Loader, PlainRows
from hotloop.data.prepared import open_prepared
from hotloop.optimizations.catalogue import CONFIGURED
from hotloop.trial.arm import Arm
from hotloop.trial.plan import TrialPlan

Style = Literal["plain", "compiled"]
"""How the script of the baseline is written: with torch's defaults, or with bf16, torch.compile and
fused AdamW as every guide says."""
_SCRIPTS: dict[tuple[str, Style], tuple[str, ...]] = {
    ("gpt2", "plain"): ("plain_gpt.py",),
    ("llama", "plain"): ("plain_llama.py",),
    ("gpt2", "compiled"): ("compiled_gpt.py",),
    ("llama", "compiled"): ("compiled_gpt.py", "--llama"),
}
_FILES = ("plain_gpt.py", "plain_llama.py", "compiled_gpt.py")
"""They import each other."""
_SCRIPT_TAKES = frozenset(
    {
        *("train.steps", "train.microbatch", "train.seed", "train.num_threads"),
        *("model.family", "model.context", "model.layers", "model.width", "model.heads"),
        "model.vocabulary",
        *("optimizer.learning_rate", "optimizer.rate_for_batch", "optimizer.rate_scaling"),
        "schedule.warmup_steps",
        *(optimization.key for optimization in CONFIGURED.values()),
    }
)
_LLAMA_TAKES = frozenset({"model.kv_heads", "model.hidden"})
_SCRIPT_NEVER_SEES = ("name", "data.", "eval.", "checkpoint.", "logging.")


def refuse_what_the_script_cannot_do(config: RunConfig) -> None:
    """Raises `UsageError` for a setting that only one arm would have."""
    defaults = RunConfig(data=config.data).flat()
    takes = _SCRIPT_TAKES | (_LLAMA_TAKES if config.model.family == "llama" else frozenset())
    for key, value in config.flat().items():
        if key in takes or key.startswith(_SCRIPT_NEVER_SEES):
            continue
        if value != defaults[key]:
            do = f"leave it at {defaults[key]}: both arms must train the same"
            raise UsageError(f"`{key}: {value}` has no counterpart in examples/plain_gpt.py", do=do)


def arms(
    directory: Path, tuned: Settings, data: Path, plan: TrialPlan, *, style: Style = "plain"
) -> tuple[Arm, Arm]:
    """The script and hotloop's trainer: same data, same sequences in the same order, same start.

    The script knows nothing of hotloop's order, so it is handed the sequence numbers.
    """
    config = tuned.config
    prepared = open_prepared(data, verify=config.data.verify)
    rows = PlainRows(prepared.train, context=config.model.context)
    loader = Loader(rows, order=config.data.order, seed=config.data.seed)
    order = io.BytesIO()
    np.save(order, loader.indices(0, plan.num_steps * config.sequences_per_step))
    # Named by content: trials of other settings must never be taken for trials of these.
    stem = hashlib.sha256(order.getvalue()).hexdigest()[:12]
    order_file = directory.resolve() / f"order-{stem}.npy"
    write_atomically(order_file, order.getvalue())
    config_file = directory.resolve() / f"hotloop-{config.digest()}.yaml"
    store_settings(tuned, config_file)
    refuse_what_the_script_cannot_do(config)
    # Threads are a setting of their own, and not among those that are compared here.
    threads = {"OMP_NUM_THREADS": str(config.train.num_threads)}
    manifest = data.resolve() / "manifest.json"
    model, train = config.model, config.train
    shape: dict[str, Any] = {
        "--steps": plan.num_steps,
        "--schedule-steps": train.steps,
        "--batch": train.microbatch,
        "--context": model.context,
        "--layers": model.layers,
        "--width": model.width,
        "--heads": model.heads,
        "--lr": config.highest_rate,
        "--warmup": config.schedule.warmup_steps,
        "--seed": train.seed,
        "--vocabulary": model.vocabulary,
    }
    if model.family == "llama":
        shape |= {"--kv-heads": model.kv_heads, "--hidden": model.inner_width}
    words = [
        word for flag, value in shape.items() if value is not None for word in (flag, str(value))
    ]
    python = sys.executable
    name, *how = _SCRIPTS[model.family, style]
    files = {file: shipped(f"examples/{file}") for file in _FILES}
    baseline = Arm(
        name=style,
        command=(
            *(python, str(files[name]), *how),
            *("--data", str(data.resolve()), "--order", str(order_file), *words),
        ),
        records="step_clock",
        env=threads,
        inputs=(*files.values(), order_file, manifest),
        tokens_per_step=config.global_batch_tokens,
        samples_per_step=config.sequences_per_step,
    )
    candidate = Arm(
        name="hotloop",
        command=(
            *(python, "-m", "hotloop", "train", str(config_file), "--out", "{run}"),
            *("--stop-after", str(plan.num_steps)),
        ),
        records="run",
        env={**threads, "HOTLOOP_CACHE": str(cache_directory())},
        inputs=(manifest,),
    )
    return baseline, candidate


def shipped(name: str) -> Path:
    """The path of `configs/...` or `examples/...`. Raises `EnvironmentFailed` when it is not there."""
    checkout = Path(__file__).resolve().parents[3]
    for root in (checkout, Path(sys.prefix) / "share" / "hotloop"):
        if (root / name).is_file():
            return root / name
    do = "install hotloop again, or run it from a clone"
    raise EnvironmentFailed(f"{name} is missing from this installation", do=do)
