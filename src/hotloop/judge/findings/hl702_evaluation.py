"""HL702: evaluation takes a large part of the time

What it means. Between training steps the model is evaluated without gradients, and that takes a
visible share of the whole. A pass without gradients is taken for evaluating if its module is in evaluation
mode, or follows a batch of a loader that is iterated without gradients: an agent that plays does not. Where gradients were left on,
a pass is one that follows a batch of a loader from which nothing goes backward.

Evidence. `evaluation_fraction`: seconds of it over wall time, from one evaluation to the last, so over
whole intervals (a run that ended by itself: over all of it); reported from 0.15. `num_evaluations`
seen, `steps_between`. One alone says nothing about how often it comes. A forward without gradients in
every step, like that of a teacher, is part of the step and not counted. `set_by`: the argument of a Trainer
around the loop that sets how often it evaluates, as it is (`eval_steps=50`), or hotloop's own setting.

Gain at most. `1 / (1 - evaluation_fraction)`: no evaluation at all. Evaluating `k` times more rarely brings at most
`1 / (1 - evaluation_fraction (1 - 1/k))`: `gain_half_as_often`, `gain_tenth_as_often` (left out where the
whole run evaluates fewer than ten times). These are computed, not measured: each evaluation is taken to cost the same.

Remedy. Turn gradients off where they were left on (`torch.no_grad()`), which keeps no activations. Evaluate less often, or on a part of the data between and on all of it at the end; a larger
batch (no gradients are kept: often four times as large); `torch.inference_mode()`. To test it: the same
steps with each; the metric on the part against the metric on all.

No fix. How often and on what to evaluate is the author's choice: what is stopped or kept may depend on it.
What half and a tenth as often would bring is computed.

What can go wrong. Early stopping and keeping the best checkpoint see fewer points; patience that counts evaluations lasts
longer in steps.
"""

from __future__ import annotations

from hotloop.core.census import WITH_GRADIENTS
from hotloop.judge.judged_run import Found, JudgedRun
from hotloop.judge.less_often import less_often
from hotloop.judge.thresholds import EVALUATING, EVERY_STEP

FOREIGN = "Evaluate less often, on a part of the data, or with a larger batch under torch.inference_mode()."
GRADED = "Put it under torch.no_grad(): gradients are left on, for which every pass keeps what it computed. "
OWN = "Evaluate less often (eval.every_steps), or fewer sequences (eval.windows)."


def find(run: JudgedRun) -> Found | None:
    census = run.census
    found = run.recurring("eval")
    if found is None:
        return None
    is_each_step = found.num > 1 and found.every < 1 / EVERY_STEP
    if is_each_step or not EVALUATING <= found.share < 1:
        return None
    fewer, sentence = less_often(run, "eval", found.share, seen=found, call=None)
    evaluating = [loader for loader in census.loaders if not loader.trains]
    graded = any(each.what == WITH_GRADIENTS for each in census.evaluations)
    return Found(
        share=found.share,
        site=run.site_of(census.evaluations, "eval"),
        evidence={
            "evaluation_fraction": found.share,
            "num_evaluations": found.num,
            "steps_between": found.every,
            "batch_size": evaluating[0].batch_size if evaluating else None,
            **fewer,
        },
        advice=f"{GRADED if graded else ''}{FOREIGN if run.is_foreign else OWN}{sentence}",
    )
