"""HL301: matrix products run in float32 on a device that is faster in a shorter type

What it means. Every matrix product was computed in float32, and this device multiplies bfloat16 or
float16 faster (tensor cores, AMX, AVX512-BF16), often several times.

Evidence. `matmul_dtypes`: the types seen, only float32. `fast_dtypes`: what the device does faster,
from `hardware`. `forward_backward_fraction`: share of wall time in the two phases that multiply.

Gain at most. `1 / (1 - forward_backward_fraction)`. This is loose: it takes forward and backward as
nothing but products, and those as free. What is real follows from measuring it.

Remedy. `precision`: autocast to bfloat16; the weights, gradients and optimizer state stay float32.

What can go wrong. Rounding: losses differ by about 1e-4 (the parity band allows 2e-3). float16 needs a
gradient scaler. Small products gain nothing, and casts cost time: a small model may become slower.
"""

from __future__ import annotations

from hotloop.core.judgement import Breakdown, Finding
from hotloop.core.measurement import Measurement

CODE = "HL301"
TITLE = "Matrix products run in float32"
THRESHOLD = 0.2
"""Share of forward and backward from which their arithmetic matters."""
SHORT_TYPES = ("bfloat16", "float16")


def find(measurement: Measurement, breakdown: Breakdown) -> Finding | None:
    census = measurement.census
    if census is None or census.matmul_dtypes != ("float32",):
        return None
    faster = [name for name in SHORT_TYPES if name in census.fast_dtypes]
    share = breakdown.fractions.get("forward", 0.0) + breakdown.fractions.get("backward", 0.0)
    if not faster or not THRESHOLD <= share < 1:
        return None
    return Finding(
        code=CODE,
        title=TITLE,
        gain_at_most=1 / (1 - share),
        gain_is_loose=True,
        evidence={
            "matmul_dtypes": "float32",
            "fast_dtypes": ", ".join(faster),
            "forward_backward_fraction": share,
        },
        optimization="precision",
        advice=f"Compute matrix products in {faster[0]}; weights stay float32.",
    )
