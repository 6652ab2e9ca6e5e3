"""HL602: every step searches for parameters that were not used

What it means. With `find_unused_parameters=True` each step walks through its graph for parameters that get no
gradient, and the processes tell each other which; buckets stay in the order of the model, not of the pass
backward. It found none.

Evidence. `unused_bytes`: parameters without gradient in the first ten steps, as torch's own log of them says; 0.
`forward_backward_fraction`: share of the time in forward and backward; reported from 0.05. `num_ranks`.

Gain at most. `1 / (1 - forward_backward_fraction)`, which is loose: no breakdown of a step tells what the search
takes. Two processes on a CPU: 6 % of a step with 24 layers of 256, 12 % with 60 of 64.

Remedy. `ddp_unused_search`: leave the argument out. To test it: the same steps with and without, in turns.

What can go wrong. A parameter that is not used in some later step ends the training with an error, or has the
processes wait for each other where it is used on some of them: leave the search on where parts of the model run in some
steps only. Not found where the graph was said to be static.
"""

from __future__ import annotations

from hotloop.judge.judged_run import Found, JudgedRun
from hotloop.judge.thresholds import NOTICEABLE


def find(run: JudgedRun) -> Found | None:
    ddp = run.census.ddp
    if ddp is None or not ddp.find_unused_parameters or ddp.unused_bytes != 0:
        return None
    share = run.host("forward", "backward")
    if share < NOTICEABLE or (run.census.num_ranks or 1) < 2:
        return None
    return Found(
        share=share,
        gain_is_loose=True,
        evidence={
            "unused_bytes": ddp.unused_bytes,
            "forward_backward_fraction": share,
            "num_ranks": run.census.num_ranks,
        },
        optimization="ddp_unused_search",
        advice="Leave find_unused_parameters=True out where every step uses the whole model.",
    )
