"""`model.packed: auto`, the default: packed, in buckets or padded, by the lengths of the examples."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from decoders import save_decoder, write_lines
from encoders import save_encoder, write_csv

from hotloop.core.finetune_config import FinetuneTrain, Layout
from hotloop.core.step import read_steps
from hotloop.finetune.microbatches import BUCKETS, AsAsked, laid_out

Run = Callable[..., str]
PACKED, IN_BUCKETS, PADDED = AsAsked(True, BUCKETS), AsAsked(False, BUCKETS), AsAsked(False, 1)
EVEN, UNEVEN, LONG = [8] * 32, [4, 30] * 16, [40] * 32
FAST = ["logging.tensorboard=false", "train.precision=fp32", "schedule.name=constant"]


@pytest.mark.parametrize(
    ("asked", "lengths", "drops", "reason", "wanted", "said"),
    [
        (True, EVEN, True, None, PACKED, None),
        (True, UNEVEN, False, "it cannot", IN_BUCKETS, "X is not packed: it cannot; examples of similar length are padded together"),
        ("buckets", EVEN, True, None, IN_BUCKETS, None),
        (False, UNEVEN, False, None, PADDED, None),
        ("auto", UNEVEN, True, None, PACKED, None),
        ("auto", EVEN, False, None, PACKED, None),
        ("auto", LONG, True, None, PACKED, None),
        ("auto", EVEN, True, None, PADDED, "X is not packed: 8 tokens an example, of which padding would be 0% of a microbatch: so few take longer packed where attention has dropout; those of a microbatch are padded together"),
        ("auto", UNEVEN, True, "it cannot", IN_BUCKETS, "X is not packed: it cannot; examples of similar"),
        ("auto", EVEN, False, "it cannot", PADDED, "X is not packed: it cannot; those of a microbatch"),
    ],
)  # fmt: skip
def test_layout_follows_from_what_is_asked_and_from_the_lengths(
    asked: Layout,
    lengths: list[int],
    drops: bool,
    reason: str | None,
    wanted: AsAsked,
    said: str | None,
) -> None:
    told: list[str] = []
    steps = [np.array(lengths[:16]), np.array(lengths[16:])]
    train = FinetuneTrain(microbatch=8)
    assert laid_out(asked, steps, train, told.append, "X", lambda: reason, drops=drops) == wanted
    assert len(told) == (said is not None)
    assert not said or told[0].startswith(said)


def losses(run: Path) -> list[float | None]:
    return [step.loss for step in read_steps(run / "steps.jsonl")]


@pytest.mark.parametrize(("kind", "layout"), [("bert", "true"), ("gpt2", "false")])
def test_a_run_with_auto_is_that_of_the_layout_it_chose(
    kind: str, layout: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after it was cut off."""
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    if kind == "bert":
        place, data = save_encoder("bert", tmp_path / "m"), write_csv(tmp_path / "a.csv")
        task = "sentiment"
    else:
        place, task = save_decoder("gpt2", tmp_path / "m"), "text"
        data = write_lines(tmp_path / "a.jsonl", [{"text": "abcde"}] * 48)
    job = ["train", "--task", task, "--data", str(data), "--model", str(place), *FAST, "--out"]
    said = run([*job, str(tmp_path / "auto"), "train.steps=4"])
    assert (re.search(r"packed [\d,]+, as here", said) is not None) == (kind == "bert")
    assert ("so few take longer packed" in said) == (kind == "gpt2")
    run([*job, str(tmp_path / "asked"), f"model.packed={layout}", "train.steps=4"])
    assert losses(tmp_path / "auto") == losses(tmp_path / "asked")
    words = [*job, str(tmp_path / "cut")]
    run([*words, "train.steps=2"])
    run([*words, "train.steps=4"])
    assert losses(tmp_path / "cut") == losses(tmp_path / "auto")
