"""HL305: the algorithms of convolutions are not chosen by trial

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

from hotloop.core.judgement import Breakdown, Finding
from hotloop.core.measurement import Measurement
from hotloop.judge.exposure import gain_without
from hotloop.judge.operations import is_convolution, operations
from hotloop.judge.thresholds import CONVOLUTIONS, TUNED_GAIN, TUNED_SHAPES

CODE = "HL305"
TITLE = "Convolution algorithms are not chosen by trial"


def find(measurement: Measurement, breakdown: Breakdown) -> Finding | None:
    census = measurement.census
    seen = operations(measurement)
    if census is None or census.cudnn_benchmark is not False or seen is None or seen.on_cpu:
        return None
    share = seen.share(is_convolution)
    shapes = census.input_shapes
    if share < CONVOLUTIONS or shapes is None or not 0 < shapes <= TUNED_SHAPES:
        return None
    return Finding(
        code=CODE,
        title=TITLE,
        gain_at_most=gain_without(TUNED_GAIN * share),
        site=seen.site(is_convolution),
        evidence={
            "convolution_fraction": share,
            "input_shapes": shapes,
            "cudnn_benchmark": "False",
        },
        optimization="cudnn_benchmark",
        advice="Set torch.backends.cudnn.benchmark = True before the first step.",
    )
