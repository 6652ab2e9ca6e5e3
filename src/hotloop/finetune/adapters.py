"""LoRA and QLoRA by peft: low-rank matrices that are trained in place of the weights."""

from __future__ import annotations

import importlib.util
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hotloop.core.causal_config import LoraConfig
from hotloop.core.errors import UsageError, pip_install
from hotloop.models.export import TOLERANCE, ExportDiffers, appearing_whole, quiet
from hotloop.optimizations.precision.autocast import DTYPES

MERGED_TOLERANCE = 1e-4
"""The same as `TOLERANCE`, where the adapter is added to the weights before and not after their product."""


def check_lora(config: LoraConfig) -> None:
    """Raises `UsageError` for what is not installed."""
    packages, key, do = ["peft"], "model.lora.rank", pip_install("lora")
    if config.quantize != "none":
        packages, key, do = ["peft", "bitsandbytes"], "model.lora.quantize", f"{do} bitsandbytes"
    for package in packages if config.rank else ():
        if importlib.util.find_spec(package) is None:
            raise UsageError(f"`{key}` needs {package}, which is not installed", where=key, do=do)


def quantization(config: LoraConfig, device: torch.device, precision: str) -> dict[str, Any]:
    """Arguments for `from_pretrained`: the settings of the QLoRA paper, products in the precision of the run."""
    if config.quantize == "none":
        return {}
    import transformers

    wanted = transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=DTYPES.get(precision, torch.float32),
    )
    return {"quantization_config": wanted, "device_map": {"": device}}


def keep_gradients(model: Any) -> None:
    """Have quantized layers stay as they are trained.

    On a CPU with AVX512-BF16 bitsandbytes packs their weights for inference in the first evaluation, and keeps them so: a training
    that goes on has no gradient through them.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def add_adapter(model: Any, config: LoraConfig, path: str) -> Any:
    """Puts the adapter into `model`, whose own weights are fixed from then on; returns what peft saves it with.

    Draws from torch's generator. Raises `UsageError` for layers that are not there.
    """
    import peft
    from transformers.pytorch_utils import Conv1D

    if config.quantize != "none":
        model = peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    targets = [config.target] if isinstance(config.target, str) else config.target
    lora = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules="all-linear" if targets == ["auto"] else targets,
        fan_in_fan_out=any(isinstance(each, Conv1D) for each in model.modules()),
        task_type="CAUSAL_LM",
    )
    try:
        with quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return peft.get_peft_model(model, lora)
    except ValueError as error:
        there = sorted({name.rpartition(".")[2] for name, each in model.named_modules() if isinstance(each, torch.nn.Linear | Conv1D)})  # fmt: skip
        raise UsageError(
            f"no adapter for this model: {str(error)[:200]}",
            where=f"{path}, `model.lora.target`",
            do=f"its linear layers: {', '.join(there[:20])}",
        ) from error


@torch.no_grad()
def export_adapter(
    adapter: Any,
    config: LoraConfig,
    tokenizer: Any,
    directory: Path,
    tokens: Sequence[np.ndarray],
    merged: Path,
    *,
    precision: str,
    trusted: bool,
) -> None:
    """Write `directory`, whole or not at all, and check that it gives `tokens` the same logits; so `merged`, where asked for.

    Not checked on a GPU where it is quantized: it may have no room for a second model. trusted: with code of the model's own.
    """
    import peft
    import transformers

    model = adapter.get_base_model()
    was_training, device = model.training, next(model.parameters()).device
    model.eval()
    inputs, wanted = [torch.from_numpy(each.astype(np.int64))[None] for each in tokens], []
    if config.quantize == "none":
        model.cpu()  # as `export`: a GPU's own arithmetic may be coarser than what is allowed here
    if config.quantize == "none" or device.type == "cpu":
        wanted = [model(input_ids=ids).logits for ids in inputs]
    base = adapter.peft_config["default"].base_model_name_or_path
    # Of a name it is in the cache now.
    source = {"local_files_only": True, "dtype": torch.float32, "trust_remote_code": trusted}
    try:
        with quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            forget(directory)
            with appearing_whole(directory) as written:
                adapter.save_pretrained(written)
                tokenizer.save_pretrained(written)
                if not wanted:
                    return
                theirs = transformers.AutoModelForCausalLM.from_pretrained(
                    base, **source, **quantization(config, device, precision)
                )
                keep_gradients(theirs)
                theirs = peft.PeftModel.from_pretrained(theirs, str(written), torch_device="cpu").eval()  # fmt: skip
                compare(theirs, inputs, wanted, directory, TOLERANCE)
            if not config.merge:
                return
            forget(merged)
            theirs = theirs.merge_and_unload()
            with appearing_whole(merged) as written:
                theirs.save_pretrained(written)
                tokenizer.save_pretrained(written)
                read = transformers.AutoModelForCausalLM.from_pretrained(written, **source)
                compare(read.eval(), inputs, wanted, merged, MERGED_TOLERANCE)
    finally:
        model.train(was_training)
        if config.quantize == "none":
            model.to(device)


def forget(directory: Path) -> None:
    if directory.exists():  # of this run, before it went on or back
        shutil.rmtree(directory)


def compare(
    model: Any,
    inputs: Sequence[torch.Tensor],
    wanted: Sequence[torch.Tensor],
    directory: Path,
    tolerance: float,
    *,
    same_weights: bool = True,
) -> None:
    for ids, logits in zip(inputs, wanted, strict=True):
        difference = float((model(input_ids=ids).logits.float() - logits).abs().max())
        if not (same_weights and difference <= tolerance * max(1.0, float(logits.abs().max()))):
            what = f"what was exported has other weights, or computes other logits: they differ by {difference:.1e}"
            do = "nothing was kept; this is a bug in hotloop, peft or transformers"
            raise ExportDiffers(what, where=str(directory), do=do)
