from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import hotloop.optimizations
from hotloop.core.census import Census, LoaderUse
from hotloop.core.config import RunConfig, known_keys
from hotloop.core.errors import UsageError
from hotloop.core.settings import Settings, load_settings
from hotloop.hardware.limits import Machine
from hotloop.optimizations.catalogue import (
    CATALOGUE,
    CONFIGURED,
    changes_batch_rng,
    parity_class_of,
    resolve,
)
from hotloop.optimizations.clipping.trainer import clip_through_optimizer, forget_factor
from hotloop.optimizations.optimization import Optimization

CPU = Machine("cpu", ("bfloat16", "float32"), None, 2)
OLD_CPU = Machine("cpu", ("float32",), "no C++ compiler was found", 2)
GPU = Machine("cuda", ("bfloat16", "float16", "tf32", "float32"), None, 8)


def settings(**train: object) -> Settings:
    return Settings(RunConfig.model_validate({"data": {"source": "x"}, "train": train}))


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_technique_says_what_the_catalogue_asks(name: str) -> None:
    technique = CATALOGUE[name]
    assert technique.name == name
    assert technique.summary
    assert technique.source_form
    assert technique.risks
    assert technique.settings
    assert (technique.live_form is None) == bool(technique.no_live_form)
    assert technique.key or technique.live_form


@pytest.mark.parametrize("name", CONFIGURED)
def test_every_technique_of_the_trainer_has_a_key(name: str) -> None:
    technique = CONFIGURED[name]
    assert technique.key in known_keys()
    assert technique.choose is not None
    assert technique.off not in technique.settings or name == "attention"
    for value in technique.settings:
        settings().config.replaced({technique.key: value})


@pytest.mark.parametrize("machine", [CPU, OLD_CPU, GPU])
def test_resolved_settings_hold_no_auto_and_say_why(machine: Machine) -> None:
    resolved, _ = resolve(settings(), machine)
    flat = resolved.config.flat()
    for technique in CONFIGURED.values():
        assert flat[technique.key] != "auto"
        assert resolved.origin(technique.key).startswith("detected: ")
    assert flat["train.num_threads"] == machine.num_threads


def test_fast_cpu_gets_bf16_and_the_compiler_and_an_old_one_neither() -> None:
    fast, _ = resolve(settings(), CPU)
    assert (fast.config.train.precision, fast.config.train.compile) == ("bf16", True)
    assert fast.config.train.attention == "plain"
    old, notes = resolve(settings(), OLD_CPU)
    assert (old.config.train.precision, old.config.train.compile) == ("fp32", False)
    assert old.config.train.attention == "sdpa"
    assert notes == ("train.compile is off: no C++ compiler was found",)


@pytest.mark.parametrize("how", ["blocks", "max-autotune-no-cudagraphs", "reduce-overhead"])
def test_a_machine_without_compiler_trains_eager_however_it_was_to_compile(how: str) -> None:
    resolved, notes = resolve(settings(compile=how), OLD_CPU)
    assert resolved.config.train.compile is False
    assert notes == ("train.compile is off: no C++ compiler was found",)


@pytest.mark.parametrize("how", ["max-autotune", "reduce-overhead"])
def test_cuda_graphs_are_refused_on_a_cpu_and_where_gradients_are_accumulated(how: str) -> None:
    with pytest.raises(UsageError, match=rf"`train\.compile: {how}` .*a GPU alone has"):
        resolve(settings(compile=how), CPU)
    with pytest.raises(UsageError, match="gradients would be overwritten"):
        resolve(settings(compile=how, grad_accum_steps=2), GPU)
    assert resolve(settings(compile=how), GPU)[0].config.train.compile == how


def test_choosing_among_products_is_a_matter_of_gpus() -> None:
    how = "max-autotune-no-cudagraphs"
    resolved, (note,) = resolve(settings(compile=how, grad_accum_steps=2), CPU)
    assert resolved.config.train.compile == how
    assert "weights that never change" in note
    assert resolve(settings(compile=how, grad_accum_steps=2), GPU)[1] == ()


def test_what_the_user_set_is_kept() -> None:
    resolved, notes = resolve(settings(precision="fp32", compile=False), CPU)
    assert (resolved.config.train.precision, resolved.config.train.compile) == ("fp32", False)
    assert notes == ()


def test_emulated_dtype_is_used_with_a_word_and_tf32_without_a_gpu_refused() -> None:
    resolved, notes = resolve(settings(precision="bf16"), OLD_CPU)
    assert resolved.config.train.precision == "bf16"
    assert any("emulated" in note for note in notes)
    slow = replace(CPU, fast_dtypes=("float32", "bfloat16"))
    assert resolve(settings(), slow)[0].config.train.precision == "fp32"
    resolved, notes = resolve(settings(precision="bf16"), slow)
    assert resolved.config.train.precision == "bf16"
    assert any("slower than float32" in note for note in notes)
    with pytest.raises(UsageError, match="tf32"):
        resolve(settings(precision="tf32"), CPU)


@pytest.mark.parametrize(
    ("text", "overrides", "where"),
    [
        ("", ["train.precision=tf32"], "train.precision=tf32"),
        ("train:\n  precision: tf32\n", [], "{path}:4"),
    ],
)
def test_value_that_cannot_be_had_is_answered_with_its_place(
    text: str, overrides: list[str], where: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"data:\n  source: python-stdlib\n{text}")
    with pytest.raises(UsageError, match=r"`train\.precision: tf32` cannot be used") as caught:
        resolve(load_settings(path, overrides), OLD_CPU)
    assert caught.value.where == where.format(path=path)


def test_strongest_parity_class_counts() -> None:
    flat = resolve(settings(), CPU)[0].config.flat()
    assert parity_class_of(flat) == "reduced_precision"
    assert parity_class_of({**flat, "train.precision": "fp32"}) == "reduction_order"
    off = {**flat, **{o.key: o.off for o in CONFIGURED.values()}}
    assert parity_class_of(off) == "bitwise"


@pytest.mark.parametrize("name", ["compile", "attention", "fused_optimizer", "clipping"])
def test_another_order_of_sums_is_judged_by_the_digits_of_the_products(name: str) -> None:
    technique = CONFIGURED[name]
    flat = resolve(settings(), GPU)[0].config.flat()
    assert technique.parity_class_on({**flat, "train.precision": "fp32"}) == "reduction_order"
    for precision in ("bf16", "fp16", "tf32"):
        on = {**flat, "train.precision": precision}
        assert technique.parity_class_on(on) == "reduced_precision"


def test_class_between_two_configs_is_of_what_differs_alone() -> None:
    flat = resolve(settings(), CPU)[0].config.flat()
    assert flat["train.precision"] == "bf16"
    assert parity_class_of(flat, baseline=flat) == "bitwise"
    eager = {**flat, "train.compile": False}
    assert parity_class_of(flat, baseline=eager) == "reduced_precision"
    assert parity_class_of(eager, baseline=flat) == "reduced_precision"
    fp32, eager_fp32 = ({**c, "train.precision": "fp32"} for c in (flat, eager))
    assert parity_class_of(fp32, baseline=eager_fp32) == "reduction_order"
    assert parity_class_of(fp32, baseline=flat) == "reduced_precision"


@pytest.mark.parametrize(("drawn", "other"), [(True, True), (False, False), (None, False)])
def test_batches_draw_other_numbers_only_where_the_loader_that_trains_draws_any(
    drawn: bool | None, other: bool
) -> None:
    use: dict[str, Any] = dict.fromkeys(LoaderUse.__dataclass_fields__)
    evaluates = LoaderUse(**{**use, "trains": False, "draws_random": True, "num_batches": 9})
    trains = LoaderUse(**{**use, "trains": True, "draws_random": drawn, "num_batches": 9})
    census = Census(loaders=(evaluates, trains))
    threads, workers = CATALOGUE["threads"], CATALOGUE["loader_workers"]
    assert changes_batch_rng([threads, workers], census) == other
    assert not changes_batch_rng([threads, CATALOGUE["prefetch"]], census)
    assert not changes_batch_rng([workers], None)


def test_census_shows_what_was_not_applied() -> None:
    census = Census(
        matmul_dtypes=("float32",),
        compiled=False,
        optimizer="AdamW(default)",
        attention=("sdpa:math",),
    )
    assert CONFIGURED["precision"].observed(census, "bf16") is False
    assert CONFIGURED["compile"].observed(census, True) is False
    assert CONFIGURED["fused_optimizer"].observed(census, True) is False
    assert CONFIGURED["attention"].observed(census, "plain") is False
    assert CONFIGURED["precision"].observed(replace(census, matmul_dtypes=("bfloat16",)), "bf16")
    assert CONFIGURED["precision"].observed(Census(), "bf16") is None


def test_clipping_through_an_optimizer_that_cannot_is_refused() -> None:
    clash = Settings(
        RunConfig.model_validate(
            {"data": {"source": "x"}, "train": {"clip": "fused"}, "optimizer": {"fused": False}}
        )
    )
    with pytest.raises(UsageError, match=r"needs `optimizer\.fused`"):
        resolve(clash, CPU)


@pytest.mark.parametrize("max_norm", [0.01, 100.0])
def test_clipping_through_the_optimizer_is_that_of_clip_grad_norm(max_norm: float) -> None:
    def weights() -> list[torch.nn.Parameter]:
        torch.manual_seed(0)
        made = [torch.nn.Parameter(torch.randn(5, 3)), torch.nn.Parameter(torch.randn(7))]
        for parameter in made:
            parameter.grad = torch.randn_like(parameter)
        return made

    one, other = weights(), weights()
    a = torch.optim.AdamW(one, lr=0.1, eps=1e-2, fused=True)
    b = torch.optim.AdamW(other, lr=0.1, eps=1e-2, fused=True)
    norm_a = torch.nn.utils.clip_grad_norm_(one, max_norm)
    norm_b = clip_through_optimizer(other, b, max_norm)
    a.step()
    b.step()
    forget_factor(b)
    assert not hasattr(b, "grad_scale")
    assert torch.allclose(norm_a, norm_b)
    for x, y in zip(one, other, strict=True):
        assert torch.allclose(x, y, atol=1e-6)


def test_every_folder_is_one_technique_of_the_catalogue() -> None:
    room = Path(hotloop.optimizations.__path__[0])
    folders = sorted(each.parent.name for each in room.glob("*/__init__.py"))
    assert len(folders) == len(CATALOGUE)
    for folder in folders:
        module = importlib.import_module(f"hotloop.optimizations.{folder}")
        (technique,) = (each for each in vars(module).values() if isinstance(each, Optimization))
        listed = CATALOGUE[technique.name]
        assert replace(listed, live_form=technique.live_form) == technique
        assert listed.live_form is not None or not (room / folder / "live.py").is_file()


def test_auto_is_resolved_after_what_it_looks_at() -> None:
    names = list(CATALOGUE)
    for name, technique in CATALOGUE.items():
        assert all(names.index(earlier) < names.index(name) for earlier in technique.after)
    keys = {technique.key: name for name, technique in CONFIGURED.items()}
    for name, technique in CONFIGURED.items():
        looked = set()
        for function in (technique.choose, technique.why_not):
            looked |= set(re.findall(r'config\["([\w.]+)"\]', inspect.getsource(function)))
        assert {keys[key] for key in looked & keys.keys()} == set(technique.after) - {name}


def test_the_catalogue_loads_no_torch() -> None:
    program = (
        "import sys; import hotloop.optimizations.catalogue; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_techniques_load_with_the_standard_library_and_torch_alone() -> None:
    """They run in other people's interpreters, where nothing else of ours is installed."""
    modules = [p.stem for p in Path(hotloop.optimizations.__path__[0]).glob("*.py")]
    program = f"""
import sys
ours = {[f"hotloop.optimizations.{m}" for m in modules if m != "__init__"]!r}
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pydantic", "yaml", "rich", "click", "psutil", "tokenizers", "safetensors", "platformdirs", "scipy"):
            raise ImportError("not in a foreign interpreter: " + name)
sys.meta_path.insert(0, Refuse())
for module in ours:
    __import__(module)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_gelu_knows_the_families() -> None:
    from hotloop.core.model_config import FAMILIES
    from hotloop.optimizations import gelu

    assert {name: parts.mlp for name, parts in FAMILIES.items()} == gelu._FAMILY_HAS
    machine = Machine("cpu", ("bfloat16",), None, 2)
    config = {"train.compile": True, "model.mlp": None, "model.family": "llama"}
    assert gelu.GELU.choose(machine, config).value == "tanh"
    assert gelu.GELU.choose(machine, {**config, "model.mlp": "gelu"}).value == "sigmoid"


@pytest.mark.parametrize(
    ("changes", "memory", "value"),
    [
        ({}, 24 << 30, "plain"),
        ({}, None, "plain"),
        ({}, 3 << 30, "chunked"),  # 2056 x 32768 x 12 bytes are a quarter
        ({"train.compile": True}, 2 << 30, "chunked"),  # x 8: the compiler keeps no logarithms
        ({"train.compile": True, "train.precision": "bf16"}, 2 << 30, "plain"),
        ({"train.precision": "fp16"}, 1 << 30, "plain"),
        ({"train.microbatch": 1}, 1 << 20, "plain"),  # they are those of one chunk
        ({"model.vocabulary": None, "data.tokenizer": "train:32768"}, 3 << 30, "chunked"),
        ({"model.vocabulary": None, "data.tokenizer": "bytes"}, 1 << 30, "plain"),
        ({"model.vocabulary": None, "data.tokenizer": None}, 1 << 30, "plain"),
    ],
)
def test_the_loss_is_chunked_where_memory_asks_for_it(
    changes: dict[str, Any], memory: int | None, value: str
) -> None:
    config = {
        **settings(microbatch=8, compile=False, precision="fp32").config.flat(),
        **{"model.vocabulary": 32768, "model.context": 257},
        **changes,
    }
    machine = replace(CPU, memory_bytes=memory)
    chosen = CONFIGURED["chunked_loss"].choose(machine, config)  # type: ignore[misc]
    assert (chosen.value, bool(chosen.why)) == (value, True)


def test_chunked_loss_under_the_gradient_scaler_is_refused() -> None:
    with pytest.raises(UsageError, match="before the gradient scaler"):
        resolve(settings(precision="fp16", loss="chunked"), GPU)
