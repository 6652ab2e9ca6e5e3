"""LoRA and QLoRA by peft: low-rank matrices that are trained in place of the weights."""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import shutil
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hotloop.core.errors import UsageError, pip_install
from hotloop.core.finetune_config import LoraConfig
from hotloop.models.export import TOLERANCE, ExportDiffers, appearing_whole, quiet
from hotloop.optimizations.precision.autocast import DTYPES

MERGED_TOLERANCE = 1e-4
"""The same as `TOLERANCE`, where the adapter is added to the weights before and not after their product."""
CAUSAL = "AutoModelForCausalLM"
TASKS = {
    CAUSAL: "CAUSAL_LM",
    "AutoModelForSequenceClassification": "SEQ_CLS",
    "AutoModelForTokenClassification": "TOKEN_CLS",
}
"""What peft calls the task of a class of transformers."""


def check_lora(config: LoraConfig) -> None:
    """Raises `UsageError` for what is not installed."""
    packages, key, do = ["peft"], "model.lora.rank", pip_install("lora")
    if config.quantize != "none":
        packages, key, do = ["peft", "bitsandbytes"], "model.lora.quantize", f"{do} bitsandbytes"
    for package in packages if config.rank else ():
        if importlib.util.find_spec(package) is None:
            raise UsageError(f"`{key}` needs {package}, which is not installed", where=key, do=do)


def quantization(
    config: LoraConfig, device: torch.device, precision: str, whole: Collection[str] = ()
) -> dict[str, Any]:
    """Arguments for `from_pretrained`: the settings of the QLoRA paper, products in the precision of the run.

    whole: modules that are not quantized, since they are trained themselves; of a decoder without any its output is not.
    """
    if config.quantize == "none":
        return {}
    import transformers

    wanted = transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=DTYPES.get(precision, torch.float32),
        llm_int8_skip_modules=sorted(whole) or None,  # of 4 bits, too
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


def add_adapter(
    model: Any, config: LoraConfig, path: str, auto: str = CAUSAL, whole: Collection[str] = ()
) -> Any:
    """Puts the adapter into `model`, whose own weights are fixed from then on; returns what peft saves it with.

    whole: modules, such as a head, of which a copy is trained and saved with the adapter. Draws from torch's generator.
    Raises `UsageError` for layers that are not there.
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
        modules_to_save=sorted(whole) or None,
        task_type=TASKS[auto],
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


def weights_in_words(model: Any, what: str) -> str:
    every = [(p.numel(), p.requires_grad) for p in model.parameters()]
    trained = sum(number for number, is_trained in every if is_trained)
    fixed = sum(number for number, _ in every) - trained
    return f"{trained:,} weights of {what} are trained, beside {fixed:,} that are not"


def read_adapter(
    directory: Path, config: LoraConfig, auto: str, device: torch.device, precision: str = "fp32", **source: Any
) -> Any:  # fmt: skip
    """The model that it was trained beside, with it, as peft has them. source: arguments for `from_pretrained`."""
    import peft
    import transformers

    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own = peft.PeftConfig.from_pretrained(str(directory))
        if (directory / "config.json").is_file():  # the labels of a head, which that model has not
            stored = transformers.AutoConfig.from_pretrained(directory, trust_remote_code=source["trust_remote_code"])  # fmt: skip
            source |= {"config": stored, "ignore_mismatched_sizes": True}
        given = quantization(config, device, precision, getattr(own, "modules_to_save", None) or ())
        read = getattr(transformers, auto).from_pretrained
        model = read(own.base_model_name_or_path, dtype=torch.float32, **source, **given)
        keep_gradients(model)
        return peft.PeftModel.from_pretrained(model, str(directory), torch_device="cpu").eval()


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
    auto: str = CAUSAL,
) -> None:
    """Write `directory`, whole or not at all, and check that it gives `tokens` the same logits; so `merged`, where asked for.

    Not checked on a GPU where it is quantized: it may have no room for a second model. trusted: with code of the model's own.
    """
    import transformers

    model = adapter.get_base_model()
    was_training, device = model.training, next(model.parameters()).device
    model.eval()
    inputs, wanted = [torch.from_numpy(each.astype(np.int64))[None] for each in tokens], []
    if config.quantize == "none":
        model.cpu()  # as `export`: a GPU's own arithmetic may be coarser than what is allowed here
    if config.quantize == "none" or device.type == "cpu":
        wanted = [model(input_ids=ids).logits for ids in inputs]
    # Of a name it is in the cache now.
    source = {"local_files_only": True, "trust_remote_code": trusted}
    try:
        with quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            before = _digest(directory)
            forget(directory)
            with appearing_whole(directory) as written:
                adapter.save_pretrained(written)
                if _digest(written) != before:
                    forget(merged)  # which answers in place of the adapter
                tokenizer.save_pretrained(written)
                if auto != CAUSAL:
                    described = copy.deepcopy(model.config)
                    described.architectures = [type(model).__name__]
                    vars(described).pop("quantization_config", None)
                    described.save_pretrained(written)
                if not wanted:
                    return
                theirs = read_adapter(written, config, auto, device, precision, **source)
                compare(theirs, inputs, wanted, directory, TOLERANCE)
            if not config.merge:
                return
            forget(merged)
            theirs = theirs.merge_and_unload()
            with appearing_whole(merged) as written:
                theirs.save_pretrained(written)
                tokenizer.save_pretrained(written)
                read = getattr(transformers, auto).from_pretrained
                theirs = read(written, dtype=torch.float32, **source)
                compare(theirs.eval(), inputs, wanted, merged, MERGED_TOLERANCE)
    finally:
        model.train(was_training)
        if config.quantize == "none":
            model.to(device)


def _digest(adapter: Path) -> str | None:
    """Of its weights; `None` where there are none."""
    weights = adapter / "adapter_model.safetensors"
    if not weights.is_file():
        return None
    with weights.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
