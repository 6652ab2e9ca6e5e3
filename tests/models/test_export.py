"""Exported directories, loaded by `transformers` itself where it is installed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hotloop.core.errors import EnvironmentFailed, UsageError
from hotloop.data.tokenizer import Tokenizer, byte_tokenizer, train_tokenizer
from hotloop.models import export as export_module
from hotloop.models.decoder import Decoder
from hotloop.models.export import ExportDiffers, export, largest_difference
from hotloop.models.shape import DecoderShape

GPT2 = DecoderShape(vocabulary=300, context=32, layers=2, width=32, heads=4)
LLAMA = DecoderShape(
    vocabulary=300, context=32, layers=2, width=32, heads=4, kv_heads=2, hidden=48,
    norm="rmsnorm", positions="rotary", rotary_theta=5e5, mlp="swiglu", bias=False, tied=False,
)  # fmt: skip
SHAPES = {
    "gpt2": GPT2,
    "gpt2 untied, without biases, relu2": replace(GPT2, tied=False, bias=False, mlp="relu2"),
    "gpt2 of another inner width and epsilon": replace(GPT2, hidden=80, norm_epsilon=1e-2),
    "llama": LLAMA,
    "llama tied, with biases, all heads": replace(LLAMA, tied=True, bias=True, kv_heads=4),
    "llama with one key head, another epsilon": replace(LLAMA, kv_heads=1, norm_epsilon=1e-2),
    "llama tied, shared keys": replace(LLAMA, tied=True),
    "llama of one layer and two heads, all of it": replace(LLAMA, layers=1, heads=2, kv_heads=None),
    "gpt2 with padding": replace(GPT2, pad_vocabulary_to=128),
    "llama with padding": replace(LLAMA, pad_vocabulary_to=128),
    "qwen3": replace(LLAMA, qk_norm=True),
    "qwen3 tied, another epsilon": replace(LLAMA, qk_norm=True, tied=True, norm_epsilon=1e-2),
}


def model(shape: DecoderShape) -> Decoder:
    """Random weights so large, biases and norms too, that a wrong place shows in the logits."""
    torch.manual_seed(0)
    decoder = Decoder(shape)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return decoder


def write(decoder: Decoder, directory: Path, tokenizer: Tokenizer | None = None) -> Path:
    tokenizer = tokenizer or byte_tokenizer()
    export(decoder, tokenizer.to_json(), directory, end_of_text=tokenizer.end_of_text)
    return directory


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_transformers_computes_the_same_logits(shape: DecoderShape, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    decoder = model(shape)
    directory = write(decoder, tmp_path / "out")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(directory, local_files_only=True)
    kind = "GPT2LMHeadModel" if shape.positions == "learned" else "LlamaForCausalLM"
    assert type(loaded).__name__ == ("Qwen3ForCausalLM" if shape.qk_norm else kind)
    tokens = torch.randint(0, 300, (3, 32), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        ours, theirs = decoder(tokens), loaded.eval()(tokens).logits
    assert float(ours.std()) > 0.05
    assert float((ours - theirs).abs().max()) < 1e-5
    assert largest_difference(decoder, directory) < 1e-5


def framed(directory: Path, tokenizer: Tokenizer) -> Tokenizer:
    """With special tokens around a text, which no training has."""
    (name,) = [
        name for name, number in tokenizer.library.ids.items() if number == tokenizer.end_of_text
    ]
    around = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": name, "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {name: {"id": name, "ids": [tokenizer.end_of_text], "tokens": [name]}},
    }
    (directory / "framed.json").write_text(
        json.dumps({**json.loads(tokenizer.to_json()), "post_processor": around})
    )
    return Tokenizer.load(directory / "framed.json")


def test_transformers_reads_text_into_the_same_ids(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    texts = ["def loop(self):\n    return  'naïve 日本 🙂', 1234\n\n", " leading", "it's", ""]
    trained = train_tokenizer(texts * 20, 300)
    for kind, shape, tokenizer in (
        ("gpt2", GPT2, trained),
        ("llama", LLAMA, trained),
        ("bytes", LLAMA, byte_tokenizer()),
        ("framed", LLAMA, framed(tmp_path, trained)),
    ):
        directory = write(model(shape), tmp_path / kind, tokenizer)
        loaded = transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True)
        assert loaded.eos_token_id == tokenizer.end_of_text
        for text in texts:
            ids = tokenizer.encode(text)
            assert loaded(text)["input_ids"] == ids
            assert loaded.decode(ids) == text


@pytest.mark.parametrize(
    ("shape", "named"),
    [
        (replace(GPT2, norm="rmsnorm"), ["`model.norm: rmsnorm`"]),
        (
            replace(GPT2, mlp="swiglu", kv_heads=2, qk_norm=True),
            ["`model.mlp: swiglu`", "`model.kv_heads: 2`", "`model.qk_norm: true`"],
        ),
        (
            replace(LLAMA, mlp="relu2", qk_norm=True, bias=True),
            ["`model.mlp: relu2`", "`model.bias: true`"],
        ),
        (replace(LLAMA, value_embeddings=True), ["`model.value_embeddings: true`"]),
        (replace(GPT2, value_embeddings=True), ["`model.value_embeddings: true`"]),
        (replace(LLAMA, norm="layernorm"), ["`model.norm: layernorm`"]),
    ],
)
def test_what_no_class_can_express_is_refused_by_the_name_of_every_setting(
    shape: DecoderShape, named: list[str], tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        write(Decoder(shape), tmp_path / "out")
    assert caught.value.what.count("`model.") == len(named)
    for setting in named:
        assert setting in caught.value.what
    assert list(tmp_path.iterdir()) == []


def test_an_export_that_computes_something_else_is_found_and_not_kept(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    decoder, other = model(LLAMA), model(LLAMA)
    with torch.no_grad():
        other.blocks[1].up.weight[0, 0] += 0.5  # type: ignore[union-attr,index,operator]

    def check(written: Path) -> None:
        largest_difference(other, written)

    tokenizer = byte_tokenizer()
    with pytest.raises(ExportDiffers, match="other logits"):
        export(decoder, tokenizer.to_json(), tmp_path / "out", end_of_text=256, check=check)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("mine")
    for place in (tmp_path, tmp_path / "kept"):
        with pytest.raises(UsageError, match="there is something"):
            write(model(GPT2), place)
    assert (tmp_path / "kept").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    write(model(GPT2), tmp_path / "empty")
    assert (tmp_path / "empty/config.json").is_file()


def test_a_disk_that_refuses_leaves_nothing_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise export_module.safetensors.SafetensorError("I/O error: No space left on device")

    monkeypatch.setattr(export_module.safetensors.torch, "save_file", full)
    with pytest.raises(EnvironmentFailed, match="No space left"):
        write(model(GPT2), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_config_names_the_settings_where_old_and_new_transformers_look(tmp_path: Path) -> None:
    config = json.loads((write(model(LLAMA), tmp_path / "out") / "config.json").read_text())
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 5e5
    assert config["dtype"] == config["torch_dtype"] == "float32"
    assert config["eos_token_id"] == 256
