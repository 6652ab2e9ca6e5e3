"""The cross-entropy over the vocabulary in chunks of tokens: the logits of all tokens never exist at once.

With a vocabulary of 32 k, the logits and their gradients are most of what a step holds. How a chunk is
computed, with its gradients, is in `models/chunked_loss.py`. Of one thread on a CPU it takes as much time as
torch's own loss, and up to 8 % more than what the compiler makes of that; where threads wait for CPUs it is
slower, since they meet more often.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.hardware.limits import Machine
from hotloop.optimizations.optimization import Choice, Optimization

CHUNK_BYTES = 64 << 20
"""Memory for the logits of a chunk, in fp32."""
MEMORY_FRACTION = 0.25
"""More than this part of the memory for logits is too much, however fast they are."""


def most_tokens(vocabulary: int, width: int) -> int:
    """In a chunk. Its logits take `CHUNK_BYTES`, or as much as the gradient of the output matrix.

    Each chunk reads and writes that gradient once, which must stay a small part of its products.
    """
    return max(CHUNK_BYTES // (4 * vocabulary), width, 64)


def known_vocabulary(config: Mapping[str, Any]) -> int | None:
    """`None` where only the tokenizer knows."""
    kind, _, size = str(config["data.tokenizer"]).partition(":")
    known = int(size) if kind == "train" and size.isdigit() else None
    return config["model.vocabulary"] or known


def _choose(machine: Machine, config: Mapping[str, Any]) -> Choice:
    why_not = _why_not(machine, "chunked", config)
    if why_not is not None:
        return Choice("plain", why_not)
    vocabulary = known_vocabulary(config)
    if vocabulary is None:
        return Choice("plain", "the size of the vocabulary is not in the config")
    tokens = config["train.microbatch"] * config["model.context"]
    if tokens <= most_tokens(vocabulary, config["model.width"]):
        return Choice("plain", "the logits of a microbatch are no more than those of a chunk")
    # Logits and their gradient; without the compiler in fp32, with the logarithms beside them.
    size = 2 if config["train.precision"] == "bf16" else 4
    taken = tokens * vocabulary * (2 * size if config["train.compile"] else 12)
    if machine.memory_bytes and taken > MEMORY_FRACTION * machine.memory_bytes:
        return Choice("chunked", f"all logits of a microbatch would take {taken / 1e9:.1f} GB")
    return Choice("plain", "the logits of a microbatch fit, and chunks are not known to be faster")


def _why_not(machine: Machine, value: Any, config: Mapping[str, Any]) -> str | None:
    if value == "chunked" and config["train.precision"] == "fp16":
        return "its gradients are computed before the gradient scaler of fp16 acts"
    return None


CHUNKED_LOSS = Optimization(
    name="chunked_loss",
    summary="The loss over the vocabulary in chunks of tokens: the logits of all tokens never exist at once.",
    parity_class="reduction_order",
    key="train.loss",
    off="plain",
    after=("compile", "precision"),
    settings=("chunked",),
    choose=_choose,
    why_not=_why_not,
    source_form=(
        "def loss_of(h, y): return F.cross_entropy(F.linear(h, weight).float(), y, reduction='sum')\n"
        "parts = zip(hidden.split(512), targets.split(512))\n"
        "loss = sum(checkpoint(loss_of, h, y, use_reentrant=False) for h, y in parts)  # computes the logits twice"
    ),
    no_live_form="a script's own loss is not rewritten while it runs",
    conflicts=("chunked does not go with the gradient scaler of fp16",),
    risks="Much of the backward's time is booked as forward: the gradients of a chunk are computed with its loss.",
)
