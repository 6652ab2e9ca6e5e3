"""Fine-tuning, predictions and generation on a GPU (`gpu_or_cpu`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers")

import decoders  # noqa: E402
import encoders  # noqa: E402

import hotloop  # noqa: E402
from gpu_or_cpu import DEVICE, ON_A_GPU  # noqa: E402
from hotloop.cli.main import run as run_here  # noqa: E402
from hotloop.core.step import read_steps  # noqa: E402
from hotloop.finetune import packed_attention, predict  # noqa: E402
from hotloop.finetune.causal import CausalLearner  # noqa: E402
from hotloop.finetune.classifier import Classifier, why_not_packed  # noqa: E402
from hotloop.finetune.entities import Entities  # noqa: E402
from hotloop.finetune.input_rows import InputRow  # noqa: E402
from hotloop.finetune.sequences import Example  # noqa: E402
from hotloop.optimizations.compiling.trainer import compile_model  # noqa: E402
from hotloop.probe.compile_watch import num_graphs  # noqa: E402
from hotloop.train import loop  # noqa: E402

pytestmark = [
    *ON_A_GPU,
    pytest.mark.filterwarnings(
        "ignore"
    ),  # of transformers and peft, which are others on such a machine
]
SAME = {"atol": 1e-5, "rtol": 1e-5}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """And fp32 in fp32, whatever ran in this process before."""
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def moved(inputs: Any) -> list[torch.Tensor]:
    return [each.to(DEVICE) for each in inputs]


# Documents beside each other in a row


LENGTHS = [17, 3, 128, 40, 1, 9, 64, 25, 100, 2]


def texts(seed: int = 2) -> list[np.ndarray]:
    draw = np.random.default_rng(seed)
    return [draw.integers(5, 128, length).astype(np.int32) for length in LENGTHS]


def encoder(kind: str, task: str = "SequenceClassification") -> Any:
    torch.manual_seed(1)
    settings = encoders.config(kind)
    settings.num_labels = 3
    made = getattr(transformers, f"AutoModelFor{task}").from_config(settings)
    return made.eval().to(DEVICE)


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "electra"])
@pytest.mark.parametrize("reads", ["first", "each"])
def test_a_text_packed_with_others_has_the_logits_and_gradients_that_it_has_alone(
    kind: str, reads: str
) -> None:
    task = "SequenceClassification" if reads == "first" else "TokenClassification"
    model, tokens = encoder(kind, task), texts()
    named = {"head": Entities(("A",))} if reads == "each" else {}
    assert why_not_packed(model, tokens[:4], **named) is None  # also where it is on its device
    classifier = Classifier(model, packed=True, pad_id=0, **named)
    order, inputs = classifier.arranged(tokens)
    found = classifier.logits(*moved(inputs))
    torch.manual_seed(3)
    weights = (torch.randn(found.shape) / len(found) ** 0.5).to(DEVICE)
    (found * weights).sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    begin = 0
    for index in order:
        ids = torch.from_numpy(tokens[index].astype(np.int64))[None].to(DEVICE)
        alone = model(input_ids=ids).logits
        alone = alone if reads == "first" else alone[0]
        own = slice(begin, begin + len(alone))
        torch.testing.assert_close(found[own], alone, **SAME)
        (alone * weights[own]).sum().backward()
        begin += len(alone)
    assert begin == len(found)
    for name, p in model.named_parameters():
        if p.grad is not None:
            torch.testing.assert_close(gradients[name], p.grad, atol=5e-5, rtol=1e-4, msg=name)


def test_other_texts_of_a_row_change_no_bit_of_one_in_bf16() -> None:
    """The strictest form of it, whatever the arithmetic: only the others are replaced."""
    model = encoder("bert")
    classifier = Classifier(model, packed=True, pad_id=0)
    found = []
    for seed in (2, 5):
        tokens = texts(seed)
        tokens[3] = texts(2)[3]
        order, inputs = classifier.arranged(tokens)
        with torch.autocast(DEVICE, torch.bfloat16), torch.no_grad():
            found.append(classifier.logits(*moved(inputs))[order.index(3)])
    assert torch.equal(*found)


def answers(seed: int = 2) -> list[Example]:
    draw = np.random.default_rng(seed)
    return [
        Example(draw.integers(0, 328, n).astype(np.int32), np.arange(n) >= max(1, n // 2))
        for n in (17, 3, 120, 40, 2, 9, 64, 25, 100)
    ]


def decoder(kind: str) -> Any:
    made = decoders.model_of(kind)
    for (
        module
    ) in made.modules():  # GPT-2 has dropout in its attention, which the kernel leaves to others
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return made.eval().to(DEVICE)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "pythia", "mistral"])
def test_an_answer_packed_with_others_has_the_logits_and_gradients_that_it_has_alone(
    kind: str,
) -> None:
    model, batch = decoder(kind), answers()
    learner = CausalLearner(model, packed=True, longest=160)
    targets, *inputs = learner.arranged(batch)
    found = learner.logits(*moved(inputs))
    torch.manual_seed(3)
    weights = (torch.randn(found.shape) / len(found) ** 0.5).to(DEVICE)
    (found * weights).sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    begin = 0
    for each in batch:
        ids = torch.from_numpy(each.ids[:-1].astype(np.int64))[None].to(DEVICE)
        where = np.flatnonzero(each.learned[1:])
        alone = model(input_ids=ids, use_cache=False).logits[0, where]
        own = slice(begin, begin + len(where))
        torch.testing.assert_close(found[own], alone, **SAME)
        (alone * weights[own]).sum().backward()
        begin += len(where)
    assert begin == len(targets)
    for name, p in model.named_parameters():
        torch.testing.assert_close(gradients[name], p.grad, atol=5e-5, rtol=1e-4, msg=name)


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_compiled_once_layers_have_the_logits_and_gradients_of_rows_of_any_length(
    kind: str,
) -> None:
    learner: Any
    if kind == "bert":
        learner = Classifier(encoder(kind), packed=True, pad_id=0)
        rows = [learner.arranged(part)[1] for part in (texts(), texts()[:5], texts()[6:7])]
    else:
        learner = CausalLearner(decoder(kind), packed=True, longest=160)
        rows = [learner.arranged(part)[1:] for part in (answers(), answers()[:5], answers()[6:7])]

    def found() -> Iterator[list[torch.Tensor]]:
        for inputs in rows:
            learner.zero_grad()
            logits = learner.logits(*moved(inputs))
            logits.square().mean().backward()
            yield [logits.detach(), *(p.grad for p in learner.parameters() if p.grad is not None)]

    wanted = list(found())
    compile_model(learner, True)
    before = num_graphs()
    for own, theirs in zip(found(), wanted, strict=True):
        for a, b in zip(own, theirs, strict=True):
            torch.testing.assert_close(a, b, atol=5e-5, rtol=1e-4)
    assert num_graphs() == before + 1


@pytest.mark.parametrize("kind", ["gpt2", "llama", "mistral"])
def test_in_bf16_other_answers_of_a_row_change_nothing_and_it_is_about_what_it_is_alone(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU by the kernel of variable lengths, also where rotary positions make queries fp32."""
    taken: list[bool] = []
    real = packed_attention.has_varlen

    def noted(*given: Any) -> bool:
        taken.append(real(*given))
        return taken[-1]

    monkeypatch.setattr(packed_attention, "has_varlen", noted)
    model, found = decoder(kind), []
    learner = CausalLearner(model, packed=True, longest=160)
    for seed in (2, 5):
        batch = answers(seed)
        batch[3] = answers(2)[3]
        _, *inputs = learner.arranged(batch)
        counts = [each.num_targets for each in batch]
        with torch.autocast(DEVICE, torch.bfloat16):
            logits = learner.logits(*moved(inputs))
        found.append(logits[sum(counts[:3]) : sum(counts[:4])])
        model.zero_grad()
        logits.float().square().mean().backward()
        assert all(torch.isfinite(p.grad).all() for p in model.parameters())
    assert set(taken) == {DEVICE == "cuda"}
    assert torch.equal(*found)
    each = answers(2)[3]
    ids = torch.from_numpy(each.ids[:-1].astype(np.int64))[None].to(DEVICE)
    with torch.no_grad():
        alone = model(input_ids=ids, use_cache=False).logits[0, np.flatnonzero(each.learned[1:])]
    torch.testing.assert_close(found[0].float(), alone, atol=3e-2, rtol=3e-2)


# Whole trainings


def job(tmp_path: Path, task: str, *more: str, kind: str | None = None) -> list[str]:
    causal = task in ("instructions", "text")
    if causal:
        model = decoders.save_decoder(kind or "llama", tmp_path / "base")
        data = decoders.write_prompts(tmp_path / "asked.jsonl", 48)
    else:
        model = encoders.save_encoder(kind or "bert", tmp_path / "base")
        data = (
            encoders.write_csv(tmp_path / "tweets.csv", 80)
            if task == "classification"
            else encoders.write_conll(tmp_path / "places.conll", 80)
        )
    words = ["train", "--task", task, "--data", str(data), "--model", str(model)]
    words += ["train.microbatch=8", "train.epochs=2", "logging.tensorboard=false", "optimizer.learning_rate=2e-3"]  # fmt: skip
    return [*words, *more]


def losses(words: list[str], out: Path, *more: str) -> list[float]:
    assert run_here([*words, *more, "--out", str(out)]) == 0
    found = [record.loss for record in read_steps(out / "steps.jsonl")]
    return [loss for loss in found if loss is not None]


def without_dropout(tmp_path: Path) -> None:
    path = tmp_path / "base" / "config.json"
    config = json.loads(path.read_text())
    config |= {k: 0.0 for k in config if "drop" in k and isinstance(config[k], float)}
    path.write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("task", "kind"),
    [
        ("classification", "bert"),
        ("classification", "gpt2"),  # cannot be packed: padded in buckets
        ("entities", "bert"),
        ("entities", "distilbert"),
        ("instructions", "llama"),
        ("instructions", "gpt2"),
        ("instructions", "bloom"),  # cannot be packed
    ],
)
def test_a_gpu_trains_to_the_losses_of_the_cpu(tmp_path: Path, task: str, kind: str) -> None:
    words = job(tmp_path, task, kind=kind)
    without_dropout(tmp_path)
    wanted = losses(words, tmp_path / "cpu", "train.device=cpu", "train.precision=fp32")
    found = losses(words, tmp_path / "gpu", f"train.device={DEVICE}", "train.precision=fp32")
    assert found[0] == pytest.approx(wanted[0], rel=1e-5)
    assert found == pytest.approx(wanted, rel=1e-2)
    half = losses(words, tmp_path / "half", f"train.device={DEVICE}", "train.precision=bf16")
    assert half == pytest.approx(wanted, rel=0.1)
    assert half != found
    assert (tmp_path / "gpu/model/model.safetensors").is_file()
    if task != "instructions":
        scores = [json.loads((tmp_path / name / "task.json").read_text()) for name in ("cpu", "gpu")]  # fmt: skip
        assert scores[0]["accuracy"] == pytest.approx(scores[1]["accuracy"], abs=0.15)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_with_class_weights_it_trains(tmp_path: Path, precision: str) -> None:
    named = (f"train.device={DEVICE}", f"train.precision={precision}")
    words = job(tmp_path, "classification", "train.class_weights=balanced", *named)
    weighted = losses(words, tmp_path / "weighted")
    assert weighted[-1] < weighted[0]


@pytest.mark.parametrize(
    ("task", "kind", "precision"),
    [
        ("classification", "bert", "fp32"),
        ("classification", "bert", "bf16"),
        ("entities", "bert", "bf16"),
        ("instructions", "llama", "bf16"),
    ],
)
def test_a_step_has_no_implicit_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, kind: str, precision: str
) -> None:
    """After the first step; the model is evaluated and saved only at the end, where waits are meant to be."""
    words = job(tmp_path, task, "train.class_weights=balanced" if task == "classification" else "train.seed=1", kind=kind)  # fmt: skip
    made = []
    real = loop.gradients

    def strict(run: Any, *rest: Any) -> Any:
        made.append(1)
        if DEVICE == "cuda" and len(made) > 1:
            torch.cuda.set_sync_debug_mode("error")
        try:
            return real(run, *rest)
        finally:
            if DEVICE == "cuda":
                torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(loop, "gradients", strict)
    losses(words, tmp_path / "run", f"train.device={DEVICE}", f"train.precision={precision}", "train.epochs=1")  # fmt: skip
    assert len(made) > 4


def test_a_run_that_was_cut_continues_to_the_same_bits(tmp_path: Path) -> None:
    """With dropout, whose numbers the GPU draws."""
    words = job(tmp_path, "classification", f"train.device={DEVICE}", "train.precision=bf16", "checkpoint.every_steps=4")  # fmt: skip
    whole = losses(words, tmp_path / "whole")
    if losses(words, tmp_path / "cut") != whole:
        pytest.skip("kernels of this device do not repeat themselves")
    newest = sorted((tmp_path / "cut/checkpoints").glob("step-*"))[-1]
    (newest / "manifest.json").unlink()  # as if killed before its end
    assert losses(words, tmp_path / "cut") == whole
    for name in ("whole", "cut"):
        assert (tmp_path / name / "model/model.safetensors").is_file()
    assert (tmp_path / "cut/model/model.safetensors").read_bytes() == (
        tmp_path / "whole/model/model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_an_adapter_is_trained_exported_and_merged(tmp_path: Path, precision: str) -> None:
    pytest.importorskip("peft")
    words = job(tmp_path, "instructions", "model.lora.rank=4", "model.lora.merge=true")
    named = (f"train.device={DEVICE}", f"train.precision={precision}")
    if DEVICE == "cpu" and precision == "tf32":
        pytest.skip("a GPU's type")
    found = losses(words, tmp_path / "run", *named, "optimizer.learning_rate=1e-2")
    assert found[-1] < found[0]
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "run/merged")
    ids = torch.arange(3, 30)[None]
    with torch.no_grad():
        assert (merged(ids).logits - base(ids).logits).abs().max() > 1e-3


def test_4bit_without_its_package_is_one_clear_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("peft")
    words = job(tmp_path, "instructions", "model.lora.rank=4", "model.lora.quantize=4bit", f"train.device={DEVICE}")  # fmt: skip
    try:
        import bitsandbytes  # noqa: F401
    except ImportError:
        assert run_here([*words, "--out", str(tmp_path / "run")]) == 2
        assert "pip install 'hotloop[lora]' bitsandbytes" in "".join(capfd.readouterr())
    else:
        found = losses(words, tmp_path / "run")
        assert found[-1] < found[0]


# What comes after


def test_compiled_answers_are_the_same(tmp_path: Path) -> None:
    run, said = str(tmp_path / "run"), tmp_path / "said.json"
    losses(job(tmp_path, "instructions", f"train.device={DEVICE}"), tmp_path / "run")
    asked = [word for prompt, _ in decoders.asked(4) for word in ("--prompt", prompt)]
    asked += ["--temperature", "0", "--device", DEVICE, "--json", str(said)]
    found = []
    for how in ([], ["--compile"]):
        assert run_here(["generate", run, *asked, *how]) == 0
        found.append(json.loads(said.read_text())["texts"])
    assert found[0] == found[1]


def test_predictions_of_a_gpu_are_those_of_the_cpu(tmp_path: Path) -> None:
    torch.manual_seed(3)
    rows = [InputRow({}, text) for text, _ in encoders.rows(150)]
    for kind in ("SequenceClassification", "TokenClassification"):
        own = encoders.config("bert")
        own.update({"id2label": {0: "O", 1: "B-A", 2: "I-A"}, "initializer_range": 0.3})
        place = tmp_path / kind
        getattr(transformers, f"AutoModelFor{kind}").from_config(own).save_pretrained(place)
        encoders.tokenizer().save_pretrained(place)
        found = []
        for device in ("cpu", DEVICE):
            predictor = predict.load_predictor(place, torch.device(device), print)
            asked = rows
            if kind == "TokenClassification":
                asked = [InputRow({}, row.text, spans_of(row.text)) for row in rows]
            found.append([each for some in predict.predict([predictor], asked) for each in some])
        for one, other in zip(*found, strict=True):
            if kind == "SequenceClassification":
                assert one["predicted"] == other["predicted"]
                assert list(one["probabilities"].values()) == pytest.approx(list(other["probabilities"].values()), abs=1e-4)  # fmt: skip
            else:
                named = [[(e["label"], e["start"], e["end"]) for e in each["entities"]] for each in (one, other)]  # fmt: skip
                assert named[0] == named[1]


def spans_of(text: str) -> list[tuple[int, int]]:
    found, at = [], 0
    for word in text.split():
        begin = text.index(word, at)
        at = begin + len(word)
        found.append((begin, at))
    return found


@pytest.mark.parametrize("where", ["host", "device"])
def test_a_module_and_examples_of_ones_own_are_fitted(tmp_path: Path, where: str) -> None:
    """Also examples that lie on the GPU already, which cannot be pinned."""
    torch.manual_seed(0)
    x = torch.randn(64, 8, device=DEVICE if where == "device" else "cpu")
    data = [(each, each.sum() * 0.1) for each in x]
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1), torch.nn.Flatten(0))  # fmt: skip
    if where == "device":
        model.to(DEVICE)
    named = {"train.device": DEVICE, "optimizer.learning_rate": 1e-2, "logging.tensorboard": False}
    fitted = hotloop.fit(
        model, data[:48], validation=data[48:], loss=torch.nn.functional.mse_loss, epochs=6, batch=8,
        out=tmp_path / "run", settings=named,
    )  # fmt: skip
    assert fitted.held_out_loss is not None
    assert fitted.held_out_loss < 0.1
    assert {p.device.type for p in model.parameters()} == {DEVICE}


class Drawn:
    """Random examples, of which one ends the training once."""

    left = 0

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        Drawn.left -= 1
        if Drawn.left == 0:
            raise KeyboardInterrupt
        x = torch.rand(8)
        return x, x.sum()


def test_random_examples_are_drawn_again_from_a_checkpoint(tmp_path: Path) -> None:
    named = {"train.device": DEVICE, "logging.tensorboard": False, "checkpoint.every_steps": 2, "checkpoint.background": False}  # fmt: skip

    def fit(out: Path) -> torch.nn.Module:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 1), torch.nn.Flatten(0))
        hotloop.fit(model, Drawn(), loss=torch.nn.functional.mse_loss, batch=8, out=out, settings=named)  # fmt: skip
        return model

    whole = fit(tmp_path / "whole")
    Drawn.left = 140  # in step 10 of 18
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "cut")
    assert torch.equal(fit(tmp_path / "cut")[0].weight, whole[0].weight)
