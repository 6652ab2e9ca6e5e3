"""HL701: training stands still while it saves

What it means. Checkpoints are written by the training process, and no step is made meanwhile.

Evidence. `checkpoint_fraction`: seconds of saving over wall time, from one save to the last, so over
whole intervals (a run that ended by itself: over all of it); reported from 0.02. `num_saves` seen,
`steps_between`, `seconds_per_save`, `num_bytes`. One save alone says nothing about how often it comes.
`set_by`: the argument of a Trainer around the loop that sets how often it saves, as it is (`save_steps=50`).

Gain at most. `1 / (1 - checkpoint_fraction)`: saving costs nothing. Saving `k` times more rarely brings at most
`1 / (1 - checkpoint_fraction (1 - 1/k))`: `gain_half_as_often`, `gain_tenth_as_often` (left out where the
whole run saves fewer than ten times). These are computed, not measured: each save is taken to cost the same.

Remedy. Write beside the next steps what was copied in memory (`hotloop.checkpoint.save_in_background()`, which is tried; of
several processes `torch.distributed.checkpoint.async_save`); save less often: how much a crash may lose is its author's choice;
leave out what can be computed again.

What can go wrong. Less often means more steps lost when it fails; with `load_best_model_at_end` of transformers'
Trainer `save_steps` has to be a multiple of `eval_steps`. A thread that writes needs memory for
a second copy, and what it copies must not be changed before the copy is complete.
"""

from __future__ import annotations

from hotloop.judge.judged_run import Found, JudgedRun, costliest
from hotloop.judge.less_often import less_often
from hotloop.judge.thresholds import SAVING


def find(run: JudgedRun) -> Found | None:
    census = run.census
    found = run.recurring("checkpoint")
    if found is None or not run.is_foreign:
        return None
    share = run.exposed(found.share)
    if share < SAVING:
        return None
    seconds = sum(save.seconds for save in census.saves)
    # `os.fsync` and `os.replace` after it belong to the same save.
    num = sum(save.num for save in census.saves if not save.what.startswith("os."))
    fewer, sentence = less_often(run, "checkpoint", share, seen=found, call=costliest(census.saves))
    return Found(
        share=share,
        site=run.site_of(census.saves, "checkpoint"),
        evidence={
            "checkpoint_fraction": share,
            "num_saves": num or found.num,
            "steps_between": found.every,
            "seconds_per_save": seconds / num if num else None,
            "num_bytes": sum(save.num_bytes or 0 for save in census.saves) or None,
            **fewer,
        },
        advice=f"Write beside the steps what was copied in memory, or save less often.{sentence}",
        optimization="background_saves",
    )
