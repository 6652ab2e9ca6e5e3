"""Fine-tunings that really run out of memory say where it went, before they end or after the kernel has ended them."""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import decoders
import encoders
import numpy as np
import pytest
import torch
import transformers
from torch.utils.data import default_collate

from hotloop.finetune import causal, classifier
from hotloop.finetune.module import batch_of
from hotloop.finetune.pretrained import loading
from hotloop.finetune.sequences import Example
from hotloop.runs.stored_run import read_run
from hotloop.trial.memory_group import memory_group

Run = Callable[..., str]


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A fine-tuning whose steps take some GB: 1600 texts at once in layers of 8192."""
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    model = tmp_path / "bert"
    wide = transformers.BertConfig(vocab_size=128, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8192, pad_token_id=0)  # fmt: skip
    transformers.AutoModel.from_config(wide).save_pretrained(model)
    encoders.tokenizer().save_pretrained(model)
    data = encoders.write_csv(tmp_path / "a.csv", 2000)
    job = ["train", "--task", "sentiment", "--data", str(data), "--model", str(model)]
    job += ["train.microbatch=1600", "train.precision=fp32", "train.num_threads=1"]
    return [*job, "train.host_memory=default", "logging.tensorboard=false", "--out", str(tmp_path / "run")]  # fmt: skip


def command(job: list[str]) -> list[str]:
    return [sys.executable, "-m", "hotloop", *job]


@pytest.mark.slow
def test_a_refused_allocation_is_told_with_owners_and_the_settings_of_a_fine_tuning(
    large: list[str], tmp_path: Path
) -> None:
    limited = ["/bin/sh", "-c", 'ulimit -v 3000000 && exec "$@"', "sh", *command(large)]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=900)
    assert done.returncode == 4, done.stderr
    assert "\nerror: out of memory\n" in done.stderr
    assert "Traceback" not in done.stderr
    for said in ("RLIMIT_AS", "weights", "the process before training", "model.max_tokens=64: "):
        assert said in done.stderr
    assert "train.microbatch=800 train.grad_accum_steps=2: " in done.stderr
    for another in ("hotloop fit", "train.loss", "model.layers", "Python, torch, libraries"):
        assert another not in done.stderr
    ended = read_run(tmp_path / "run").out_of_memory
    assert ended is not None
    assert (ended.certainty, ended.where) == ("said", "forward of step 0")


def test_a_killed_fine_tuning_is_told_by_the_next_one_and_by_its_report(
    large: list[str], tmp_path: Path, run: Run
) -> None:
    with memory_group(800 << 20) as group:
        if group is None:
            pytest.skip("no memory control group can be made here")
        killed = group.command(command(large))
        done = subprocess.run(killed, capture_output=True, text=True, timeout=900)
        assert done.returncode == -9, done.stderr
        ended = read_run(tmp_path / "run").out_of_memory
        assert ended is not None
        assert (ended.certainty, ended.limit_bytes) == ("killed", 800 << 20)
        assert ended.profile is not None
        note = json.loads((tmp_path / "run" / "memory-0.json").read_text())
        assert ended.profile.parts["weights"] == note["owners"]["weights"] > 8 * 64 * 8192 * 2
        assert ended.ways[0].startswith("train.microbatch=800 train.grad_accum_steps=2: ")
        said = run([*large, "data.seed=3"], code=2)  # told although it is refused then
        assert "the process before this one: the kernel killed it for its memory, last seen in" in said  # fmt: skip


def test_memory_that_is_refused_while_a_model_loads_is_not_called_a_damaged_model(
    tmp_path: Path,
) -> None:
    place = str(encoders.save_encoder("bert", tmp_path / "bert"))
    with pytest.raises(RuntimeError, match="allocate memory"), loading(place, print, trusted=False):
        torch.empty(1 << 46)


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_memory_that_is_refused_to_packed_examples_does_not_call_them_unpacked(kind: str) -> None:
    ids = [np.arange(3, 9, dtype=np.int32)] * 2
    if kind == "bert":
        model = transformers.AutoModelForSequenceClassification.from_config(encoders.config(kind))
        asked = partial(classifier.why_not_packed, model, ids)
    else:
        model = decoders.model_of(kind)
        asked = partial(causal.why_not_packed, model, [Example(each, each > 0) for each in ids], 9)
    assert asked() is None
    model.get_input_embeddings().register_forward_pre_hook(lambda *given: torch.empty(1 << 46))
    with pytest.raises(RuntimeError, match="allocate memory"):
        asked()


def test_memory_that_is_refused_to_a_batch_does_not_blame_its_examples() -> None:
    with pytest.raises(RuntimeError, match="allocate memory"):
        batch_of(default_collate, [torch.zeros(1).expand(1 << 46)], [0])
