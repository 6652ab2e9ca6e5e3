from __future__ import annotations

from hotloop.core.judgement import RankComparison, RankTime
from hotloop.report.machine import MAX_RANKS, rank_rows, ranks_answer

EACH = (RankTime(0, 0.021, 0.004), RankTime(1, 0.025, 0.0))


def test_rank_that_is_waited_for_is_named() -> None:
    found = RankComparison(EACH, 40, slowest=1, slower_by=0.19)
    assert ranks_answer(found) == "rank 1 is 19 % slower than the others, who wait for it"
    assert rank_rows(found)[0] == ("rank 0", "computes 21 ms, waits 4 ms a step")


def test_nobody_is_blamed_without_evidence() -> None:
    assert ranks_answer(RankComparison(EACH, 40)) == "2, none reliably slower than the others"
    unseen = RankComparison(EACH, 40, reason="the host does not see it")
    assert ranks_answer(unseen) == "not compared: the host does not see it"
    assert rank_rows(unseen)[0] == ("rank 0", "21 ms a step")


def test_waits_inside_the_pass_backward_are_said_to_be_there() -> None:
    found = RankComparison(EACH, 40, slowest=1, slower_by=0.7, hidden=True)
    assert ranks_answer(found).startswith("rank 1 holds the others up 70 % of a step")
    assert rank_rows(found)[1] == ("rank 1", "25 ms outside of the pass backward a step")
    assert "not told from computing" in ranks_answer(RankComparison(EACH, 40, hidden=True))


def test_of_many_ranks_those_that_compute_longest_are_listed() -> None:
    many = RankComparison(tuple(RankTime(n, 0.01 * n, 0.0) for n in range(12)), 40)
    rows = rank_rows(many)
    assert [name for name, _ in rows[:2]] == ["rank 11", "rank 10"]
    assert rows[MAX_RANKS] == ("", "and 4 others that compute no longer")
