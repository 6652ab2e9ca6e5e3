"""HL504: gradients are accumulated over more microbatches than memory demands

What it means. A step is made of several microbatches, each a forward and a backward, and memory would hold
larger ones: fewer of them for the same samples, and the same operations started fewer times.

Evidence. `microbatches`: passes backward per step, as many as batches of the loader that trains.
`fewest_microbatches`: the fewest for which `peak_bytes` times the growth of a microbatch stays below 0.8 of
`memory_bytes`, of the GPU or else of what this process may use. `launch_fraction`: as of HL303; reported
from 0.15. Not reported where a step has several updates or processes, as of a GAN, and where memory is not known.

Gain at most. `1 / (1 - launch_fraction (1 - fewest_microbatches / microbatches))`: operations are started as
many times less. This is loose: products of more rows may compute faster, too, and on a CPU larger tensors
may leave its caches.

Remedy. `larger_microbatch`: a microbatch several times as large, and as many times fewer of them, with
transformers' Trainer. In a loop of your own: a larger `batch_size` of the loader and a smaller divisor
of the loss. To test it: the same steps with each, in turns.

What can go wrong. What a model computes over a microbatch becomes another thing: BatchNorm, losses that compare
the samples of a batch, a mean over tokens where microbatches have different numbers of them. Batches that are
padded to their longest sample have more padding. The longest batch decides whether memory suffices.
"""

from __future__ import annotations

from hotloop.judge.accumulation import accumulated, fewer_that_fit, peak_bytes
from hotloop.judge.findings.hl303_launch_bound import launch_share
from hotloop.judge.judged_run import Found, JudgedRun
from hotloop.judge.thresholds import LAUNCH


def find(run: JudgedRun) -> Found | None:
    census, seen = run.census, run.operations
    host_limit = run.measurement.environment.memory_limit_bytes
    number, fewer = accumulated(census), fewer_that_fit(census, host_limit)
    if seen is None or number is None or not fewer:
        return None
    launch = launch_share(run, seen)
    if not LAUNCH <= launch < 1:
        return None
    return Found(
        share=launch * (1 - fewer[0] / number),
        gain_is_loose=True,
        evidence={
            "microbatches": number,
            "fewest_microbatches": fewer[0],
            "launch_fraction": launch,
            "peak_bytes": peak_bytes(census),
            "memory_bytes": host_limit if run.on_cpu else census.device_memory_bytes,
        },
        optimization="larger_microbatch",
        advice=f"Make each microbatch {number // fewer[0]} times as large and accumulate over {fewer[0]}: the same "
        "samples per step.",
    )
