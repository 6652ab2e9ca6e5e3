"""HL301: matrix products run in float32 on a device that is faster in a shorter type

What it means. Every matrix product was computed in float32, and this device multiplies bfloat16 or
float16 faster (tensor cores, AMX, AVX512-BF16), often several times.

Evidence. `matmul_dtypes`: the types seen, only float32. `fast_dtypes`: what the device does faster,
from `hardware`. `product_fraction`: share of a step in float32 products and convolutions, seen by
torch's profiler; reported from 0.2. Where that was not looked at: `forward_backward_fraction`, the
share of wall time in the two phases that multiply. Site: the line most seen in forward while it called
a linear or convolution layer.

Gain at most. `1 / (1 - product_fraction)`: products that take no time. bfloat16 is usually 2 to 4
times as fast, tf32 1.5 to 3. Without a look at the operations `1 / (1 - forward_backward_fraction)`,
which is loose: it takes forward and backward as nothing but products.

Remedy. `precision`: autocast to bfloat16; the weights, gradients and optimizer state stay float32.
On NVIDIA GPUs from Ampere on `torch.set_float32_matmul_precision("high")` alone gives tf32.
To test it: the same steps with both, in turns, and compare the losses as well.

What can go wrong. Rounding: losses differ by about 1e-4 (the parity band allows 2e-3). float16 needs a
gradient scaler. Small products gain nothing, and casts cost time: a small model may become slower.
"""

from __future__ import annotations

from hotloop.core.judgement import Breakdown, Finding
from hotloop.core.measurement import Measurement
from hotloop.judge.exposure import gain_without, is_foreign
from hotloop.judge.model_lines import products_line
from hotloop.judge.operations import FLOAT32, is_product, operations
from hotloop.judge.thresholds import PRODUCTS

CODE = "HL301"
TITLE = "Matrix products run in float32"
SHORT_TYPES = ("bfloat16", "float16", "tf32")


def find(measurement: Measurement, breakdown: Breakdown) -> Finding | None:
    census = measurement.census
    if census is None or census.matmul_dtypes != ("float32",):
        return None
    faster = [name for name in SHORT_TYPES if name in census.fast_dtypes]
    if not faster:
        return None
    seen = operations(measurement)
    site = None
    if seen is not None:
        name = "product_fraction"
        share = seen.share(lambda use: is_product(use) and (use.dtype or "float32") in FLOAT32)
        site = seen.site(is_product) or products_line(census)
    elif is_foreign(census):
        return None  # how much of the step are products? not_examined says that this is not known
    else:
        name = "forward_backward_fraction"
        share = breakdown.fractions.get("forward", 0.0) + breakdown.fractions.get("backward", 0.0)
    if not PRODUCTS <= share < 1:
        return None
    return Finding(
        code=CODE,
        title=TITLE,
        gain_at_most=gain_without(share),
        gain_is_loose=seen is None,
        site=site,
        evidence={
            "matmul_dtypes": "float32",
            "fast_dtypes": ", ".join(faster),
            name: share,
        },
        optimization="precision",
        advice=_advice(faster[0]),
    )


def _advice(dtype: str) -> str:
    if dtype == "tf32":
        return 'Call torch.set_float32_matmul_precision("high") once at the start.'
    return f"Compute matrix products in {dtype}; weights stay float32."
