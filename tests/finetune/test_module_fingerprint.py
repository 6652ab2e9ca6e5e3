"""What tells one training of `hotloop.fit` from another, the same in every process."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hotloop.finetune.module_fingerprint import described


class Weighted:
    def __init__(self, weight: float) -> None:
        self.weight, self.seen = weight, [object()]

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        return self.weight * F.cross_entropy(output, target)


def scaled(by: float) -> Callable[..., Any]:
    return lambda output, target: by * F.cross_entropy(output, target)


def mean(output: Tensor, target: Tensor) -> Tensor:
    return F.l1_loss(output, target)


def squared(output: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(output, target)


squared.__qualname__ = mean.__qualname__  # as in a cell of a notebook that was edited


def weights(first: float) -> Tensor:
    return torch.tensor([first, 1.0])


@pytest.mark.parametrize(
    ("make", "one", "other"),
    [
        (Weighted, 1.0, 2.0),
        (scaled, 1.0, 2.0),
        (lambda by: partial(F.cross_entropy, label_smoothing=by), 0.1, 0.2),
        (lambda by: partial(F.cross_entropy, weight=weights(by)), 1.0, 2.0),
        (lambda by: partial(Weighted(by), target=None), 1.0, 2.0),
        (lambda by: Weighted(by).__call__, 1.0, 2.0),
        (lambda by: nn.LeakyReLU(by), 0.1, 0.2),
        (lambda function: function, mean, squared),
        (lambda members: lambda: members, frozenset((0, 8)), frozenset((0, 9))),
    ],
)
def test_the_same_code_is_the_same_in_another_object_and_other_settings_are_not(
    make: Callable[[Any], Any], one: Any, other: Any
) -> None:
    assert [*described(make(one))] == [*described(make(one))]
    assert [*described(make(one))] != [*described(make(other))]


def test_the_order_of_a_set_which_differs_from_process_to_process_has_no_part_in_it() -> None:
    one, other = frozenset((0, 8)), frozenset((8, 0))
    assert [*one] != [*other]
    assert [*described(one)] == [*described(other)]


def test_what_refers_to_itself_or_to_what_is_not_there_yet_comes_to_an_end() -> None:
    def again(number: int) -> int:
        return number and again(number - 1) + later

    assert [*described(again)]
    later = 1
