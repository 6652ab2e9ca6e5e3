from hotloop.core.task_scores import ClassScore, TaskScores
from hotloop.report.held_out import scores_in_lines


def scores(confusion: tuple[tuple[int, ...], ...]) -> TaskScores:
    return TaskScores("classification", ("bad", "good"), accuracy=0.5, confusion=confusion)


def test_a_model_that_gives_one_answer_to_all_is_called_that() -> None:
    assert "it always answers `good`" in scores_in_lines(scores(((0, 5), (0, 5))))[1]
    assert len(scores_in_lines(scores(((1, 4), (0, 5))))) == 1


def test_a_ratio_without_examples_says_why() -> None:
    never, absent = ClassScore("bad", None, 0.0, 0.0, 5), ClassScore("odd", None, None, None, 0)
    of_bad, of_odd = scores_in_lines(TaskScores("classification", by_class=(never, absent)))[1:]
    assert "bad: precision - (never predicted), recall 0.000, f1 0.000" in of_bad
    assert "recall - (none there), f1 - (neither), 0 examples" in of_odd
