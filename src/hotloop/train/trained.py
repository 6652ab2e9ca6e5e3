"""A trained model from its run directory, to try out what it learned."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hotloop.checkpoint import store
from hotloop.checkpoint.state import restore_weights
from hotloop.core.errors import UsageError
from hotloop.core.settings import load_settings
from hotloop.data.tokenizer import Tokenizer
from hotloop.hardware.device import pick_device
from hotloop.models.decoder import Decoder
from hotloop.models.sampling import sample
from hotloop.train.run import decoder_shape


@dataclass(frozen=True, slots=True)
class Trained:
    model: Decoder
    tokenizer: Tokenizer
    step: int


def load_trained(directory: Path, device: str = "auto") -> Trained:
    """The newest checkpoint of a run that verifies. Raises `UsageError` when there is none."""
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
    tensors, _ = store.load(found, ("model",))
    restore_weights(tensors["model"], model)
    return Trained(model.to(pick_device(device)), tokenizer, found.step)


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
