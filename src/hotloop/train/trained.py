"""A trained model from its run directory, to try out what it learned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch.overrides import TorchFunctionMode

from hotloop.checkpoint import store
from hotloop.checkpoint.state import restore_weights
from hotloop.core.config import RunConfig
from hotloop.core.errors import UsageError
from hotloop.core.settings import Settings, load_settings
from hotloop.data.tokenizer import Tokenizer
from hotloop.hardware.device import pick_device
from hotloop.hardware.limits import default_threads, memory_limit_bytes
from hotloop.models.decoder import Decoder
from hotloop.models.kv_cache import KeyValueCache
from hotloop.models.sampling import refuse_diverged, sample, store_by_inputs
from hotloop.optimizations.compiling.trainer import compile_model
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
    with _Unset():
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


class _Unset(TorchFunctionMode):
    """Draws nothing for weights that are about to be read."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (
            None
            if getattr(func, "__module__", "") == "torch.nn.init"
            else func(*args, **(kwargs or {}))
        )


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


MOST_CACHE_BYTES = 1 << 29
"""Keys and values of the texts that are made at a time; more texts wait for them."""


@dataclass(slots=True)
class Text:
    """A text as it is made."""

    prompt: str
    seed: int
    text: str = ""
    """What follows the prompt so far, in whole characters: the bytes of one may come in several tokens."""
    tokens: int = 0
    ended: Literal["end_of_text", "tokens", "interrupted"] | None = None
    _ids: list[int] = field(default_factory=list, repr=False)
    """The newest ids: those of the last piece of text, then those that are no whole character yet."""
    _num_shown: int = field(default=0, repr=False)

    def begin(self, prompt: Sequence[int]) -> None:
        """What is made stands behind these ids: a tokenizer may leave away the space that a text begins with."""
        self._ids = [*prompt[-4:]]
        self._num_shown = len(self._ids)

    def grow(self, tokenizer: Tokenizer, number: int | None) -> None:
        """Add one token, or with `None` what is left of them."""
        if number is not None:
            self.tokens += 1
            self._ids.append(number)
        before = len(tokenizer.decode(self._ids[: self._num_shown]))
        now = tokenizer.decode(self._ids)
        if number is None or (len(now) > before and not now.endswith("\ufffd")):
            self.text += now[before:]
            del self._ids[: self._num_shown]
            self._num_shown = len(self._ids)


def write_texts(
    trained: Trained,
    texts: Sequence[Text],
    *,
    compiled: bool,
    num_tokens: int,
    **how: Any,
) -> Iterator[None]:
    """Lets the model add to `texts`, a token of one of them between two yields. An empty prompt starts a document.

    how: temperature, top_k, top_p. The first `next` reads the prompts, and compiles. Raises `UsageError` where a
    prompt is longer than the context.
    """
    tokenizer, shape = trained.tokenizer, trained.model.shape
    prompts = [tokenizer.encode(text.prompt) or [tokenizer.end_of_text] for text in texts]
    for text, prompt in zip(texts, prompts, strict=True):
        text.begin(prompt)
    longest = max(prompts, key=len)
    if len(longest) > shape.context:
        raise UsageError(
            f"a prompt has {len(longest)} tokens, and the model sees {shape.context} at a time",
            where=f"the prompt {texts[prompts.index(longest)].prompt[:40]!r}...",
            do="shorten it, or use a model with a larger `model.context`",
        )
    room = min(shape.context, len(longest) + num_tokens)
    most = max(1, MOST_CACHE_BYTES // KeyValueCache.row_bytes(shape, room))
    cache = _compile(trained.model, min(most, len(texts)), room) if compiled else None
    if cache is None:
        store_by_inputs(trained.model)
    yield
    for first in range(0, len(texts), most):
        batch = texts[first : first + most]
        for row, number in sample(
            trained.model,
            prompts[first : first + most],
            seeds=[text.seed for text in batch],
            num_tokens=num_tokens,
            stop=tokenizer.end_of_text,
            cache=cache,
            **how,
        ):
            text = batch[row]
            text.grow(tokenizer, number)
            if number is None:
                text.ended = "tokens" if text.tokens == num_tokens else "end_of_text"
            yield


def _compile(model: Decoder, num_rows: int, room: int) -> KeyValueCache:
    """Compile what makes one more token of each row; returns the cache that its shapes are of."""
    weight = model.tokens.weight
    cache = KeyValueCache(model.shape, rows=range(num_rows), room=room, like=weight, fixed=True)
    compile_model(model, "reduce-overhead" if weight.is_cuda else True)
    # The first token is the prompts' own; a CUDA graph is recorded in the second step.
    for _ in sample(model, [[0]], seeds=[0], num_tokens=4, temperature=0, cache=cache):
        pass
    return cache
