from __future__ import annotations

import pytest
import torch

from hotloop.core.census import PaddingUse
from hotloop.probe.attach.model import Padding


def seen(*batches: object) -> PaddingUse | None:
    padding = Padding()
    for batch in batches:
        padding.look(batch, lambda: "train.py:1")
    return padding.use()


def sentences(lengths: list[int], to: int, pad: int = 0) -> torch.Tensor:
    ids = torch.full((len(lengths), to), pad)
    for row, length in enumerate(lengths):
        ids[row, :length] = 5 + torch.arange(length) % 7
    return ids


@pytest.mark.parametrize("pad", [0, 3])
def test_sentences_of_different_lengths_are_filled_up(pad: int) -> None:
    use = seen((sentences([10, 12, 16, 7], 16, pad), torch.ones(4)))
    assert use is not None
    assert (use.source, use.padded_fraction) == (f"trailing id {pad}", (6 + 4 + 9) / 64)


def test_lengths_may_differ_between_batches_alone() -> None:
    use = seen(sentences([10] * 4, 16), sentences([12] * 4, 16))
    assert use is not None
    assert use.padded_fraction == pytest.approx((6 + 4) / 32)


def test_labels_to_ignore_are_padding_at_the_ends_of_rows_alone() -> None:
    labels = torch.ones(4, 16, dtype=torch.int64)
    labels[:2, 8:] = -100
    labels[2, :4] = -100  # a prompt
    use = seen({"input_ids": labels + 200, "labels": labels})
    assert use is not None
    assert (use.source, use.padded_fraction) == ("labels", 0.25)


def test_counts_of_features_are_no_padding() -> None:
    torch.manual_seed(0)
    words = torch.zeros(64, 2000, dtype=torch.int64)
    for row in words:
        row[torch.randint(0, 400, (40,))] = torch.randint(1, 6, (40,))
    use = seen(words)
    assert use is not None
    assert use.padded_fraction == 0.0


def test_columns_that_are_never_set_are_no_padding() -> None:
    table = torch.cat([torch.randint(1, 9, (8, 12)), torch.zeros(8, 4, dtype=torch.int64)], 1)
    use = seen(table)
    assert use is not None
    assert use.padded_fraction == 0.0


def test_mask_is_believed_whatever_the_ids_are() -> None:
    mask = torch.ones(4, 16, dtype=torch.int64)
    mask[:, 12:] = 0
    use = seen({"input_ids": torch.zeros(4, 16, dtype=torch.int64) + 9, "attention_mask": mask})
    assert use is not None
    assert (use.source, use.padded_fraction) == ("attention_mask", 0.25)
