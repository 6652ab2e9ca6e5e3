from __future__ import annotations

import pytest

from hotloop.core.errors import UsageError
from hotloop.core.ranks import ALONE, Ranks, read_ranks

LAUNCHED = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500",
}  # fmt: skip


def test_process_of_no_launcher_is_alone() -> None:
    # Set for other reasons, or left empty by a wrapper: no launcher.
    assert read_ranks({"MASTER_ADDR": "10.0.0.1", "RANK": ""}) == ALONE
    assert ALONE.is_first
    assert ALONE.share(3) == range(3)


def test_what_torchrun_sets_is_read() -> None:
    ranks = read_ranks(LAUNCHED)
    assert ranks == Ranks(3, 4, 1, 2, launched=True)
    assert not ranks.is_first


def test_ranks_share_the_microbatches_of_a_step_in_their_order() -> None:
    shares = [Ranks(rank, 3).share(6) for rank in range(3)]
    assert [i for share in shares for i in share] == list(range(6))
    assert {len(share) for share in shares} == {2}


@pytest.mark.parametrize("missing", LAUNCHED)
def test_half_an_environment_names_what_is_missing(missing: str) -> None:
    with pytest.raises(UsageError, match=f"`{missing}` is not") as caught:
        read_ranks({name: value for name, value in LAUNCHED.items() if name != missing})
    assert "torchrun" in (caught.value.do or "")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("RANK", "4", "`RANK` 4 is not below `WORLD_SIZE` 4"),
        ("RANK", "first", "`RANK` is 'first', not a number"),
        ("WORLD_SIZE", "-1", "`WORLD_SIZE` is '-1', not a number"),
        ("RANK", "0", "`LOCAL_RANK` 1 is above `RANK` 0"),
        ("LOCAL_RANK", "2", "`LOCAL_RANK` 2 is not below `LOCAL_WORLD_SIZE` 2"),
        ("LOCAL_WORLD_SIZE", "5", "`LOCAL_WORLD_SIZE` 5 is above `WORLD_SIZE` 4"),
        ("MASTER_PORT", "70000", "`MASTER_PORT` 70000 is not a port"),
    ],
)
def test_contradiction_is_refused(name: str, value: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_ranks({**LAUNCHED, name: value})
    assert caught.value.what == words
