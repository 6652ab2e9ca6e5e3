from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from hotloop.core.errors import UsageError
from hotloop.data.tokenizer import byte_tokenizer
from hotloop.models.decoder import Decoder
from hotloop.models.export import export
from hotloop.models.import_hf import load_hf_weights
from hotloop.models.shape import DecoderShape

GPT2 = DecoderShape(vocabulary=300, context=32, layers=2, width=32, heads=4)
LLAMA = DecoderShape(
    vocabulary=300, context=32, layers=2, width=32, heads=4, kv_heads=2, hidden=48,
    norm="rmsnorm", positions="rotary", rotary_theta=5e5, mlp="swiglu", bias=False, tied=False,
)  # fmt: skip


def model(shape: DecoderShape, seed: int = 0) -> Decoder:
    torch.manual_seed(seed)
    decoder = Decoder(shape)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return decoder


def written(decoder: Decoder, directory: Path) -> Path:
    export(decoder, byte_tokenizer().to_json(), directory, end_of_text=256)
    return directory


@pytest.mark.parametrize(
    "shape",
    [
        *(GPT2, replace(GPT2, tied=False)),
        *(LLAMA, replace(LLAMA, bias=True), replace(LLAMA, qk_norm=True, tied=True)),
    ],
)
def test_what_was_exported_is_imported_bit_by_bit(shape: DecoderShape, tmp_path: Path) -> None:
    there, back = model(shape), model(shape, seed=1)
    load_hf_weights(back, written(there, tmp_path / "out"))
    for a, b in zip(there.parameters(), back.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("shape", [GPT2, LLAMA])
@pytest.mark.parametrize("padded", ["there", "back"])
def test_padding_of_the_vocabulary_is_left_away(
    shape: DecoderShape, padded: str, tmp_path: Path
) -> None:
    shapes = {"there": shape, "back": shape}
    shapes[padded] = replace(shape, pad_vocabulary_to=128)
    there, back = model(shapes["there"]), model(shapes["back"], seed=1)
    load_hf_weights(back, written(there, tmp_path / "out"))
    assert json.loads((tmp_path / "out/config.json").read_text())["vocab_size"] == 300
    tokens = torch.randint(0, 300, (2, 8))
    torch.testing.assert_close(back(tokens), there(tokens))


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen3"])
def test_what_transformers_saves_is_imported_with_its_logits(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if kind == "gpt2":
        theirs = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=300, n_positions=64, n_embd=32, n_layer=2, n_head=4, initializer_range=0.2,
                bos_token_id=256, eos_token_id=256,
            )
        )  # fmt: skip
        shape = GPT2  # of a shorter context
    else:
        name = {"llama": "Llama", "qwen3": "Qwen3"}[kind]
        theirs = getattr(transformers, f"{name}ForCausalLM")(
            getattr(transformers, f"{name}Config")(
                head_dim=8, vocab_size=300, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                initializer_range=0.2, rope_parameters={"rope_type": "default", "rope_theta": 5e5},
                rope_theta=5e5,  # as transformers before 5 takes it
            )
        )  # fmt: skip
        shape = replace(LLAMA, norm_epsilon=1e-6, qk_norm=kind == "qwen3")
    theirs.eval().save_pretrained(tmp_path / "out", max_shard_size="20KB")
    assert (tmp_path / "out/model.safetensors.index.json").is_file()
    ours = model(shape)
    load_hf_weights(ours, tmp_path / "out")
    tokens = torch.randint(0, 300, (2, 32))
    with torch.no_grad():
        difference = (ours(tokens) - theirs(tokens).logits).abs().max()
    assert float(difference) < 1e-5


def test_every_setting_that_differs_is_named_with_both_values(tmp_path: Path) -> None:
    directory = written(model(LLAMA), tmp_path / "out")
    other = replace(LLAMA, layers=1, kv_heads=4, rotary_theta=1e4, context=64)
    with pytest.raises(UsageError) as caught:
        load_hf_weights(Decoder(other), directory)
    for words in (
        "`model.layers: 2` (here 1)",
        "`model.kv_heads: 2` (here 4)",
        "`model.rotary_theta: 500000.0` (here 10000.0)",
        "`model.context: 32` (here 64)",
    ):
        assert words in caught.value.what
    assert caught.value.what.count("`model.") == 4
    with pytest.raises(UsageError, match=r"`model.value_embeddings: false` \(here true\)"):
        load_hf_weights(Decoder(replace(LLAMA, value_embeddings=True)), directory)
    with pytest.raises(UsageError, match=r"`model.positions: \"rotary\"` \(here \"learned\"\)"):
        load_hf_weights(Decoder(GPT2), directory)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "qwen2"}, "'qwen2'"),
        ({"model_type": "qwen3"}, r"`model.qk_norm: true` \(here false\)"),
        ({"model_type": "qwen3", "head_dim": None}, "head_dim"),
        ({"model_type": "qwen3", "use_sliding_window": True}, "use_sliding_window"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "'llama3'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2}}, "'linear'"),
        ({"hidden_act": "relu"}, "'relu'"),
        ({"attention_bias": True}, "biases in only one"),
        ({"head_dim": 16}, "head_dim"),
        ({"model_type": "gpt2"}, "lacks"),
    ],
)
def test_what_is_not_known_here_is_refused_by_name(
    changes: dict[str, object], words: str, tmp_path: Path
) -> None:
    directory = written(model(LLAMA), tmp_path / "out")
    config = json.loads((directory / "config.json").read_text()) | changes
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match=words):
        load_hf_weights(Decoder(LLAMA), directory)


def test_damaged_missing_and_surplus_weights_are_clear_errors(tmp_path: Path) -> None:
    directory = written(model(LLAMA), tmp_path / "out")
    file = directory / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    k_proj = "model.layers.0.self_attn.k_proj.weight"
    for tensors_now, words in (
        ({k: v for k, v in tensors.items() if "up_proj" not in k}, "up_proj.weight` is missing"),
        (tensors | {"model.extra.weight": torch.ones(2)}, "unknown weight `extra.weight`"),
        (tensors | {"model.norm.weight": torch.ones(2)}, "config.json says"),
        (tensors | {k_proj: torch.zeros(3)}, "has another shape"),
    ):
        safetensors.torch.save_file(tensors_now, file)
        with pytest.raises(UsageError, match=words):
            load_hf_weights(Decoder(LLAMA), directory)
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(UsageError, match="cannot read the tensors"):
        load_hf_weights(Decoder(LLAMA), directory)
    file.unlink()
    with pytest.raises(UsageError, match=r"no model\.safetensors"):
        load_hf_weights(Decoder(LLAMA), directory)
    with pytest.raises(UsageError, match=r"no config\.json"):
        load_hf_weights(Decoder(LLAMA), tmp_path)


def test_weights_of_the_hub_without_prefix_and_with_old_buffers_are_read(tmp_path: Path) -> None:
    """As in the file of `gpt2` on the hub."""
    there = model(GPT2)
    directory = written(there, tmp_path / "out")
    file = directory / "model.safetensors"
    tensors = {
        name.removeprefix("transformer."): tensor
        for name, tensor in safetensors.torch.load_file(file).items()
    }
    tensors["h.0.attn.bias"] = torch.ones(1, 1, 32, 32)
    safetensors.torch.save_file(tensors, file)
    back = model(GPT2, seed=1)
    load_hf_weights(back, directory)
    assert all(torch.equal(a, b) for a, b in zip(there.parameters(), back.parameters()))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c: json.dumps(c | {"num_attention_heads": 0}), "damaged config.json"),
        (lambda c: json.dumps(c | {"hidden_size": "wide"}), "damaged config.json"),
        (lambda c: json.dumps(c | {"rope_parameters": "x"}), "damaged config.json"),
        (lambda c: "[" * 5000 + "]" * 5000, "cannot read config.json: nested too deeply"),
        (lambda c: "[]", "cannot read config.json: not an object"),
        (
            lambda c: json.dumps(c).replace(": 32", ": " + "9" * 5000, 1),
            "an integer of 5000 digits",
        ),
    ],
)
def test_config_of_another_kind_is_one_clear_error(
    change: Callable[[dict[str, object]], str], says: str, tmp_path: Path
) -> None:
    directory = written(model(LLAMA), tmp_path / "out")
    config = directory / "config.json"
    config.write_text(change(json.loads(config.read_text())))
    with pytest.raises(UsageError, match=says):
        load_hf_weights(model(LLAMA), directory)
