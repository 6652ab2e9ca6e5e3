"""HL308: the compiled model falls apart into many graphs

What it means. Where torch.compile meets something that it can not compile (a print, `.item()`, a
library) it ends the graph, runs that in Python, and begins another. Each seam costs time, and nothing
is fused across it.

Evidence. `num_graph_breaks`, `num_graphs`: counted by torch. `break_fraction`: breaks times 0.1 ms, what
a seam costs by experience, over the median step; reported from 0.05.

Gain at most. `1 / (1 - break_fraction)`. This is loose: the seams are counted, their cost is not
measured, and what fusing across them brings shows only when tried.

Remedy. `TORCH_LOGS=graph_breaks` names each place. Move prints and `.item()` out of the model; mark
what can not be compiled with `torch.compiler.disable`. To test it: `fullgraph=True` fails at the first.

No fix. What breaks a graph is a line of the model's author, to be moved or written otherwise.

What can go wrong. Capturing values as they are (`capture_scalar_outputs`) makes recompiles more likely.
"""

from __future__ import annotations

from hotloop.judge.judged_run import Found, JudgedRun
from hotloop.judge.thresholds import GRAPH_BREAK_S, NOTICEABLE


def find(run: JudgedRun) -> Found | None:
    census = run.census
    if not census.compiled or not census.num_graph_breaks:
        return None
    share = min(census.num_graph_breaks * GRAPH_BREAK_S / run.breakdown.median_s, 0.5)
    if share < NOTICEABLE:
        return None
    return Found(
        share=share,
        gain_is_loose=True,
        evidence={
            "num_graph_breaks": census.num_graph_breaks,
            "num_graphs": census.num_graphs,
            "break_fraction": share,
        },
        advice="Run once with TORCH_LOGS=graph_breaks: it names each place; move prints and .item() "
        "out of the model.",
    )
