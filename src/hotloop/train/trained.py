"""A trained model from its run directory, to try out what it learned."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hotloop.checkpoint import store
from hotloop.checkpoint.state import restore_weights
from hotloop.core.config import RunConfig
from hotloop.core.errors import UsageError
from hotloop.core.settings import load_settings
from hotloop.data.tokenizer import Tokenizer
from hotloop.hardware.device import pick_device
from hotloop.models.decoder import Decoder
from hotloop.models.sampling import sample
from hotloop.train.averaging import first_update, load_average
from hotloop.train.run import decoder_shape

Weights = Literal["averaged", "last"]
"""Those that `averaging` kept, or those of the last step."""


@dataclass(frozen=True, slots=True)
class Trained:
    model: Decoder
    tokenizer: Tokenizer
    step: int
    weights: Weights


def load_trained(
    directory: Path, device: str = "auto", *, weights: Weights | None = None
) -> Trained:
    """The newest checkpoint of a run that verifies, with the weights that are asked for.

    `None` takes the averaged ones where the checkpoint has them: who turned averaging on wants them.
    Raises `UsageError` when there is no checkpoint, or no such weights.
    """
    if not (directory / "config.yaml").is_file():
        raise UsageError("this is not a run directory: it has no config.yaml", where=str(directory))
    config = load_settings(directory / "config.yaml").config
    found, problems = store.latest(directory / "checkpoints")
    if found is None:
        raise UsageError(
            problems[0] if problems else "this run has no checkpoint yet",
            where=str(directory / "checkpoints"),
            do="train it to its first checkpoint",
        )
    tokenizer = Tokenizer.load(directory / "tokenizer.json")
    model = Decoder(decoder_shape(config, tokenizer.vocabulary_size))
    tensors = None if weights == "last" else load_average(found)
    used: Weights = "last" if tensors is None else "averaged"
    if tensors is None:
        if weights == "averaged":
            raise _no_average(config, found)
        tensors = store.load(found, ("model",))[0]["model"]
    restore_weights(tensors, model)
    return Trained(model.to(pick_device(device, asked_by="--device")), tokenizer, found.step, used)


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
