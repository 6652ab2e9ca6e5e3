"""HL305: convolution algorithms are not chosen by trial

What it means. cuDNN picks an algorithm for each convolution by rules of thumb. With
`torch.backends.cudnn.benchmark` it times them once per shape and keeps the fastest.

Evidence. `convolution_fraction`: share of a step in convolutions, seen by torch's profiler; reported
from 0.3. `input_shapes`: distinct shapes the model was called with; at most 3. `cudnn_benchmark`: off.

Gain at most. `1 / (1 - 0.2 convolution_fraction)`: a fifth of the convolutions' time, by experience.

Remedy. `cudnn_benchmark`: `torch.backends.cudnn.benchmark = True` before the first step. To test it:
the same steps with both, in turns, the first ones left out.

What can go wrong. Every new shape is timed again: with changing shapes it is slower. Algorithms, and
so the last bits of losses, can differ between runs. It needs workspace memory.
"""

from __future__ import annotations

from hotloop.judge.judged_run import Found, JudgedRun
from hotloop.judge.operations import is_convolution
from hotloop.judge.thresholds import CONVOLUTIONS, TUNED_GAIN, TUNED_SHAPES


def find(run: JudgedRun) -> Found | None:
    seen = run.operations
    if run.census.cudnn_benchmark is not False or seen is None or seen.on_cpu:
        return None
    share = seen.share(is_convolution)
    shapes = run.census.input_shapes
    if share < CONVOLUTIONS or shapes is None or not 0 < shapes <= TUNED_SHAPES:
        return None
    return Found(
        share=TUNED_GAIN * share,
        site=seen.site(is_convolution),
        evidence={
            "convolution_fraction": share,
            "input_shapes": shapes,
            "cudnn_benchmark": "False",
        },
        optimization="cudnn_benchmark",
        advice="Set torch.backends.cudnn.benchmark = True before the first step.",
    )
