'''HL111: much of each batch is padding

What it means. Sequences are filled up to a common length, and the model computes on the filling as on
everything else.

Evidence. `padded_fraction`: padded tokens over all tokens of the batches seen; reported from 0.2.
`source`: how padding was told: an attention mask, labels that are ignored, or a run of one id at the
end of the sequences. `forward_backward_fraction`: share of wall time that depends on it. Of attention masks also,
from the lengths of all rows of up to 24 batches (the first 16, then every 50th), rounded up to a multiple of 8 where
lengths of batches were such multiples: `longest_padded_fraction`, the padding if each batch ended with its longest row, and `grouped_padded_fraction`, if
these rows had been sorted by length first. These are counted, not estimated, for the batches seen; a sampler that
sorts more rows at a time leaves less.

Gain at most. `1 / (1 - r)` with `r = (f - a) q + a (1 - (1 - q)^2)`: `q` the share of the tokens that go, `f`
forward and backward, `a` the share of attention written out, which grows with the square of the
length. Without a look at the operations `a` is 0, and fused attention is never told apart, so long
sequences may gain more. Without any padding `q` is the padded fraction `p`; with a rest `l` of it `q` is
`1 - (1 - p) / (1 - l)`: so `gain_at_longest` and `gain_grouped`, each against the run as it is.

Remedy. Pad to the longest of a batch, not of all. The doctor tries it (`dynamic_padding`) where the batches of a DataLoader
are longer than their longest row and have an attention mask: its patch cuts what the collate function made. By hand, with
transformers, no `padding="max_length"` in the tokenizer's call, and `DataCollatorWithPadding(tokenizer)` as
collate function (its Trainer takes that one where it is given the tokenizer).

Beyond that, batches of similar length, which hold other samples together and are therefore your choice. The doctor
tries none: steps of short sequences are fast, and others are slow, so only whole epochs show what it brings.
transformers' Trainer: `train_sampling_strategy="group_by_length"` in TrainingArguments (version 4 had a switch of
that name). It goes by the length of each item's `input_ids`: where the tokenizer padded these already, all are
equal and nothing changes, unless a column `length` says it. Other loops, instead of `batch_size`, `shuffle`,
`sampler` and `drop_last`:

    lengths = [int(item["attention_mask"].sum()) for item in dataset]
    loader = DataLoader(dataset, batch_sampler=LengthGroupedBatches(lengths, 32), collate_fn=...)

    class LengthGroupedBatches:
        """Shuffled samples, those of 50 batches at a time sorted by length; then the batches are shuffled."""

        def __init__(self, lengths, batch_size):
            self.lengths, self.batch_size = lengths, batch_size

        def __len__(self):
            return -(-len(self.lengths) // self.batch_size)

        def __iter__(self):
            order = torch.randperm(len(self.lengths)).tolist()
            size, batches = self.batch_size, []
            for start in range(0, len(order), 50 * size):
                rows = sorted(order[start : start + 50 * size], key=self.lengths.__getitem__)
                batches += [rows[i : i + size] for i in range(0, len(rows), size)]
            yield from (batches[i] for i in torch.randperm(len(batches)).tolist())

Either reads the length of every item once before the first step. To test them: the seconds per sample over whole
epochs, not per step. Or pack several sequences into one row. Site: the collate function where it is the
script's own; else where batches are asked for.

Why not within a step that accumulates batches, so that each update sees the same samples: where the loss of each
batch is a mean over its own tokens, as is usual, the samples of a batch of short ones would weigh more. Where the
loss is divided by the tokens of the whole step they do not, and the Trainer can do it
(`train_sampling_strategy="batch_rebalance"`; batches then differ in size).

What can go wrong. Samples of one update are alike in length, and in what goes with it, so losses differ, and more
from step to step: compare final results. A loss between the samples of a batch and batch norm see other
neighbours. Several processes need batches of similar length in the same step. Changing lengths make a compiled
model compile again (HL307) unless it is dynamic.
'''

from __future__ import annotations

from hotloop.judge.judged_run import Found, JudgedRun, gain_without, is_installed
from hotloop.judge.operations import is_batched_product, is_softmax
from hotloop.judge.thresholds import HEALTHY_BELOW, PADDED


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

    def removed(left: float) -> float:
        """The share of the time that goes with the padding, but for the share of it that is left."""
        tokens = 1 - (1 - padded) / (1 - min(left, padded))
        return (computing - quadratic) * tokens + quadratic * (1 - (1 - tokens) ** 2)

    if gain_without(removed(0.0)) < HEALTHY_BELOW:
        return None
    longest, grouped = padding.longest_padded_fraction, padding.grouped_padded_fraction
    at_longest = None if longest is None else gain_without(removed(longest))
    in_groups = None if grouped is None else gain_without(removed(grouped))
    is_longer = at_longest is None or at_longest >= HEALTHY_BELOW
    return Found(
        share=removed(0.0),
        site=_site(run, padding.site),
        evidence={
            "padded_fraction": padded,
            "num_tokens": padding.num_tokens,
            "source": padding.source,
            "forward_backward_fraction": computing,
            "longest_padded_fraction": longest,
            "gain_at_longest": at_longest,
            "grouped_padded_fraction": grouped,
            "gain_grouped": in_groups,
        },
        optimization="dynamic_padding" if is_longer and run.loader is not None else None,
        advice=" ".join(
            [
                _to_longest(longest, at_longest) if is_longer else AT_LONGEST,
                _grouped(grouped, in_groups, at_longest),
            ]
        ).strip(),
    )


AT_LONGEST = "Batches end with their longest sequence, or soon after it."
CHOICE = (
    "That changes which samples share a batch, so it is your choice, and not tried (Trainer: "
    'train_sampling_strategy="group_by_length"; other loops: the sampler of `hotloop explain HL111`).'
)


def _to_longest(left: float | None, gain: float | None) -> str:
    what = (
        "Pad to the longest sequence of each batch, not to a fixed length (transformers: no "
        'padding="max_length" in the tokenizer\'s call, and DataCollatorWithPadding as collate function)'
    )
    if left is None or gain is None:
        return f"{what}."
    return (
        f"{what}: {100 * left:.0f} % of the tokens would be padding, at most {gain:.2f}x as fast."
    )


def _grouped(left: float | None, gain: float | None, gain_before: float | None) -> str:
    """What batches of similar length would bring, each as long as its longest row, if that is more."""
    if left is None or gain is None or gain_before is None:
        return f"Batches of similar length have less padding. {CHOICE}"
    if gain / gain_before < HEALTHY_BELOW:
        return "Batches of similar length would have hardly less padding."
    what = f"about {100 * left:.0f} % padding, up to about {gain:.2f}x as fast as now"
    return f"If they held sequences of similar length: {what}. {CHOICE}"


def _site(run: JudgedRun, batches: str | None) -> str | None:
    """The collate function, where it is the user's own and may pad; else where the batches were asked for."""
    loader = run.loader
    collate = loader.collate_site if loader is not None else None
    return collate if collate is not None and not is_installed(collate) else batches
