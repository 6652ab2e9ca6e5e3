"""HL302: the model runs eagerly

What it means. Each operation is started from Python on its own and writes its result to memory before
the next reads it. A compiler fuses chains of small operations and drops the Python in between.

Evidence. `compiled`: False, as seen in the process. `elementwise_fraction`: share of a step in
operations that a compiler joins with their neighbours (formulas that are written out; not torch's own
activations and norms, and no copies), seen by torch's profiler; on a CPU less the time in which a
dataset, the script's own code or an optimizer that is not fused may have computed with the same
operations, and at most forward and backward; reported from 0.2, unless most operations are so short
that starting them is what costs (HL303). Where that was not looked at: `forward_backward_fraction`.
Site: the line most seen in forward while it called single operations itself.

Gain at most. `1 / (1 - elementwise_fraction)`: those operations take no time. About half of it is
usual, since one pass over the memory remains. Without a look at the operations
`1 / (1 - forward_backward_fraction)`, which is loose: no breakdown of a step tells how much of forward
and backward a compiler can remove.

Remedy. `compile`: `torch.compile` on the model. To test it: the same steps with and without, in turns,
the compiling left out; then weigh the seconds it took against the steps that are left.

What can go wrong. Compiling takes from seconds to minutes before the first step; short trainings never
earn it back. Changing shapes compile again. Models with many graph breaks can become slower. Dropout
draws other random numbers, so losses differ although nothing is wrong. CPUs need a C++ compiler.
"""

from __future__ import annotations

from hotloop.judge.findings import hl303_launch_bound
from hotloop.judge.judged_run import Found, JudgedRun
from hotloop.judge.operations import is_elementwise, is_updating
from hotloop.judge.own_code import formula_line
from hotloop.judge.thresholds import FUSABLE


def find(run: JudgedRun) -> Found | None:
    census = run.census
    if census.compiled is not False:
        return None
    share = run.host("forward", "backward")
    name = "forward_backward_fraction"
    seen = run.operations
    site = None
    if seen is not None:
        if hl303_launch_bound.find(run) is not None:
            return None  # the same cause and the same remedy
        name = "elementwise_fraction"
        fused = seen.share(lambda use: is_elementwise(use) and not is_updating(use))
        if seen.on_cpu:
            # The profiler also sees what a dataset or an optimizer computes, with the same operations.
            others = ["data_wait", "unattributed"]
            if "(fused)" not in (census.optimizer or ""):
                others.append("optimizer")
            fused = min(fused - run.host(*others), share)
        share = fused
        site = seen.site(is_elementwise) or formula_line(run.lines("forward"))
    elif run.is_foreign:
        return None
    if not FUSABLE <= share < 1:
        return None
    return Found(
        share=share,
        gain_is_loose=seen is None,
        site=site,
        evidence={"compiled": "False", name: share},
        optimization="compile",
        advice="Compile the model with torch.compile.",
    )
