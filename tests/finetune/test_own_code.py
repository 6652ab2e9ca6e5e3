"""A model that brings its own code: refused unless asked for, and then trained, exported, and loaded again."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from decoders import save_decoder, write_prompts
from encoders import save_encoder, write_csv
from transformers import dynamic_module_utils

Run = Callable[..., str]
QUIET = ["train.epochs=1", "logging.tensorboard=false"]
CONFIG = """
from transformers import {base}Config

class OwnConfig({base}Config):
    model_type = "own"
"""
MODEL = """
import os
from pathlib import Path
from transformers import {base}{task}
from .configuration_own import OwnConfig

Path(os.environ["OWN_CODE_RAN"]).touch()

class Own{task}({base}{task}):
    config_class = OwnConfig
"""


def with_own_code(place: Path, base: str, task: str) -> Path:
    (place / "configuration_own.py").write_text(CONFIG.format(base=base))
    (place / "modeling_own.py").write_text(MODEL.format(base=base, task=task))
    config = json.loads((place / "config.json").read_text())
    code = {"AutoConfig": "configuration_own.OwnConfig", f"AutoModel{task}": f"modeling_own.Own{task}"}  # fmt: skip
    config |= {"model_type": "own", "architectures": [f"Own{task}"], "auto_map": code}
    (place / "config.json").write_text(json.dumps(config))
    return place


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that the code makes where it runs."""
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OWN_CODE_RAN", str(tmp_path / "ran"))
    # transformers runs copies of it, which are to be found by nobody else.
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path / "ran"
    for name in [each for each in sys.modules if each.startswith("transformers_modules")]:
        del sys.modules[name]


def refused(run: Run, words: list[str], ran: Path) -> None:
    ran.unlink(missing_ok=True)
    said = run(words, code=2)
    assert "brings Python code of its own" in said
    assert "`model.trust_remote_code=true`" in said
    assert "--trust-remote-code" in said
    assert not ran.exists()


@pytest.mark.parametrize("lora", [[], ["model.lora.rank=2", "model.lora.merge=true"]])
def test_code_of_an_encoder_runs_only_where_it_is_asked_for(
    lora: list[str], tmp_path: Path, run: Run, ran: Path
) -> None:
    place = save_encoder("bert", tmp_path / "own")
    with_own_code(place, "Bert", "ForSequenceClassification")
    words = ["train", "--task", "sentiment", "--data", str(write_csv(tmp_path / "a.csv")), *QUIET]
    words += ["--model", str(place), "--out", str(tmp_path / "run")]
    refused(run, words, ran)
    trusted = [*words, "model.trust_remote_code=true", *lora]
    assert "accuracy" in run(trusted)
    assert ran.exists()
    assert (tmp_path / f"run/{'merged' if lora else 'model'}/modeling_own.py").is_file()
    # The run says that it was trusted. So may that of a stranger.
    asked = ["predict", str(tmp_path / "run"), "--text", "a great film"]
    refused(run, asked, ran)
    assert '"predicted"' in run([*asked, "--trust-remote-code"])
    assert ran.exists() or lora  # whose code is that of the first directory, and imported already
    (place / "model.safetensors").rename(place / "pytorch_model.bin")
    for each in (words, trusted):
        assert "pytorch_model.bin, a pickle" in run(each, code=2)


def test_code_of_a_decoder_runs_only_where_it_is_asked_for(
    tmp_path: Path, run: Run, ran: Path
) -> None:
    place = with_own_code(save_decoder("llama", tmp_path / "own"), "Llama", "ForCausalLM")
    words = ["train", "--task", "instructions", "--data", str(write_prompts(tmp_path / "a.jsonl"))]
    words += ["--model", str(place), "--out", str(tmp_path / "run"), *QUIET]
    refused(run, words, ran)
    trusted = [*words, "model.trust_remote_code=true", "model.lora.rank=2"]
    asked = ["generate", str(tmp_path / "run"), "--prompt", "what is", "--tokens", "2"]
    for more in ([], ["model.lora.merge=true"]):  # an adapter beside the model, and in its weights
        assert "perplexity" in run([*trusted, *more])
        assert ran.exists()
        refused(run, asked, ran)
        assert "what is" in run([*asked, "--trust-remote-code"])
