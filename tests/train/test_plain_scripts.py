"""The plain scripts of examples/ and hotloop's trainer with everything off learn the same, to the last bit."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from trainings import weights

import warm_python
from hotloop.core.settings import load_settings
from hotloop.data.loader import Loader, PlainRows
from hotloop.data.prepared import open_prepared
from hotloop.train.start import start

EXAMPLES = Path(__file__).parents[2] / "examples"
OFF = (
    "train.attention=sdpa",
    "train.loss=plain",
    "train.clip=builtin",
    "train.host_memory=default",
    "optimizer.fused=false",
    "checkpoint.every_steps=0",
    "eval.every_steps=0",
    "optimizer.learning_rate=1e-2",
)


FAMILIES = {"gpt2": ("train.gelu=tanh",), "llama": ("model.family=llama",)}


def digests(weights: dict[str, torch.Tensor]) -> list[str]:
    """Of each weight; the two name and order them otherwise."""
    contents = (w.detach().contiguous().numpy().tobytes() for w in weights.values())
    return sorted(hashlib.sha256(content).hexdigest() for content in contents)


@pytest.mark.at_once(1)
@pytest.mark.parametrize("family", FAMILIES)
def test_whole_training_is_the_same_to_the_last_bit(
    tiny_config: Path, prepared: Path, tmp_path: Path, family: str
) -> None:
    settings = load_settings(tiny_config, (*OFF, *FAMILIES[family]))
    config = settings.config
    start(settings, tmp_path / "run")
    ours = weights(tmp_path / "run")["model"]

    text = open_prepared(prepared)
    loader = Loader(
        PlainRows(text.train, context=16), order=config.data.order, seed=config.data.seed
    )
    np.save(tmp_path / "order.npy", loader.indices(0, 12 * config.sequences_per_step))
    shape = "--batch 4 --context 16 --layers 1 --width 16 --heads 2 --lr 1e-2 --warmup 4 --steps 12"
    more = f"--kv-heads 2 --hidden {config.model.inner_width}" if family == "llama" else ""
    done = warm_python.run(
        [
            str(EXAMPLES / f"plain_{family.removesuffix('2')}.py"),
            *("--data", str(prepared), "--order", str(tmp_path / "order.npy")),
            *("--save", str(tmp_path / "theirs.pt"), *shape.split(), *more.split()),
        ],
        env=os.environ,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    theirs = torch.load(tmp_path / "theirs.pt", weights_only=True)
    assert digests(ours) == digests(theirs)
