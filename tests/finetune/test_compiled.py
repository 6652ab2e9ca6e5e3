"""`train.compile` of a fine-tuning: one graph for rows of any length, and the losses of the uncompiled layers."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import torch
import transformers
from decoders import model_of, save_decoder, write_prompts
from encoders import config, save_encoder, write_csv

import warm_python
from hotloop.core.step import read_steps
from hotloop.finetune.causal import CausalLearner
from hotloop.finetune.classifier import ONE_LABEL, Classifier
from hotloop.finetune.dropout import replace_dropout
from hotloop.finetune.entities import Entities
from hotloop.finetune.job import settings_of
from hotloop.finetune.sequences import Example
from hotloop.hardware.device import why_compile_cannot_run
from hotloop.hardware.limits import Machine
from hotloop.optimizations.catalogue import resolve
from hotloop.optimizations.compiling.trainer import compile_model, parts_uncompiled
from hotloop.optimizations.precision.autocast import autocast
from hotloop.probe.compile_watch import compiler_counts, num_graphs
from hotloop.train import run as run_module

Run = Callable[..., str]
LENGTHS = [[17, 3, 90, 40], [5], [9, 9, 9, 9], [128, 2, 64], [31, 33], [16], [100, 90, 80, 3, 2, 1]]


@pytest.fixture(autouse=True)
def compiler() -> Iterator[None]:
    if why := why_compile_cannot_run(torch.device("cpu")):
        pytest.skip(why)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def classifier_of(kind: str, task: str) -> Classifier:
    torch.manual_seed(0)
    settings = config(kind)
    settings.num_labels = 3
    model = getattr(transformers, f"AutoModelFor{task}").from_config(settings).train()
    replace_dropout(model)
    head = Entities(("A",)) if task.startswith("Token") else ONE_LABEL
    return Classifier(model, packed=True, pad_id=0, head=head)


def rows_of_encoder(learner: Classifier) -> list[tuple[torch.Tensor, ...]]:
    draw = np.random.default_rng(0)
    batches = [[draw.integers(5, 128, n).astype(np.int32) for n in each] for each in LENGTHS]
    return [learner.arranged(each)[1] for each in batches]


def rows_of_decoder(learner: CausalLearner) -> list[tuple[torch.Tensor, ...]]:
    draw = np.random.default_rng(0)
    found = []
    for lengths in LENGTHS:
        chosen = [
            Example(draw.integers(0, 328, n + 2).astype(np.int32), np.arange(n + 2) > 1)
            for n in lengths
        ]
        found.append(learner.arranged(chosen)[1:])
    return found


def logits_and_gradients(
    learner: Classifier | CausalLearner, inputs: Sequence[torch.Tensor], precision: str
) -> list[torch.Tensor]:
    learner.zero_grad()
    torch.manual_seed(1)
    with autocast("cpu", precision):
        logits = learner.logits(*inputs).float()
    logits.square().mean().backward()
    return [logits.detach(), *(p.grad for p in learner.parameters() if p.grad is not None)]


def check(
    learner: Classifier | CausalLearner,
    rows: Sequence[Sequence[torch.Tensor]],
    *,
    backend: str,
    precision: str = "fp32",
    wanted_graphs: int = 1,
) -> None:
    """What every row gives is the same compiled, and after the first one nothing is compiled any more."""
    wanted = [logits_and_gradients(learner, each, precision) for each in rows]
    compile_model(learner, True, backend=backend)
    _, _, breaks = compiler_counts()
    before = num_graphs()
    graphs = []
    for inputs, expected in zip(rows, wanted, strict=True):
        found = logits_and_gradients(learner, inputs, precision)
        graphs.append(num_graphs() - before)
        assert len(found) == len(expected)
        for own, theirs in zip(found, expected, strict=True):
            off = float((own - theirs).norm() / (theirs.norm() + 1e-3))
            assert off < (1e-5 if precision == "fp32" else 5e-2)
    assert graphs == [wanted_graphs] * len(rows)
    assert (compiler_counts()[2] or 0) == (breaks or 0)
    with parts_uncompiled(learner, True), torch.no_grad():  # as an evaluation does
        learner.logits(*rows[0])
    assert num_graphs() - before == wanted_graphs


@pytest.mark.parametrize(
    ("kind", "task"),
    [
        *(
            (each, "SequenceClassification")
            for each in ("bert", "roberta", "electra", "distilbert")
        ),
        # Those of BERT: below, through the whole compiler.
        *((each, "TokenClassification") for each in ("roberta", "electra", "distilbert")),
    ],
)
def test_one_graph_of_an_encoder_layer_serves_rows_of_all_lengths(kind: str, task: str) -> None:
    """Dropout draws what it draws uncompiled: of tokens, whose last layer is computed whole either way."""
    learner = classifier_of(kind, task)
    if task.startswith("Sequence"):
        learner.eval()
    # The projection of ELECTRA's embeddings gives its first layer a view of a tensor.
    wanted_graphs = 2 if kind == "electra" and task.startswith("Token") else 1
    check(learner, rows_of_encoder(learner), backend="aot_eager", wanted_graphs=wanted_graphs)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_compiled_code_of_an_encoder_learns_the_same(precision: str) -> None:
    learner = classifier_of("bert", "TokenClassification")
    check(learner, rows_of_encoder(learner), backend="inductor", precision=precision)


@pytest.mark.parametrize("kind", ["qwen2", "gpt2", "pythia", "mistral"])  # llama: below
def test_one_graph_of_a_decoder_layer_serves_rows_of_all_lengths(kind: str) -> None:
    learner = CausalLearner(model_of(kind).eval(), packed=True, longest=160)
    check(learner, rows_of_decoder(learner), backend="aot_eager")


def test_compiled_code_of_a_decoder_learns_the_same() -> None:
    learner = CausalLearner(model_of("llama").train(), packed=True, longest=160)
    check(learner, rows_of_decoder(learner), backend="inductor")


def test_auto_leaves_a_fine_tuning_uncompiled_and_says_why() -> None:
    words = ["task=classification", "data.file=x", "model.path=y"]
    settings = settings_of("classification", None, words)
    assert not settings.config.may_compile  # no compiler is looked for
    for device, why in (("cpu", "took longer on a CPU"), ("cuda", "was not measured")):
        resolved, notes = resolve(settings, Machine(device, ("float32",), None, 2))
        assert resolved.config.train.compile is False
        assert why in resolved.origin("train.compile")
        assert not notes
    asked = settings_of("classification", None, [*words, "train.compile=true"])
    assert asked.config.may_compile
    cpu = Machine("cpu", ("float32",), None, 2)
    assert resolve(asked, cpu)[0].config.train.compile is True
    without = replace(cpu, why_no_compile="no C++ compiler was found")
    resolved, notes = resolve(asked, without)
    assert resolved.config.train.compile is False
    assert notes == ("train.compile is off: no C++ compiler was found",)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    return ["train", "logging.tensorboard=false", "train.compile=true", "train.epochs=2"]


def weights_file(out: Path) -> bytes:
    return (out / "model/model.safetensors").read_bytes()


def weights(model: Path) -> dict[str, Any]:
    with safetensors.safe_open(model / "model.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def test_compiled_training_goes_on_to_the_same_bits_and_leaves_a_model_of_transformers(
    job: list[str], tmp_path: Path, run: Run
) -> None:
    data, model = write_csv(tmp_path / "tweets.csv"), save_encoder("bert", tmp_path / "bert")
    job += ["--task", "classification", "--data", str(data), "--model", str(model)]
    job += [
        "train.microbatch=8",
        "train.microbatch_tokens=100",
        "eval.every_steps=7",
        "checkpoint.every_steps=5",
    ]
    job += ["checkpoint.background=false"]
    said = run([*job, "--out", str(tmp_path / "whole")])
    assert "1 layer compiled for rows of any length" in said
    census = json.loads((tmp_path / "whole/census.json").read_text())
    assert (census["compiled"], census["num_graphs"], census["num_graph_breaks"]) == (True, 1, 0)
    steps = list(read_steps(tmp_path / "whole/steps.jsonl"))
    assert len({step.tokens for step in steps}) > 10
    assert not any("compile" in step.tags for step in steps)
    names = set(weights(tmp_path / "whole/model"))
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "whole/model"
    )
    assert names == set(theirs.state_dict())

    plain = [each for each in job if each != "train.compile=true"]
    run([*plain, "--out", str(tmp_path / "plain")])
    losses = [
        [r.loss for r in read_steps(tmp_path / d / "steps.jsonl")] for d in ("whole", "plain")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)

    cut = [*job, "--out", str(tmp_path / "cut")]
    killed = {"arguments": cut, "at": "update", "nth": 12, "signals": ["SIGKILL"]}
    program = Path(__file__).parents[1] / "train/interrupted_program.py"
    ended = warm_python.run(
        [str(program), json.dumps(killed)], env=os.environ, cwd=tmp_path, trainer=True
    )
    assert ended.returncode == -9, ended.stderr
    torch._dynamo.reset()
    run(cut)
    assert weights_file(tmp_path / "cut") == weights_file(tmp_path / "whole")
    said = run(["predict", str(tmp_path / "whole"), str(data), "--out", str(tmp_path / "out.csv")])
    assert "accuracy" in said
    assert "Compile the model" not in run(["report", str(tmp_path / "plain")])


def test_compiled_decoder_is_trained_by_the_command(job: list[str], tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(run_module, "compile_model", partial(compile_model, backend="aot_eager"))
    data, model = write_prompts(tmp_path / "a.jsonl"), save_decoder("llama", tmp_path / "llama")
    job += ["--task", "instructions", "--data", str(data), "--model", str(model)]
    said = run([*job, "--out", str(tmp_path / "run")])
    assert "2 layers compiled for rows of any length" in said
    assert not any("orig_mod" in name for name in weights(tmp_path / "run/model"))
    job[-1] = str(save_decoder("bloom", tmp_path / "bloom"))
    assert "nothing is compiled" in run([*job, "--out", str(tmp_path / "padded")])
