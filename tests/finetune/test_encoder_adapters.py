"""`model.lora`: an adapter beside the weights of an encoder, with its head, as peft and transformers compute it."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from encoders import config, rows, tagged, tokenizer, write_conll, write_csv
from safetensors.torch import load_file

from hotloop.core.finetune_config import FinetuneConfig
from hotloop.core.settings import load_settings
from hotloop.core.step import read_steps
from hotloop.finetune.work import chosen_in

peft = pytest.importorskip("peft", reason="adapters need peft: pip install 'hotloop[lora]'")

pytestmark = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing`:FutureWarning"
)  # peft asks
Run = Callable[..., str]
FAST = ["logging.tensorboard=false", "train.precision=fp32", "optimizer.learning_rate=1e-2"]
RANK = "model.lora.rank=4"
NO_DROPOUT = {
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "seq_classif_dropout": 0.0,
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))


def save(kind: str, directory: Path) -> Path:
    """Without a head and without dropout."""
    torch.manual_seed(0)
    settings = config(kind)
    vars(settings).update({n: 0.0 for n in NO_DROPOUT if hasattr(settings, n)})
    transformers.AutoModel.from_config(settings).save_pretrained(directory)
    tokenizer().save_pretrained(directory)
    return directory


def job(base: Path, data: Path, task: str = "classification") -> list[str]:
    words = ["train", "--task", task, "--data", str(data), "--model", str(base)]
    return [*words, *FAST, RANK, "--out"]


def losses(run: Path) -> list[float | None]:
    return [step.loss for step in read_steps(run / "steps.jsonl")]


def write_stars(path: Path) -> Path:
    value = {"bad": -1.0, "so-so": 0.0, "good": 1.5}
    lines = [json.dumps({"text": text, "label": value[label]}) for text, label in rows()]
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize(
    ("kind", "whole"),
    [
        ("bert", ["classifier"]),
        ("roberta", ["classifier"]),
        ("electra", ["classifier"]),
        ("distilbert", ["pre_classifier", "classifier"]),
    ],
)
def test_losses_are_those_of_a_plain_loop_of_peft_in_every_layout(
    kind: str, whole: list[str], tmp_path: Path, run: Run
) -> None:
    base, data = save(kind, tmp_path / kind), write_csv(tmp_path / "a.csv")
    words = job(base, data)
    same = ["train.steps=12", "train.clip_norm=null", "schedule.name=constant", "data.held_out=0"]
    for layout in ("true", "buckets", "false"):
        run([*words, str(tmp_path / layout), *same, f"model.packed={layout}"])
    found = losses(tmp_path / "true")

    torch.manual_seed(0)
    read = transformers.AutoModelForSequenceClassification.from_pretrained
    lora = peft.LoraConfig(r=4, lora_alpha=16.0, target_modules="all-linear", modules_to_save=whole, task_type="SEQ_CLS")  # fmt: skip
    model = peft.get_peft_model(read(base, num_labels=3), lora).train()
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], 1e-2, weight_decay=0
    )
    settings = load_settings(tmp_path / "true/config.yaml", kind=FinetuneConfig).config
    texts, wanted, own = rows(), [], tokenizer()
    for step in range(12):
        chosen = [texts[index] for index in chosen_in(step, settings, 0, len(texts))]
        given = own([text for text, _ in chosen], padding=True, truncation=True, max_length=128, return_tensors="pt", return_token_type_ids=False)  # fmt: skip
        labels = torch.tensor([["bad", "good", "so-so"].index(label) for _, label in chosen])
        loss = model(**given, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        wanted.append(loss.item())
    assert found == pytest.approx(wanted, abs=1e-5)
    for layout in ("buckets", "false"):
        assert losses(tmp_path / layout) == pytest.approx(found, abs=1e-5)


def logits_of(model: Any, text: str) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(**tokenizer()(text, return_tensors="pt", return_token_type_ids=False)).logits  # fmt: skip
    return found


def with_adapter(base: Path, directory: Path, auto: str) -> Any:
    labels = transformers.AutoConfig.from_pretrained(directory)
    model = getattr(transformers, auto).from_pretrained(base, config=labels)
    return peft.PeftModel.from_pretrained(model, str(directory))


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_it_resumes_to_the_same_bits_predicts_and_loads_in_peft_and_merged(
    kind: str, tmp_path: Path, run: Run
) -> None:
    base, data = save(kind, tmp_path / kind), write_csv(tmp_path / "a.csv")
    words = job(base, data)
    said = run([*words, str(tmp_path / "whole"), "train.steps=30", "eval.every_steps=10"])
    assert "weights of an adapter and the head are trained, beside" in said
    run([*words, str(tmp_path / "cut"), "train.steps=20", "eval.every_steps=10", "schedule.name=constant"])  # fmt: skip
    run([*words, str(tmp_path / "cut"), "train.steps=30", "eval.every_steps=10", "schedule.name=constant"])  # fmt: skip
    run([*words, str(tmp_path / "again"), "train.steps=30", "eval.every_steps=10", "schedule.name=constant"])  # fmt: skip
    for name in ("model/adapter_model.safetensors", "evals.jsonl"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    stored = load_file(next((tmp_path / "cut/checkpoints").glob("*/model.safetensors")))
    assert all(".lora_" in name or "classifier" in name for name in stored)
    assert json.loads((tmp_path / "cut/task.json").read_text())["accuracy"] > 0.5

    text, own = "the film was superb and lovely", tmp_path / "cut/model"
    run([*words, str(tmp_path / "cut"), "train.steps=30", "eval.every_steps=10", "schedule.name=constant", "model.lora.merge=true"])  # fmt: skip
    adapted = logits_of(with_adapter(base, own, "AutoModelForSequenceClassification"), text)
    read = transformers.AutoModelForSequenceClassification.from_pretrained
    merged = read(tmp_path / "cut/merged")
    assert merged.config.id2label == {0: "bad", 1: "good", 2: "so-so"}
    torch.testing.assert_close(logits_of(merged, text), adapted, atol=1e-5, rtol=1e-5)
    given = [(tmp_path / "cut"), own, (tmp_path / "cut/merged")]
    for place in given:
        out = tmp_path / "out.jsonl"
        (tmp_path / "in.txt").write_text(text + "\n")
        run(["predict", str(place), str(tmp_path / "in.txt"), "--out", str(out)])
        chances = json.loads(out.read_text())["probabilities"].values()
        assert [*chances] == pytest.approx(adapted.softmax(1)[0].tolist(), abs=1e-5)
        out.unlink()
    plain = ["train", "--task", "sentiment", "--data", str(data), "--model", str(own)]
    assert "this is an adapter, and no whole model" in run(plain, code=2)


@pytest.mark.parametrize("task", ["regression", "tokens", "multilabel"])
def test_every_head_is_trained_beside_an_adapter(task: str, tmp_path: Path, run: Run) -> None:
    base, more = save("bert", tmp_path / "bert"), list[str]()
    if task == "tokens":
        data = write_conll(tmp_path / "a.conll")
    elif task == "regression":
        data = write_stars(tmp_path / "a.jsonl")
    else:
        data, more = tmp_path / "a.csv", ["data.label=[bad, good]"]
        with data.open("w", newline="") as file:
            csv.writer(file).writerows([("text", "bad", "good"), *((text, int(label == "bad"), int(label == "good")) for text, label in rows())])  # fmt: skip
    run([*job(base, data, task), str(tmp_path / "run"), "train.epochs=12", "model.lora.merge=true", *more])  # fmt: skip
    scores = json.loads((tmp_path / "run/task.json").read_text())
    assert scores[{"regression": "r2", "tokens": "f1", "multilabel": "micro_f1"}[task]] > 0.4
    out = tmp_path / "out.jsonl"
    for place in ("run", "run/merged"):
        said = run(["predict", str(tmp_path / place), "--text", "great superb film", "--out", str(out)])  # fmt: skip
        assert said
    assert out.read_text()


def test_two_heads_share_one_adapter(tmp_path: Path, run: Run) -> None:
    base, data = save("bert", tmp_path / "bert"), tmp_path / "a.jsonl"
    lines = [
        {"words": words, "tags": tags, "label": "place" if "B-PLACE" in tags else "none at all"}
        for words, tags in tagged()
    ]
    data.write_text("\n".join(map(json.dumps, lines)))
    words = job(base, data, "classification+tokens")
    run([*words, str(tmp_path / "run"), "train.epochs=4", "model.lora.merge=true"])
    run([*words, str(tmp_path / "padded"), "train.epochs=4", "model.packed=false"])
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "padded"), abs=1e-4)
    weights = [load_file(tmp_path / f"run/{name}/adapter_model.safetensors") for name in ("model", "model-entities")]  # fmt: skip
    shared = {n for n in weights[0] if ".lora_" in n and "pooler" not in n}
    assert shared == {n for n in weights[1] if ".lora_" in n}
    for name in shared:
        assert torch.equal(weights[0][name], weights[1][name])
    text = "the great superb film"
    for name, auto in (("", "AutoModelForSequenceClassification"), ("-entities", "AutoModelForTokenClassification")):  # fmt: skip
        adapted = with_adapter(base, tmp_path / f"run/model{name}", auto)
        merged = getattr(transformers, auto).from_pretrained(tmp_path / f"run/merged{name}")
        torch.testing.assert_close(logits_of(merged, text), logits_of(adapted, text), atol=1e-5, rtol=1e-5)  # fmt: skip
    said = run(["predict", str(tmp_path / "run"), "--text", text])
    assert "entities" in said
    assert "predicted" in said


def test_a_pooler_that_the_directory_has_not_is_trained_and_exported_with_the_head(
    tmp_path: Path, run: Run
) -> None:
    """What is drawn at random has to be in the adapter: it would be drawn otherwise where that is loaded."""
    base, data = tmp_path / "bert", write_csv(tmp_path / "a.csv")
    torch.manual_seed(0)
    transformers.BertModel(config("bert"), add_pooling_layer=False).save_pretrained(base)
    tokenizer().save_pretrained(base)
    said = run([*job(base, data), str(tmp_path / "run"), "train.epochs=1"])
    assert "new, with random weights: bert.pooler.dense, classifier" in said
    weights = load_file(tmp_path / "run/model/adapter_model.safetensors")
    assert {n.split("base_model.model.")[1] for n in weights if ".lora_" not in n} == {
        "bert.pooler.dense.weight",
        "bert.pooler.dense.bias",
        "classifier.weight",
        "classifier.bias",
    }


def test_settings_of_an_adapter_without_a_rank_have_no_effect(tmp_path: Path, run: Run) -> None:
    words = ["train", "--task", "sentiment", "--data", "a.csv", "--model", str(tmp_path)]
    assert "`model.lora.alpha` has no effect" in run([*words, "model.lora.alpha=8"], code=2)
    assert "set `model.lora.rank`" in run([*words, "model.lora.quantize=4bit"], code=2)
