"""HL808: settings for debugging are on

What it means. A setting that helps to find errors, and makes every step slower, was left on:
`use_deterministic_algorithms` (every allocation is filled, `fill_uninitialized_memory`; on a GPU slower
kernels, too, as with `cudnn.deterministic`), `CUDA_LAUNCH_BLOCKING` (the host waits for each kernel),
`TORCH_DISTRIBUTED_DEBUG=DETAIL` (each collective is checked by another one), a profiler over most steps.

Evidence. `switches`: those on, with the lines that turned them on. By the cost of each: `fill_fraction`, share
of a step in filling memory, seen by torch's profiler; `idle_fraction` of the device, with
`CUDA_LAUNCH_BLOCKING`; else `forward_backward_fraction`. Reported from 0.05. Deterministic algorithms on a CPU
are reported for their filling alone: with that off, steps of five small models took as long as without them.

Gain at most. `1 / (1 - fraction)` of the largest, which is loose: nothing tells how much of forward and
backward goes into the rest. On a CPU filling cost 4 % with small convolutions and 22 % with a large embedding.

Remedy. `uninitialized_fill`: filling off, deterministic algorithms stay. `debug_environment`: variables of the
environment are left out. `determinism` shows what deterministic algorithms cost: whether to have them is your
choice. Autograd's anomaly detection is HL807.

No fix for a profiler: the script reads what it recorded. `torch.profiler.schedule` limits it to a few steps.

What can go wrong. Without deterministic algorithms losses of two runs differ in their last bits. Without
the variables an error is reported later, or at another place. What `TORCH_LOGS` writes while compiling is no
finding; lines written in each step are HL703.
"""

from __future__ import annotations

from hotloop.core.census import FILLED
from hotloop.judge.judged_run import Found, JudgedRun
from hotloop.judge.thresholds import NOTICEABLE

_ADVICE = {
    "fill_uninitialized_memory": "set torch.utils.deterministic.fill_uninitialized_memory = False, deterministic "
    "algorithms stay",
    "CUDA_LAUNCH_BLOCKING": "run it without CUDA_LAUNCH_BLOCKING",
    "TORCH_DISTRIBUTED_DEBUG": "run it without TORCH_DISTRIBUTED_DEBUG=DETAIL",
    "use_deterministic_algorithms": "leave out torch.use_deterministic_algorithms(True) where runs need not repeat "
    "to the bit",
    "cudnn.deterministic": "leave out torch.backends.cudnn.deterministic = True where runs need not repeat to the bit",
    "profiler": "profile a few steps, by torch.profiler.schedule",
}
_FIXES = {
    "fill_uninitialized_memory": "uninitialized_fill",
    "CUDA_LAUNCH_BLOCKING": "debug_environment",
    "TORCH_DISTRIBUTED_DEBUG": "debug_environment",
}


def find(run: JudgedRun) -> Found | None:
    switches = run.census.debug_switches
    if not run.is_foreign or not switches:
        return None
    shares = _shares(run)
    costly = [each for each in switches if shares.get(each.name, ("", 0.0))[1] >= NOTICEABLE]
    if not costly:
        return None
    words = "; ".join(_ADVICE[each.name] for each in costly)
    return Found(
        share=max(shares[each.name][1] for each in costly),
        gain_is_loose=True,
        site=next((each.site for each in costly if each.site), None),
        evidence={
            "switches": ", ".join(f"{x.name} ({x.site or 'environment'})" for x in costly),
            **dict(shares[each.name] for each in costly),
        },
        optimization=next((_FIXES[x.name] for x in costly if x.name in _FIXES), None),
        advice=f"{words[0].upper()}{words[1:]}.",
    )


def _shares(run: JudgedRun) -> dict[str, tuple[str, float]]:
    """By setting: the share of a step that it may cost on this device, and what that share is of."""
    seen = run.operations
    passes = run.host("forward", "backward")
    filling = seen.share(lambda use: use.name == FILLED) if seen is not None else 0.0
    shares = {
        "fill_uninitialized_memory": ("fill_fraction", filling),
        "profiler": ("forward_backward_fraction", passes),
    }
    if (run.census.num_ranks or 1) > 1:
        shares["TORCH_DISTRIBUTED_DEBUG"] = ("forward_backward_fraction", passes)
    if not run.on_cpu:
        idle = run.device("idle")
        shares |= {
            "CUDA_LAUNCH_BLOCKING": ("idle_fraction", idle),
            "use_deterministic_algorithms": ("forward_backward_fraction", passes),
            "cudnn.deterministic": ("forward_backward_fraction", passes),
        }
    return shares
