"""Advice names arguments that the installed frameworks have."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import hotloop
from hotloop.optimizations.catalogue import CATALOGUE

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

ROOT = Path(hotloop.__file__).parent
ADVISING = [
    *(ROOT / "judge" / "findings").glob("hl*.py"),
    *(ROOT / "optimizations").glob("*/__init__.py"),
]
ARGUMENT = re.compile(r"(?<![\w.])([a-z_]+)=(?!=)")
OURS = {"mode", "dtype", "set_priority", "mask", "precision", "budget"}
"""Of SQL, of hotloop's own configs and patches, and of casts, which are no arguments of a framework; and of Lightning's
Trainer, which the tests do not install."""


def named() -> dict[str, set[str]]:
    """Arguments that texts of these files name: `name=`, and where."""
    found: dict[str, set[str]] = {}
    for path in ADVISING:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for name in ARGUMENT.findall(node.value):
                    found.setdefault(name, set()).add(path.name)
    return found


def trainer_arguments() -> set[str]:
    return {field.name for field in dataclasses.fields(transformers.TrainingArguments)}


def known() -> set[str]:
    """Arguments of what advice speaks of, as installed here."""
    from torch.utils.checkpoint import checkpoint

    functions: list[Any] = [
        *(
            torch.nn.functional.cross_entropy,
            torch.utils.data.DataLoader,
            torch.optim.AdamW,
            torch.compile,
            checkpoint,
        ),
        *(torch.nn.MultiheadAttention.forward, torch.nn.parallel.DistributedDataParallel),
        *(torch.autograd.set_detect_anomaly, torch.amp.GradScaler),
        *(transformers.PreTrainedTokenizerBase.__call__, transformers.DataCollatorWithPadding),
    ]
    names = {name for each in functions for name in inspect.signature(each).parameters}
    for config in (
        transformers.GPT2Config(),
        transformers.BertConfig(),
        transformers.LlamaConfig(),
    ):
        names |= set(config.to_dict())
    documented = " ".join(
        str(each.__doc__)
        for each in (torch.Tensor.to, torch.nn.functional.scaled_dot_product_attention)
    )
    names |= set(re.findall(r"\b(non_blocking|memory_format|is_causal)\b", documented))
    names.add(
        re.findall(r"\battn_implementation\b", inspect.getsource(transformers.PreTrainedModel))[0]
    )
    return names | trainer_arguments()


def test_every_argument_that_advice_names_exists() -> None:
    there = known() | OURS
    missing = {name: where for name, where in named().items() if name not in there}
    assert missing == {}
    assert len(named()) > 15


def test_arguments_of_the_trainer_are_those_of_the_installed_one() -> None:
    said = [
        CATALOGUE[name].trainer_arguments(value, ["AdamW"])
        for name, value in (
            *(("loader_workers", 2), ("prefetch", 4), ("fused_optimizer", True)),
            *(("compile", True), ("precision", "bf16"), ("precision", "tf32")),
        )
    ]
    for words in [*said, "logging_nan_inf_filter=False"]:
        assert words is not None
        name, _, value = words.partition("=")
        assert name in trainer_arguments()
        if name == "optim":
            assert value.strip('"') in {
                each.value for each in transformers.training_args.OptimizerNames
            }
    assert CATALOGUE["fused_optimizer"].trainer_arguments(True, ["AdamW", "SGD"]) is None


def test_grouping_by_length_is_a_choice_of_the_installed_trainer() -> None:
    strategy = next(
        field
        for field in dataclasses.fields(transformers.TrainingArguments)
        if field.name == "train_sampling_strategy"
    )
    assert "group_by_length" in strategy.metadata["choices"]
    page = (ROOT / "judge" / "findings" / "hl111_padding.py").read_text(encoding="utf-8")
    assert 'train_sampling_strategy="group_by_length"' in page
    assert "`group_by_length`" not in page
