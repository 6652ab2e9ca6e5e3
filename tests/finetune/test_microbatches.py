"""`train.microbatch_tokens`: the examples of a step in microbatches of so many tokens, and the same training."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from decoders import model_of, save_decoder, write_prompts
from encoders import config, save_encoder, write_csv
from hypothesis import given, settings
from hypothesis import strategies as st

import warm_python
from hotloop.core.causal_config import CausalConfig
from hotloop.core.finetune_config import FinetuneConfig, FinetuneTrain
from hotloop.core.step import read_steps
from hotloop.finetune.causal import CausalLearner, CausalWork
from hotloop.finetune.classifier import Classifier
from hotloop.finetune.entities import UNLABELLED, Entities
from hotloop.finetune.entities import Labelled as Tags
from hotloop.finetune.labels import OneLabel
from hotloop.finetune.microbatches import PACKED, computed, divided, divided_sorted, level
from hotloop.finetune.sequences import Example
from hotloop.finetune.work import FinetuneWork, Labelled, chosen_in, longest_first
from hotloop.judge.memory import ways_of_config
from hotloop.train.batches import StepData

Run = Callable[..., str]
LENGTHS = st.lists(st.integers(1, 128), min_size=1, max_size=40)


@dataclass
class Laid:
    packed: bool
    buckets: int


@settings(max_examples=200, deadline=None)
@given(lengths=LENGTHS, budget=st.integers(1, 600), buckets=st.sampled_from([PACKED, 1, 4]))
def test_each_example_is_in_one_microbatch_within_the_budget(
    lengths: list[int], budget: int, buckets: int
) -> None:
    train, laid = FinetuneTrain(microbatch_tokens=budget), Laid(buckets == PACKED, buckets)
    for parts in (divided(lengths, train, laid), divided_sorted(lengths, train, laid)):
        assert sorted(chain(*parts)) == [*range(len(lengths))]
        for part in parts:
            own = np.array([lengths[at] for at in part])
            slots = int(own.sum()) if buckets == PACKED else None
            if buckets == 1:
                slots = len(own) * int(own.max())
            assert slots in (None, computed(own, buckets))
            assert len(part) == 1 or computed(own, buckets) <= budget
    if buckets:  # neighbours in length: what is in one is no shorter than what is in the next
        for one, other in pairwise(parts):
            assert min(lengths[at] for at in one) >= max(lengths[at] for at in other)


def test_packed_microbatches_are_few_and_level() -> None:
    found = level(np.array([60, 40, 60, 40]), 100)
    assert sorted(map(sorted, found)) == [[0, 1], [2, 3]]
    lengths = np.array([*range(4, 68)])
    loads = [int(lengths[part].sum()) for part in level(lengths, 512)]
    assert len(loads) == -(-int(lengths.sum()) // 512)
    assert max(loads) - min(loads) <= 10
    assert [len(part) for part in level(np.array([1000, 5, 5, 5]), 64)] == [1, 3]


def read(kind: str, packed: bool, budget: int | None, lengths: list[int]) -> Any:
    """The work of a training whose step takes all examples, and its model."""
    draw = np.random.default_rng(len(lengths))
    tokens = [draw.integers(5, 120, n).astype(np.int32) for n in lengths]
    buckets = int(draw.integers(1, 5))
    train = {"microbatch": 3, "grad_accum_steps": 4, "microbatch_tokens": budget, "steps": 2}
    torch.manual_seed(0)
    if kind == "causal":
        model = model_of("llama").eval()
        examples = [
            Example(np.append(ids, 7), np.r_[False, draw.random(len(ids)) < 0.5]) for ids in tokens
        ]
        for each in examples:
            each.learned[-1] = True
        of_causal = CausalConfig.model_validate(
            {"task": "text", "data": {"file": "a"}, "model": {"path": "b"}, "train": train}
        )
        learner = CausalLearner(model, packed=packed, longest=160, buckets=buckets)
        return CausalWork(of_causal, learner, examples, examples[:1])
    head: Any = OneLabel(("a", "b", "c"))
    labels: list[Any] = draw.integers(0, 3, len(tokens)).tolist()
    shape = config("bert")
    shape.num_labels = 3
    auto = transformers.AutoModelForSequenceClassification
    if kind == "tokens":
        head, auto = Entities(("A",)), transformers.AutoModelForTokenClassification
        shape.num_labels = len(head.outputs)
        labels = []
        for ids in tokens:
            tags = np.where(draw.random(len(ids)) < 0.2, UNLABELLED, draw.integers(0, 3, len(ids)))
            words = tuple(range(int((tags != UNLABELLED).sum())))
            labels.append(Tags(tags, words, ("O",) * len(words)))
    own = FinetuneConfig.model_validate(
        {"task": kind, "data": {"file": "a"}, "model": {"path": "b"}, "train": train}
    )
    model = Classifier(auto.from_config(shape).eval(), packed=packed, pad_id=0, head=head, buckets=buckets)  # fmt: skip
    return FinetuneWork(own, model, Labelled(tokens, labels), Labelled([], []))


def step_of(work: Any) -> tuple[Any, float, dict[str, torch.Tensor]]:
    """What a step reads, and its loss and gradients, as the training loop adds them up."""
    data = work.read(0, own=range(4), pinned=False)
    shares = [work.model(*inputs) / data.num_targets for inputs in data.microbatches]
    for share in shares:
        share.backward()
    grads = {name: p.grad for name, p in work.model.named_parameters() if p.grad is not None}
    return data, float(sum(shares).detach()), grads


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(["classification", "tokens", "causal"]),
    packed=st.booleans(),
    budget=st.sampled_from([1, 40, 100, 333, 5000]),
    lengths=st.lists(st.integers(1, 120), min_size=1, max_size=12),
)
def test_loss_and_gradient_of_a_step_are_those_of_a_division_by_number(
    kind: str, packed: bool, budget: int, lengths: list[int]
) -> None:
    by_number, loss, wanted = step_of(read(kind, packed, None, lengths))
    found, own_loss, gradients = step_of(read(kind, packed, budget, lengths))
    assert len(by_number.microbatches) == -(-len(lengths) // 3)
    assert (found.num_tokens, found.num_samples) == (sum(lengths), len(lengths))
    assert found.num_targets == by_number.num_targets
    if budget == 1:
        assert len(found.microbatches) == len(lengths)
    assert own_loss == pytest.approx(loss, abs=1e-5)
    assert gradients.keys() == wanted.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, wanted[name], atol=1e-5, rtol=1e-5, msg=name)


@pytest.mark.parametrize("kind", ["classification", "causal"])
@pytest.mark.parametrize("packed", [True, False])
def test_a_soak_begins_with_the_widest_microbatch_of_the_training_and_its_longest_example(
    kind: str, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = [*np.random.default_rng(0).integers(2, 100, 61).tolist(), 110]
    work = read(kind, packed, None, lengths)
    work.model.buckets = 1
    steps = range(3 * 6)  # epochs of 6 steps of 12 examples, in microbatches of 3

    def of_step(step: int) -> list[int]:
        return [lengths[at] for at in chosen_in(step, work.config, work.config.data.seed, 62)]

    def widest(step: int) -> int:
        parts = [of_step(step)[at : at + 3] for at in range(0, 12, 3)]
        return max(sum(part) if packed else len(part) * max(part) for part in parts if part)

    as_given = [work.read(step, own=range(4), pinned=False).num_tokens for step in steps]
    assert as_given == [sum(of_step(step)) for step in steps]
    monkeypatch.setenv("HOTLOOP_LONGEST_FIRST", "1")
    first, second, *others = [
        longest_first(step, work.config, 62, lengths.__getitem__, work.model) for step in steps
    ]
    assert widest(first) == max(map(widest, steps))
    assert 110 in of_step(second)
    assert others == [*steps[2:]]
    found = [work.read(step, own=range(4), pinned=False).num_tokens for step in steps]
    assert found == [as_given[first], as_given[second], *as_given[2:]]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    data, model = write_csv(tmp_path / "tweets.csv"), save_encoder("bert", tmp_path / "bert")
    start = ["train", "--task", "classification", "--data", str(data), "--model", str(model)]
    return [*start, "train.microbatch=16", "train.epochs=2", "logging.tensorboard=false"]


def test_a_run_with_a_budget_tells_its_microbatches_and_continues_to_the_same_bits(
    job: list[str], tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[StepData] = []
    read = FinetuneWork.read

    def watched(*given: Any, **named: Any) -> StepData:
        made.append(read(*given, **named))
        return made[-1]

    monkeypatch.setattr(FinetuneWork, "read", watched)
    job += ["train.microbatch_tokens=40", "eval.every_steps=4", "checkpoint.every_steps=4"]
    job += ["checkpoint.background=false"]
    said = run([*job, "--out", str(tmp_path / "whole")])
    steps = list(read_steps(tmp_path / "whole/steps.jsonl"))
    assert [step.samples for step in steps] == ([16] * 6 + [12]) * 2
    tokens = sum(step.tokens for step in steps[:7])
    assert tokens == sum(step.tokens for step in steps[7:])
    assert f"{tokens:,} tokens an epoch" in said
    assert (
        f"tokens a step in the mean of the first epoch: packed {tokens / 7:,.0f}, as here" in said
    )
    rows = [[len(inputs[3]) for inputs in data.microbatches] for data in made[:7]]  # `where`
    counts, longer = [*map(len, rows)], sum(n > 40 for each in rows for n in each)
    assert longer > 0
    assert (
        f"`train.microbatch_tokens` 40: {min(counts)} to {max(counts)} microbatches a step in the first epoch, "
        f"the widest of {max(map(max, rows))} tokens; longer than that, and so one by itself: {longer} examples"
    ) in said

    killed = {"arguments": [*job, "--out", str(tmp_path / "cut")], "at": "update", "nth": 10, "signals": ["SIGKILL"]}  # fmt: skip
    program = Path(__file__).parents[1] / "train/interrupted_program.py"
    ended = warm_python.run(
        [str(program), json.dumps(killed)], env=os.environ, cwd=tmp_path, trainer=True
    )
    assert ended.returncode == -9, ended.stderr
    run([*job, "--out", str(tmp_path / "cut")])
    for name in ("model/model.safetensors", "evals.jsonl", "task.json"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_padded_examples_of_similar_length_are_told_with_what_padding_costs(
    job: list[str], tmp_path: Path, run: Run
) -> None:
    job += ["train.microbatch_tokens=300", "model.packed=false", "train.steps=1"]
    said = run([*job, "--out", str(tmp_path / "run")])
    found = re.search(
        r"packed ([\d,]+); padded to the longest of each microbatch ([\d,]+) \([\d.]+ times\), as here; "
        r"with similar lengths together ([\d,]+) \([\d.]+ times\)",
        said,
    )
    assert found
    packed, longest, alike = (int(each.replace(",", "")) for each in found.groups())
    assert packed < alike < longest


def test_every_example_of_an_epoch_is_read_once_whatever_the_budget() -> None:
    work = read("classification", True, 70, [*range(3, 40)])
    seen: list[int] = []
    for step in range(4):
        seen += chosen_in(step, work.config, 0, 37)
        data = work.read(step, own=range(4), pinned=False)
        assert sum(len(inputs[0]) for inputs in data.microbatches) == data.num_samples
    assert sorted(seen) == [*range(37)]


def test_a_decoder_is_trained_within_a_budget(job: list[str], tmp_path: Path, run: Run) -> None:
    data, model = write_prompts(tmp_path / "a.jsonl"), save_decoder("llama", tmp_path / "llama")
    own = ["train", "--task", "instructions", "--data", str(data), "--model", str(model)]
    said = run([*own, *job[7:], "train.microbatch_tokens=400", "train.steps=2", "--out", str(tmp_path / "run")])  # fmt: skip
    assert "`train.microbatch_tokens` 400: " in said


def test_out_of_memory_names_a_lower_budget_where_there_is_one() -> None:
    given = {"task": "classification", "data": {"file": "a"}, "model": {"path": "b"}}
    flat = FinetuneConfig.model_validate({**given, "train": {"microbatch_tokens": 512}}).flat()
    ways = ways_of_config(flat, None)
    assert ways[0].startswith("train.microbatch_tokens=256: ")
    assert not any("grad_accum_steps" in way for way in ways)
