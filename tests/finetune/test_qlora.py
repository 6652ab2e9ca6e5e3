"""`model.lora.quantize: 4bit`: an adapter beside weights in NF4, on a CPU."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from decoders import asked, config, save_decoder, write_prompts
from encoders import save_encoder, write_csv
from safetensors.torch import load_file

from hotloop.core.causal_config import CausalModel
from hotloop.core.finetune_config import LoraConfig
from hotloop.core.step import read_steps
from hotloop.finetune.adapters import keep_gradients, quantization
from hotloop.finetune.decoder import load_decoder

pytest.importorskip("bitsandbytes", reason="weights in 4 bits need bitsandbytes: pip install 'hotloop[lora]' bitsandbytes")  # fmt: skip
peft = pytest.importorskip("peft", reason="adapters need peft: pip install 'hotloop[lora]'")

Run = Callable[..., str]
CPU = torch.device("cpu")
LORA = LoraConfig(rank=4, quantize="4bit")
pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),  # peft asks
    pytest.mark.filterwarnings("ignore::DeprecationWarning:bitsandbytes.*"),
]


def quantized(base: Path) -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        base, dtype=torch.float32, **quantization(LORA, CPU, "fp32")
    )
    keep_gradients(model)  # without it bitsandbytes fails on layers as narrow as these
    return model


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_adapter_beside_quantized_weights_learns_resumes_and_answers(
    precision: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    base = save_decoder("llama", tmp_path / "llama")
    data = write_prompts(tmp_path / "asked.jsonl")
    job = ["train", "--task", "instructions", "--data", str(data), "--model", str(base)]
    job += ["optimizer.learning_rate=1e-2", "logging.tensorboard=false", "eval.every_steps=8"]
    job += ["model.lora.rank=8", "model.lora.quantize=4bit", f"train.precision={precision}"]
    job += ["schedule.name=constant", "--out"]
    run([*job, str(tmp_path / "whole"), "train.steps=24"])
    run([*job, str(tmp_path / "cut"), "train.steps=16"])
    run([*job, str(tmp_path / "cut"), "train.steps=24"])
    for name in ("model/adapter_model.safetensors", "evals.jsonl"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    stored = load_file(next((tmp_path / "cut/checkpoints").glob("*/model.safetensors")))
    assert stored
    assert all(".lora_" in name for name in stored)
    losses = [step.loss for step in read_steps(tmp_path / "whole/steps.jsonl")]
    assert (losses[-1] or 9) < (losses[0] or 0) - 0.3

    own = transformers.AutoTokenizer.from_pretrained(tmp_path / "whole/model")
    model = peft.PeftModel.from_pretrained(quantized(base), str(tmp_path / "whole/model")).eval()
    prompt, out = asked()[0][0], tmp_path / "said.json"
    ids = own(prompt, return_tensors="pt").input_ids
    made = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False, pad_token_id=0)  # fmt: skip
    words = ["generate", str(tmp_path / "whole"), "--prompt", prompt, "--tokens", "20"]
    run([*words, "--temperature", "0", "--json", str(out)])
    text = json.loads(out.read_text())["text"]
    assert text == own.decode(made[0, ids.shape[1] :]).removesuffix(own.eos_token)

    torch.manual_seed(7)  # another model in its place
    transformers.AutoModelForCausalLM.from_config(config("llama")).save_pretrained(base)
    assert "holds a run" in run([*job, str(tmp_path / "cut"), "train.steps=30"], code=2)


def test_it_is_rehearsed(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    base, data = save_decoder("llama", tmp_path / "llama"), write_prompts(tmp_path / "asked.jsonl")
    job = ["train", "--task", "instructions", "--data", str(data), "--model", str(base)]
    job += ["logging.tensorboard=false", "train.microbatch=4", "model.lora.quantize=4bit"]
    said = run([*job, "model.lora.rank=4", "--profile", "test", "--out", str(tmp_path / "run")])
    assert "resumed from the checkpoint of step 4, to the same bits" in said


def test_gradients_after_an_evaluation_are_those_of_the_same_weights_unquantized(
    tmp_path: Path,
) -> None:
    base, shape = tmp_path / "llama", config("llama")
    shape.hidden_size, shape.intermediate_size = 128, 256  # wide enough to be packed
    shape.head_dim, shape.num_key_value_heads = 32, 4
    transformers.AutoModelForCausalLM.from_config(shape).save_pretrained(base)
    quantized(base).dequantize().save_pretrained(tmp_path / "plain")
    ids = torch.randint(3, 300, (2, 20), generator=torch.Generator().manual_seed(1))
    found: list[dict[str, torch.Tensor]] = []
    weights: dict[str, torch.Tensor] = {}
    for path, lora in ((base, LORA), (tmp_path / "plain", LoraConfig(rank=4))):
        model = load_decoder(CausalModel(path=str(path), lora=lora), CPU, print).model
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        with torch.no_grad():
            for name, weight in trained.items():
                weights.setdefault(name, torch.randn(weight.shape) / 4)
                weight.copy_(weights[name])
            model.eval()(input_ids=ids)
        loss = model.train()(input_ids=ids, labels=ids).loss
        loss.backward()
        found.append({name: p.grad for name, p in trained.items() if p.grad is not None})
    assert len(found[0]) == len(weights) > 20
    for name, gradient in found[0].items():
        torch.testing.assert_close(gradient, found[1][name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_an_encoder_with_quantized_weights_learns_resumes_and_predicts(
    kind: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    base, data = save_encoder(kind, tmp_path / kind), write_csv(tmp_path / "a.csv")
    job = ["train", "--task", "sentiment", "--data", str(data), "--model", str(base)]
    job += ["optimizer.learning_rate=1e-2", "logging.tensorboard=false", "eval.every_steps=10"]
    job += ["model.lora.rank=8", "model.lora.quantize=4bit", "schedule.name=constant", "--out"]
    run([*job, str(tmp_path / "whole"), "train.steps=60"])
    run([*job, str(tmp_path / "cut"), "train.steps=40"])
    run([*job, str(tmp_path / "cut"), "train.steps=60"])
    for name in ("model/adapter_model.safetensors", "evals.jsonl"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    stored = load_file(next((tmp_path / "cut/checkpoints").glob("*/model.safetensors")))
    assert all(".lora_" in name or "classifier" in name for name in stored)
    assert json.loads((tmp_path / "whole/task.json").read_text())["accuracy"] >= 0.5

    text, out = "the film was superb and lovely", tmp_path / "said.jsonl"
    labels = transformers.AutoConfig.from_pretrained(tmp_path / "whole/model")
    skipped = quantization(LORA, CPU, "fp32", ["classifier", "pre_classifier"])
    model = transformers.AutoModelForSequenceClassification.from_pretrained(base, config=labels, **skipped)  # fmt: skip
    keep_gradients(model)
    model = peft.PeftModel.from_pretrained(model, str(tmp_path / "whole/model")).eval()
    own = transformers.AutoTokenizer.from_pretrained(tmp_path / "whole/model")
    with torch.no_grad():
        wanted = model(own(text, return_tensors="pt").input_ids).logits.softmax(1)[0]
    (tmp_path / "in.txt").write_text(text + "\n")
    run(["predict", str(tmp_path / "whole"), str(tmp_path / "in.txt"), "--out", str(out)])
    found = json.loads(out.read_text())["probabilities"].values()
    assert [*found] == pytest.approx(wanted.tolist(), abs=1e-5)
