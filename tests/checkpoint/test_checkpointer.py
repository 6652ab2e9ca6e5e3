"""`hotloop.checkpoint` in somebody's loop: killed and continued it ends with the same bits."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from loops import BATCH, ROWS, STEPS, Rows, in_new_process, losses, make_loader, train
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

from hotloop.checkpoint import ResumableLoader
from hotloop.core.errors import UsageError


@pytest.mark.parametrize(
    "kind", ["plain", "workers", "persistent_workers", "generator", "replacement", "eager", "single"]
)  # fmt: skip
def test_killed_loop_continues_bit_equally_in_new_processes(tmp_path: Path, kind: str) -> None:
    steps = 66 if kind == "single" else STEPS
    for name, kills in (("whole", ()), ("killed", (steps // 9 + 2, steps // 3 + 1, steps - 2))):
        (tmp_path / name).mkdir()
        for kill_at in kills:
            code = in_new_process(train, tmp_path / name, kind, kill_at, 2, kill_at % 2 == 0)
            assert code == -signal.SIGKILL
        assert in_new_process(train, tmp_path / name, kind, None, 2, True) == 0
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")
    assert len(losses(tmp_path / "whole")) == steps
    assert (tmp_path / "killed" / "end").read_text() == (tmp_path / "whole" / "end").read_text()


def test_sampler_with_a_generator_of_its_own_is_found_out_not_continued_wrongly(
    tmp_path: Path,
) -> None:
    assert (
        in_new_process(train, tmp_path, "own", 9, 2, False) == -signal.SIGKILL
    )  # in the second epoch
    with pytest.raises(UsageError, match="the order of epoch 2 is another than before"):
        train(tmp_path, "own", None, 2, False)
    assert len(losses(tmp_path)) == 9


def test_batches_that_were_taken_are_not_fetched_again(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    first = ResumableLoader(make_loader("plain", seen))
    batches = iter(first)
    taken = [next(batches) for _ in range(4)]
    state = first.state_dict()
    rest = list(batches)
    assert len(seen.read_text().splitlines()) == ROWS
    seen.unlink()
    torch.manual_seed(123)
    again = ResumableLoader(make_loader("plain", seen))
    again.load_state_dict(state)
    before = torch.get_rng_state()
    iterator = iter(again)
    assert not seen.exists()
    assert [len(x) for x, _ in iterator] == [len(x) for x, _ in rest]
    assert len(seen.read_text().splitlines()) == ROWS - BATCH * len(taken)
    assert again.epoch == 1
    assert again.batches == 0
    assert not torch.equal(before, torch.get_rng_state())  # only by what the rows drew


def test_order_of_a_generator_within_a_batch_sampler_is_continued() -> None:
    def loader() -> ResumableLoader:
        drawn = RandomSampler(range(ROWS), generator=torch.Generator().manual_seed(5))
        return ResumableLoader(DataLoader(range(ROWS), batch_sampler=BatchSampler(drawn, BATCH, False)))  # type: ignore[arg-type]  # fmt: skip

    first, again = loader(), loader()
    assert [x.tolist() for x in first]  # of the first epoch
    batches = iter(first)
    next(batches)
    again.load_state_dict(first.state_dict())
    rest = [x.tolist() for x in (*batches, *first)]
    assert [x.tolist() for x in (*again, *again)] == rest


def test_wrapped_loader_yields_what_the_bare_one_does() -> None:
    for kind in ("plain", "generator", "replacement", "eager", "single"):
        found = []
        for wrap in (ResumableLoader, lambda loader: loader):
            torch.manual_seed(0)
            random.seed(0)
            np.random.seed(0)
            loader = wrap(make_loader(kind))
            found.append([x for _ in range(2) for x, _ in loader])
            assert kind == "single" or len(loader) == 6
        assert len(found[0]) == len(found[1])
        assert all(torch.equal(a, b) for a, b in zip(*found)), kind


def test_loader_of_other_data_or_batches_is_refused() -> None:
    first = ResumableLoader(make_loader("plain"))
    for _ in zip(range(2), first):
        pass
    for other in (
        DataLoader(Rows(), BATCH + 1, shuffle=True),
        DataLoader([1] * (ROWS + 1), BATCH, shuffle=True),
    ):
        again = ResumableLoader(other)
        again.load_state_dict(first.state_dict())
        with pytest.raises(UsageError, match="the order of epoch 1 is another than before"):
            next(iter(again))
    with pytest.raises(UsageError, match="has 0 generators and this one 1"):
        ResumableLoader(make_loader("generator")).load_state_dict(first.state_dict())


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(3)


def test_loader_without_a_position_is_refused() -> None:
    with pytest.raises(UsageError, match="an IterableDataset has no indices"):
        ResumableLoader(DataLoader(Stream()))
    with pytest.raises(UsageError, match="a list is no plain torch DataLoader"):
        ResumableLoader([1])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="in_order=False have no position"):
        ResumableLoader(DataLoader(Rows(), num_workers=1, in_order=False))


def test_two_iterations_at_once_count_the_later() -> None:
    loader = ResumableLoader(make_loader("plain"))
    pairs = list(zip(loader, loader))
    assert len(pairs) == 6
    assert loader.state_dict()["batches"] == 6
