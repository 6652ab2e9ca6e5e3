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


def mask(*lengths: int, to: int = 32, left: bool = False) -> torch.Tensor:
    rows = (torch.arange(to)[None] < torch.tensor(lengths)[:, None]).long()
    return rows.flip(1) if left else rows


@pytest.mark.parametrize("left", [False, True])
def test_padding_left_is_exact_of_the_lengths_seen(left: bool) -> None:
    """Lengths 4, 30, 5, 29: each batch would be cut to 32; sorted, one to 8 and one to 32."""
    use = seen(*({"attention_mask": mask(*pair, left=left)} for pair in ((4, 30), (5, 29))))
    assert use is not None
    assert use.padded_fraction == 1 - 68 / 128
    assert use.longest_padded_fraction == 1 - 68 / 128
    assert use.grouped_padded_fraction == 1 - 68 / (2 * 8 + 2 * 32)


def test_batches_that_are_short_as_a_whole_are_cut_without_sorting() -> None:
    use = seen(*({"attention_mask": mask(*pair)} for pair in ((4, 5), (29, 30))))
    assert use is not None
    assert use.longest_padded_fraction == use.grouped_padded_fraction == 1 - 68 / 80


def test_batch_that_ends_with_its_longest_row_is_cut_no_further() -> None:
    """11 and 17 are no multiples of 8: nor are those of sorted batches rounded up to any."""
    rows = (mask(11, 3, to=11), mask(5, 17, to=17))
    use = seen(*({"attention_mask": each} for each in rows))
    assert use is not None
    assert use.longest_padded_fraction == pytest.approx(1 - 36 / 56)
    assert use.padded_fraction == pytest.approx(1 - 36 / 56)
    assert use.grouped_padded_fraction == pytest.approx(1 - 36 / (2 * 5 + 2 * 17))


def test_two_columns_of_text_have_no_order_by_length() -> None:
    use = seen({"query": {"attention_mask": mask(3)}, "text": {"attention_mask": mask(30)}})
    assert use is not None
    assert use.longest_padded_fraction == pytest.approx(1 - 33 / 40)
    assert use.grouped_padded_fraction is None


def test_lengths_are_known_of_a_mask_alone() -> None:
    use = seen((sentences([10, 12, 16, 7], 16), torch.ones(4)))
    assert use is not None
    assert (use.longest_padded_fraction, use.grouped_padded_fraction) == (None, None)


def test_rows_that_are_masked_whole_divide_nothing_by_zero() -> None:
    use = seen({"attention_mask": mask(0, 0)}, {"attention_mask": torch.ones(0, 16)})
    assert use is not None
    assert (use.padded_fraction, use.grouped_padded_fraction) == (1, 1)
