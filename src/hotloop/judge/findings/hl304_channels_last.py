"""HL304: convolutions in half precision run channels first

What it means. Tensor cores compute convolutions on channels-last tensors (NHWC). Given channels-first
ones, cuDNN turns them around before and after.

Evidence. `convolution_fraction`: share of a step in convolutions, seen by torch's profiler; reported
from 0.3. `channels_last`: the weights are not. `dtype`: half precision.

Gain at most. `1 / (1 - 0.3 convolution_fraction)`: a third of the convolutions' time is the most that
has been reported.

Remedy. `channels_last`: `model.to(memory_format=torch.channels_last)` and the images likewise. To test
it: the same steps with both, in turns.

What can go wrong. Grouped and depthwise convolutions can become many times slower (pytorch 34977:
35 times in half precision). An operation without a channels-last form turns every tensor around.
"""

from __future__ import annotations

from hotloop.judge.judged_run import Found, JudgedRun
from hotloop.judge.operations import HALF, is_convolution
from hotloop.judge.thresholds import CONVOLUTIONS, LAYOUT_GAIN


def find(run: JudgedRun) -> Found | None:
    seen = run.operations
    if run.census.channels_last is not False or seen is None or seen.on_cpu:
        return None
    share = seen.share(lambda use: is_convolution(use) and use.dtype in HALF)
    if share < CONVOLUTIONS:
        return None
    return Found(
        share=LAYOUT_GAIN * share,
        site=seen.site(is_convolution),
        evidence={"convolution_fraction": share, "channels_last": "False"},
        optimization="channels_last",
        advice="Try model.to(memory_format=torch.channels_last), and the images likewise.",
    )
