"""What evaluating, saving or logging less often would bring: arithmetic on the share of time that it takes."""

from __future__ import annotations

import re

from hotloop.core.census import CallUse
from hotloop.judge.judged_run import JudgedRun, Recurring, gain_without

Evidence = dict[str, float | int | str | None]
_TRAINERS = ("transformers.", "lightning.", "pytorch_lightning.")


def less_often(
    run: JudgedRun, phase: str, share: float, *, seen: Recurring | None, call: CallUse | None
) -> tuple[Evidence, str]:
    """Ratios with half and a tenth of it, and the argument that sets how often it comes: as evidence, and a sentence.

        ratio = 1 / (1 - share (1 - 1 / fewer))        (Amdahl)

    seen: where it does not come in every step. call: the costliest of its calls; an evaluation has none.
    """
    if seen is not None and seen.num < 2:
        return {}, ""
    half, tenth = (gain_without(share * (1 - 1 / fewer)) for fewer in (2, 10))
    evidence: Evidence = {"gain_half_as_often": half}
    sentence = f"Half as often: at most {half:.2f}x"
    if seen is None or seen.num >= 10 or run.measurement.returncode != 0:  # else a tenth is none
        evidence["gain_tenth_as_often"] = tenth
        sentence += f", a tenth as often: at most {tenth:.2f}x"
    if setting := _setting(run.census.how_often.get(phase), seen, call):
        evidence["set_by"] = setting
        sentence += f"; set by `{setting}`"
    return evidence, f" {sentence}."


def _setting(setting: str | None, seen: Recurring | None, call: CallUse | None) -> str | None:
    """The Trainer's argument, unless the script does it by itself, or oftener or more rarely than that says."""
    if setting is None:
        return None
    if call is not None and not (
        (call.inside or "").startswith(_TRAINERS) and not call.what.startswith("tqdm")
    ):
        return None
    steps = re.fullmatch(r"\w+=(\d{1,9})", setting)
    if steps and seen is not None and not 0.5 <= seen.every / max(int(steps[1]), 1) <= 1.1:
        return None
    return setting
