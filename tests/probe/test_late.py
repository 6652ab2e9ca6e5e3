from __future__ import annotations

import resource
from pathlib import Path

import pytest
import torch

from hotloop.core.errors import EnvironmentFailed
from hotloop.core.step import StepRecord, read_steps
from hotloop.probe.phases import PhaseClock
from hotloop.probe.recorder import StepBook, keep_steps_before

CPU = torch.device("cpu")


def test_values_are_those_at_the_time_they_were_noted(tmp_path: Path) -> None:
    losses = torch.tensor([1.0, 2.0])
    with StepBook(tmp_path / "steps.jsonl", PhaseClock(), CPU) as book:
        for step in range(2):
            book.note({"loss": losses[step], "grad_norm": losses[step] + 1})
            book.close(step=step, tokens=8, samples=2, learning_rate=0.1)
        losses.fill_(9.0)
        assert book.write_closed() == {"loss": 2.0, "grad_norm": 3.0}
        assert book.write_closed() is None
    found = [(each.loss, each.grad_norm) for each in read_steps(tmp_path / "steps.jsonl")]
    assert found == [(1.0, 2.0), (2.0, 3.0)]


def test_observers_see_closed_records_that_are_already_on_disk(tmp_path: Path) -> None:
    path, seen = tmp_path / "steps.jsonl", []

    def observer(record: StepRecord) -> None:
        seen.append((record, list(read_steps(path))[-1]))

    clock = PhaseClock()
    with StepBook(path, clock, CPU, observers=(observer,)) as book:
        clock.start_step()
        book.tag("compile")
        book.note({"loss": torch.tensor(2.0)})
        book.close(step=0, tokens=8, samples=2, learning_rate=0.1)
        assert book.write_closed() == {"loss": 2.0}
    ((record, stored),) = seen
    assert record == stored
    assert (record.loss, record.tokens, record.tags) == (2.0, 8, ("compile",))


def test_steps_after_the_checkpoint_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text("".join(StepRecord(i, 0.1).to_json() + "\n" for i in range(5)) + '{"st')
    keep_steps_before(path, 3)
    assert [record.step for record in read_steps(path)] == [0, 1, 2]


def test_records_that_cannot_be_written_are_the_environments_failure(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed):
        StepBook(tmp_path / "missing" / "steps.jsonl", PhaseClock(), CPU)
    if Path("/dev/full").exists():
        with StepBook(Path("/dev/full"), PhaseClock(), CPU) as full:
            full.note({"loss": torch.tensor(2.0)})
            full.close(step=0, tokens=8, samples=2, learning_rate=0.1)
            with pytest.raises(EnvironmentFailed, match="No space left"):
                full.write_closed()


def test_record_that_the_disk_takes_a_part_of_ends_the_run_and_is_left_out(tmp_path: Path) -> None:
    path, (soft, hard) = tmp_path / "steps.jsonl", resource.getrlimit(resource.RLIMIT_FSIZE)
    with StepBook(path, PhaseClock(), CPU) as book:
        for step in range(2):
            book.note({"loss": torch.tensor(2.0)})
            book.close(step=step, tokens=8, samples=2, learning_rate=0.1)
            if step == 0:
                book.write_closed()
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, hard))
            with pytest.raises(
                EnvironmentFailed, match="cannot write step records: File too large"
            ):
                book.write_closed()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [record.step for record in read_steps(path)] == [0]
