"""A trained decoder as a directory that `transformers` loads, with the same logits.

Needs safetensors alone. `verify` needs `transformers`, the extra `export`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from hotloop.core.errors import EnvironmentFailed, ExitCode, HotloopError, UsageError
from hotloop.core.files import fsync_directory, storage_error, write_atomically, write_json
from hotloop.models.decoder import Decoder
from hotloop.models.hf_names import PADDED, hf_config, weights
from hotloop.models.sampling import refuse_diverged

TOLERANCE = 1e-5
"""Largest difference of a logit in fp32, relative to the largest logit where that is above 1."""


class ExportDiffers(HotloopError):
    """What was written does not compute what the trained model computes."""

    exit_code = ExitCode.FOUND


def export(
    model: Decoder,
    tokenizer: bytes,
    directory: Path,
    *,
    end_of_text: int,
    check: Callable[[Path], None] = lambda written: None,
) -> None:
    """Write config, weights (fp32) and tokenizer into a new `directory`.

    `tokenizer` is a tokenizer.json; one that holds a sentencepiece model becomes that model's
    tokenizer.model, which `transformers` might read otherwise. `check` sees the finished files before the directory gets its
    name: it appears whole and checked, or not at all. Raises `UsageError` when the directory holds
    something or `transformers` has no class for the model, `EnvironmentFailed` when the disk refuses.
    """
    config = hf_config(model.shape, end_of_text)
    with appearing_whole(directory) as written:
        write_json(written / "config.json", config)
        tensors = {name: tensor.contiguous() for name, tensor in hf_weights(model).items()}
        safetensors.torch.save_file(tensors, written / "model.safetensors", {"format": "pt"})
        del tensors
        _write_tokenizer(written, tokenizer, end_of_text, model.shape.context)
        ends = {"bos_token_id": end_of_text, "eos_token_id": end_of_text}
        write_json(written / "generation_config.json", ends)
        check(written)


def hf_weights(model: Decoder) -> dict[str, Tensor]:
    """The weights under their names in `transformers`, on the CPU in fp32."""
    own = dict(model.named_parameters())
    found: dict[str, Tensor] = {}
    for weight in weights(model.shape):
        tensor = own.pop(weight.ours).detach().cpu().float()
        if weight.ours in PADDED:
            tensor = tensor[: model.shape.vocabulary]
        if weight.transposed:
            tensor = tensor.t()
        parts = torch.split(tensor, list(weight.rows)) if weight.rows else (tensor,)
        found.update(zip(weight.theirs, parts, strict=True))
    assert not own, f"not exported: {sorted(own)}"
    if model.shape.positions == "learned" and not model.shape.bias:
        for name in list(found):  # GPT-2 has biases everywhere: those that are not here are zero
            if ".h." in name or ".ln_f." in name:
                rows = found[name].shape[-1]
                found[name.removesuffix("weight") + "bias"] = torch.zeros(rows)
    return found


@torch.no_grad()
def largest_difference(model: Decoder, directory: Path, *, seed: int = 0) -> float:
    """Largest difference between a logit of ours and of `transformers`, over random sequences, in fp32.

    Raises `ExportDiffers` above `TOLERANCE`, `UsageError` for a model that computes no numbers, and
    `ModuleNotFoundError` without `transformers`.
    """
    import transformers

    with quiet():
        theirs = transformers.AutoModelForCausalLM.from_pretrained(
            directory, local_files_only=True, dtype=torch.float32
        ).eval()
        if (directory / "tokenizer.json").exists():
            transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True)
    shape = model.shape
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(
        shape.vocabulary, (2, min(shape.context, 128)), generator=generator, dtype=torch.int64
    )
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    ours = model(tokens.to(device)).float().cpu()
    model.train(was_training)
    refuse_diverged(ours)
    found = theirs(tokens).logits
    difference = float((ours - found).abs().max())
    if not difference <= TOLERANCE * max(1.0, float(ours.abs().max())):
        raise ExportDiffers(
            f"transformers computes other logits from the exported model: they differ by {difference:.1e}",
            where=str(directory),
            do="nothing was kept; this is a bug in hotloop or an untested transformers "
            f"({transformers.__version__})",
        )
    return difference


@contextlib.contextmanager
def appearing_whole(directory: Path) -> Iterator[Path]:
    """A directory beside `directory` to fill, renamed to it at the end, removed after an error."""
    if directory.is_file() or (directory.is_dir() and any(directory.iterdir())):
        raise UsageError(
            "there is something at the place to export to",
            where=str(directory),
            do="choose a directory that is empty or not there yet",
        )
    temporary: Path | None = None
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
        temporary.chmod(0o755)
        yield temporary
        for file in temporary.iterdir():
            file.chmod(0o644)
        fsync_directory(temporary)
        os.replace(temporary, directory)
        fsync_directory(directory.parent)
    except OSError as error:
        raise storage_error(error, directory, "export") from error
    except safetensors.SafetensorError as error:
        raise EnvironmentFailed(
            f"cannot write the weights: {error}",
            where=str(directory),
            do="free some space or choose another directory, then run the same command again",
        ) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the bars and notes of `transformers`, which would stand between ours."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


def _write_tokenizer(written: Path, tokenizer: bytes, end_of_text: int, context: int) -> None:
    described = json.loads(tokenizer)
    if described["model"].get("type") == "sentencepiece":
        proto = base64.b64decode(described["model"]["proto"])
        write_atomically(written / "tokenizer.model", proto)
        return
    if described.get("post_processor") is not None:  # no text had what it adds
        tokenizer = json.dumps({**described, "post_processor": None}, ensure_ascii=False).encode()
    write_atomically(written / "tokenizer.json", tokenizer)
    name = _token_name(described, end_of_text)
    write_json(
        written / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": name,
            "eos_token": name,
            "model_max_length": context,
            "clean_up_tokenization_spaces": False,
        },
    )


def _token_name(tokenizer: dict[str, Any], number: int) -> str:
    for token in tokenizer.get("added_tokens") or ():
        if token["id"] == number:
            return str(token["content"])
    vocabulary = tokenizer["model"]["vocab"]
    pairs = vocabulary.items() if isinstance(vocabulary, dict) else ()
    for name, found in pairs:
        if found == number:
            return str(name)
    return str(vocabulary[number][0])  # Unigram: a list of (name, score)
