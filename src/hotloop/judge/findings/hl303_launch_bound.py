"""HL303: the model is made of many short operations

What it means. The step is made of operations so short that starting them, one by one from Python,
takes longer than what they compute. On a GPU it idles between them.

Evidence. `mean_operation_s`: mean length of the operations that compute, seen by torch's profiler;
reported below 20 us. `operations_per_step`. On a CPU `launch_fraction`: forward and backward without
the operations that are longer than that. On a GPU: the share in which it idled, waits for data, syncs
and what else the host does outside of the model left out. Reported from 0.15 (XProf's and TraceLens's
limit). `compiled`: not seen to be.

Gain at most. On a CPU `1 / (1 - launch_fraction)`: only the long operations remain. On a GPU
`1 / (0.8 (1 - launch_fraction))`: it never idles, and fused kernels take up to a fifth less.

Remedy. `compile`: `torch.compile` on the model joins operations and starts them in one go. A larger
batch makes each operation longer, but changes the training. To test it: the same steps with and
without, in turns, the compiling left out.

What can go wrong. As for HL302. `mode="reduce-overhead"` goes further on a GPU, and is known to give
wrong gradients with gradient accumulation (pytorch 169545): not without comparing losses.
"""

from __future__ import annotations

from hotloop.judge.judged_run import Found, JudgedRun, gain_without
from hotloop.judge.operations import Operations
from hotloop.judge.thresholds import LAUNCH, SHORT_OPERATION_S

FUSED_KERNELS = 0.8
"""The least share of their time that kernels take after fusing."""
OUTSIDE = ("data_wait", "sync", "checkpoint", "eval", "logging", "unattributed", "grad_sync")


def find(run: JudgedRun) -> Found | None:
    seen = run.operations
    if seen is None or run.census.compiled:
        return None
    mean = seen.mean_s()
    if mean is None or mean >= SHORT_OPERATION_S:
        return None
    share = launch_share(run, seen)
    if not LAUNCH <= share < 1:
        return None
    return Found(
        share=share,
        gain_at_most=gain_without(share) / (1 if seen.on_cpu else FUSED_KERNELS),
        evidence={
            "mean_operation_s": mean,
            "operations_per_step": seen.num(seen.is_operation),
            "launch_fraction": share,
            "compiled": str(run.census.compiled),
        },
        optimization="compile",
        advice="Compile the model with torch.compile.",
    )


def launch_share(run: JudgedRun, seen: Operations) -> float:
    """The share in which short operations are started: on a GPU, in which it idled for them."""
    if seen.on_cpu:
        return run.host("forward", "backward") - seen.long_share(SHORT_OPERATION_S)
    return idle_inside(run)


def idle_inside(run: JudgedRun) -> float:
    """The share in which a device idled for nothing that the host does outside of the model."""
    return run.device("idle") - sum(run.exposed_phase(phase) for phase in OUTSIDE)
