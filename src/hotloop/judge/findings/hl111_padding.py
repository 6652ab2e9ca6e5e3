"""HL111: much of each batch is padding

What it means. Sequences are filled up to a common length, and the model computes on the filling as on
everything else.

Evidence. `padded_fraction`: padded tokens over all tokens of the batches seen; reported from 0.2.
`source`: how padding was told: an attention mask, labels that are ignored, or a run of one id at the
end of the sequences. `forward_backward_fraction`: share of wall time that depends on it.

Gain at most. `1 / (1 - r)` with `r = (f - a) p + a (1 - (1 - p)^2)`: `p` the padded fraction, `f`
forward and backward, `a` the share of attention written out, which grows with the square of the
length. Without a look at the operations `a` is 0, and fused attention is never told apart, so long
sequences may gain more.

Remedy. Pad to the longest of a batch, not of all. The doctor tries it (`dynamic_padding`) where batches have an
attention mask: its patch cuts what the collate function made. By hand, with transformers, no
`padding="max_length"` in the tokenizer's call, and `DataCollatorWithPadding(tokenizer)` as collate function (its
Trainer takes that one where it is given the tokenizer). Beyond that, put similar lengths together
(`train_sampling_strategy="group_by_length"` in TrainingArguments), or pack several sequences into one. To test
these: the seconds per sample over whole epochs, not per step. Site: the collate function where it is the script's
own; else where batches are asked for.

What can go wrong. Grouping by length changes the order of samples, and so the losses: compare final
results. Changing lengths make a compiled model compile again (HL307) unless it is dynamic.
"""

from __future__ import annotations

from hotloop.judge.judged_run import Found, JudgedRun, gain_without, is_installed
from hotloop.judge.operations import is_batched_product, is_softmax
from hotloop.judge.thresholds import HEALTHY_BELOW, PADDED

TITLE = "Much of each batch is padding"


def find(run: JudgedRun) -> Found | None:
    padding = run.census.padding
    if padding is None or not PADDED <= padding.padded_fraction < 1:
        return None
    computing = run.host("forward", "backward")
    if run.breakdown.device is not None:
        computing = run.device("compute")
    seen = run.operations
    quadratic = 0.0
    if seen is not None:
        share = seen.share(lambda use: is_softmax(use) or is_batched_product(use))
        quadratic = min(share, computing)
    padded = padding.padded_fraction
    removed = (computing - quadratic) * padded + quadratic * (1 - (1 - padded) ** 2)
    if gain_without(removed) < HEALTHY_BELOW:
        return None
    return Found(
        share=removed,
        site=_site(run, padding.site),
        evidence={
            "padded_fraction": padded,
            "num_tokens": padding.num_tokens,
            "source": padding.source,
            "forward_backward_fraction": computing,
        },
        optimization="dynamic_padding",
        advice="Pad to the longest sequence of each batch, not to a fixed length (transformers: no "
        'padding="max_length" in the tokenizer\'s call, and DataCollatorWithPadding as collate function), and '
        'put similar lengths together (Trainer: train_sampling_strategy="group_by_length").',
    )


def _site(run: JudgedRun, batches: str | None) -> str | None:
    """The collate function, where it is the user's own and may pad; else where the batches were asked for."""
    loader = run.loader
    collate = loader.collate_site if loader is not None else None
    return collate if collate is not None and not is_installed(collate) else batches
