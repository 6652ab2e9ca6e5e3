"""A trained model from its run directory, to try out what it learned."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from hotloop.checkpoint import store
from hotloop.checkpoint.state import restore_weights
from hotloop.core.config import RunConfig
from hotloop.core.errors import UsageError
from hotloop.core.settings import Settings, load_settings
from hotloop.data.tokenizer import Tokenizer
from hotloop.hardware.device import pick_device
from hotloop.hardware.limits import default_threads, memory_limit_bytes
from hotloop.models.decoder import Decoder, refuse_diverged, sample
from hotloop.train.averaging import first_update, load_average
from hotloop.train.run import decoder_shape, refuse_too_large

Weights = Literal["averaged", "last"]
"""Those that `averaging` kept, or those of the last step."""


@dataclass(frozen=True, slots=True)
class Trained:
    model: Decoder
    tokenizer: Tokenizer
    step: int
    weights: Weights
    notes: tuple[str, ...] = ()
    """Why it is not the newest checkpoint, if it is not."""


def load_trained(
    directory: Path,
    device: str = "auto",
    *,
    weights: Weights | None = None,
    step: int | None = None,
) -> Trained:
    """The newest checkpoint of a run that verifies, or that of `step`, with the weights that are asked for.

    `None` takes the averaged ones where the checkpoint has them: who turned averaging on wants them.
    From here on torch computes with as many threads as the run would here.
    Raises `UsageError` when there is no checkpoint, no such weights, or where these compute no numbers.
    """
    if not directory.is_dir():
        raise UsageError(
            "no such directory", where=str(directory), do="give the directory of a run"
        )
    if not (directory / "config.yaml").is_file():
        raise UsageError(
            "this is not a run directory: it has no config.yaml",
            where=str(directory),
            do="give what `hotloop train --out` was given",
        )
    settings = load_settings(directory / "config.yaml")
    config = settings.config
    if torch.get_num_threads() != (threads := threads_here(settings)):
        torch.set_num_threads(threads)
    root = directory / "checkpoints"
    found, problems = store.latest(root) if step is None else (store.of_step(root, step), ())
    if found is None:
        raise UsageError(
            f"no checkpoint of this run can be read: {'; '.join(problems)}"
            if problems
            else "this run has no checkpoint yet",
            where=str(directory / "checkpoints"),
            do="train it to its first checkpoint"
            if not problems
            else "put one back, or train it again: `hotloop train` with `--from-step 0` starts over",
        )
    tokenizer = Tokenizer.load(directory / "tokenizer.json")
    shape = decoder_shape(config, tokenizer.vocabulary_size)
    refuse_too_large(shape, copies=1, limit_bytes=memory_limit_bytes())
    model = Decoder(shape)
    tensors = None if weights == "last" else load_average(found)
    used: Weights = "last" if tensors is None else "averaged"
    if tensors is None:
        if weights == "averaged":
            raise _no_average(config, found)
        tensors = store.load(found, ("model",))[0]["model"]
    restore_weights(tensors, model)
    with torch.inference_mode():  # before any text or file of it
        ids = torch.arange(min(config.model.context, tokenizer.vocabulary_size))
        refuse_diverged(model.eval()(ids[None, :128]), where=str(found.path))
    model.train().to(pick_device(device, asked_by="--device"))
    notes = tuple(
        f"a newer checkpoint cannot be used, this is step {found.step}: {problem}"
        for problem in problems
    )
    return Trained(model, tokenizer, found.step, used, notes)


def threads_here(settings: Settings) -> int:
    """What `train.num_threads` of a run is on this machine: a number that was detected is detected again."""
    threads = settings.config.train.num_threads
    if threads == "auto" or settings.origin("train.num_threads").startswith("detected"):
        return default_threads()
    return threads


def _no_average(config: RunConfig, found: store.Checkpoint) -> UsageError:
    if config.averaging.name == "none":
        return UsageError(
            "this run keeps no averaged weights",
            where=str(found.path),
            do="leave `--weights averaged` out, or train with `averaging.name` ema or tail",
        )
    return UsageError(
        f"at step {found.step} there are no averaged weights yet: they begin after step "
        f"{first_update(config)}",
        where=str(found.path),
        do="leave `--weights averaged` out, or train on",
    )


def write_text(
    trained: Trained,
    prompt: str,
    *,
    num_tokens: int,
    temperature: float,
    top_k: int | None,
    seed: int = 0,
) -> str:
    """What the model adds to `prompt`; an empty prompt starts a document."""
    ids = trained.tokenizer.encode(prompt) or [trained.tokenizer.end_of_text]
    added = sample(
        trained.model,
        ids,
        num_tokens=num_tokens,
        temperature=temperature,
        top_k=top_k,
        stop=trained.tokenizer.end_of_text,
        seed=seed,
    )
    return trained.tokenizer.decode(list(added))
