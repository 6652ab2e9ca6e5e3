from hotloop.core.task_scores import TaskScores
from hotloop.report.held_out import scores_in_lines


def scores(confusion: tuple[tuple[int, ...], ...]) -> TaskScores:
    return TaskScores("classification", ("bad", "good"), accuracy=0.5, confusion=confusion)


def test_a_model_that_gives_one_answer_to_all_is_called_that() -> None:
    assert "it always answers `good`" in scores_in_lines(scores(((0, 5), (0, 5))))[1]
    assert len(scores_in_lines(scores(((1, 4), (0, 5))))) == 1
