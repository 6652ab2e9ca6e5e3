"""`speedup` and `interval` of a run: what was kept, or compared, and nothing where nothing is claimed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import hotloop
from hotloop.core.errors import UsageError
from hotloop.core.files import write_json
from hotloop.core.judgement import Parity, Verdict
from hotloop.core.ledger import LEDGER_FILE, Ledger

VERDICT = Verdict("improved", 1.5, 1.4, 1.6, 0.99, Parity("same", "bitwise"), "baseline", "candidate", num_pairs=4)  # fmt: skip


def test_of_what_was_kept(tmp_path: Path) -> None:
    write_json(tmp_path / "verdict.json", VERDICT)  # a stage that makes it a run
    for kept, found in (
        (("precision",), (1.5, (1.4, 1.6))),
        ((), (None, None)),  # what was put together was not confirmed
    ):
        ledger = Ledger(("python", "train.py"), (), kept, VERDICT, 3, 20, 75.0, None)
        write_json(tmp_path / LEDGER_FILE, ledger)
        run = hotloop.load_run(tmp_path)
        assert (run.speedup, run.interval) == found


def test_of_two_commands(tmp_path: Path) -> None:
    for verdict, found in (
        (VERDICT, (1.5, (1.4, 1.6))),
        (replace(VERDICT, outcome="inconclusive", ratio_low=0.9), (1.5, (0.9, 1.6))),
        (replace(VERDICT, outcome="inconclusive", ratio_low=None), (1.5, None)),
        (replace(VERDICT, outcome="inconclusive", doubts=("other samples",)), (None, None)),
        (replace(VERDICT, outcome="incomparable"), (None, None)),
    ):
        write_json(tmp_path / "verdict.json", verdict)
        run = hotloop.load_run(tmp_path)
        assert run.verdict == verdict
        assert (run.speedup, run.interval) == found


def test_a_task_that_is_none_is_named_as_a_program_names_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        hotloop.fit("model", "tweets.csv", task="clasification", out=tmp_path)
    assert error.value.what == "no task `clasification`"
    assert error.value.do == "did you mean classification?"
    assert error.value.where is None
