"""HL301: matrix products run in float32 or tf32

What it means. Every matrix product was computed in float32, or in the tf32 that NVIDIA GPUs can round it to, and
this device multiplies bfloat16 or float16 faster (tensor cores, AMX, AVX512-BF16 of AMD), often several times.

Evidence. `matmul_dtypes`: the types seen, only these two. `fast_dtypes`: what the device does faster,
from `hardware`. `product_fraction`: share of a step in float32 products, convolutions and fused
attention, seen by torch's profiler; reported from 0.2. `product_s`: how long one of them takes on average.
`others_fraction`: share of a step in other float32 operations of forward and backward that are long
enough for memory to set their pace. Where that was not looked at: `forward_backward_fraction`, the
share of wall time in the two phases that multiply. Site: the line most seen in forward while it called
a linear or convolution layer.

Gain at most. `1 / (1 - 15/16 product_fraction - others_fraction / 2)`: products that are 16 times as
fast, more than matrix units give over plain float32 (over tf32 4 times, where they give 2), and other operations that move half the bytes,
since what follows a product in bfloat16 is in bfloat16 too. A product in bfloat16 is usually 2 to 4 times
as fast, in tf32 1.5 to 3. Without a look at the operations `1 / (1 - forward_backward_fraction)`, which is
loose: it takes forward and backward as nothing but products. So it is where threads wait for CPUs that other
programs hold (HL803), which draws out each product, the smallest most.

Remedy. `precision`: autocast to bfloat16; the weights, gradients and optimizer state stay float32. On NVIDIA
GPUs of compute capability 7 (V100, T4), which have no bfloat16, to float16 with a gradient scaler.
On NVIDIA GPUs from Ampere on `torch.set_float32_matmul_precision("high")` alone gives tf32.
To test it: the same steps with both, in turns, and compare the losses as well.

What can go wrong. Rounding: losses differ by about 1e-4 (the parity band allows 2e-3). float16
overflows: its scaler leaves such an update out. Small products gain nothing, and casts cost time: a small model may become slower.
"""

from __future__ import annotations

from hotloop.core.ceilings import faster_than_fp32
from hotloop.core.census import OperatorUse
from hotloop.judge.judged_run import Found, JudgedRun
from hotloop.judge.operations import FLOAT32, Operations, bare_name, is_product, is_updating
from hotloop.judge.own_code import products_line
from hotloop.judge.thresholds import PRODUCTS

FASTEST = {"float32": 16, "tf32": 4}
"""Times as fast a product is in a shorter type, at most."""
LONG_S = 3e-5
"""Shorter operations are paced by what launches them, not by memory."""
SHORT_TYPES = ("bfloat16", "float16", "tf32")


def find(run: JudgedRun) -> Found | None:
    census = run.census
    now = census.matmul_dtypes
    if not now or not FASTEST.keys() >= set(now):
        return None
    fast = faster_than_fp32(census.fast_dtypes)
    faster = [name for name in SHORT_TYPES if name in fast and name not in now]
    if not faster:
        return None
    seen = run.operations
    site = None
    others = 0.0
    more: dict[str, float | None] = {}
    if seen is not None:
        name = "product_fraction"
        share = seen.share(_is_float32_product)
        num = seen.num(lambda use: _is_float32_product(use) and seen.is_operation(use))
        others = seen.share(lambda use: _follows(use, seen))
        more = {
            "product_s": share * seen.step_s / num if num else None,
            "others_fraction": others,
        }
        site = seen.site(is_product) or products_line(run.lines("forward"))
    elif run.is_foreign:
        return None  # how much of the step are products? not_examined says that this is not known
    else:
        name = "forward_backward_fraction"
        share = run.host("forward", "backward")
    if not PRODUCTS <= share < 1:
        return None
    return Found(
        share=share if seen is None else share * (1 - 1 / FASTEST[now[0]]) + others / 2,
        gain_is_loose=seen is None,
        site=site,
        evidence={
            "matmul_dtypes": ", ".join(now),
            "fast_dtypes": ", ".join(faster),
            name: share,
            **more,
        },
        optimization="precision",
        advice=_advice(faster[0]),
    )


def _is_float32_product(use: OperatorUse) -> bool:
    return _multiplies(use) and (use.dtype or "float32") in FLOAT32


def _multiplies(use: OperatorUse) -> bool:
    # A GPU's kernels are of what `_scaled_dot_product_flash_attention` calls: `_flash_attention_forward`.
    return is_product(use) or "_scaled_dot_product_" in use.name or "_attention_" in bare_name(use)


def _follows(use: OperatorUse, seen: Operations) -> bool:
    """Whether it would be in the shorter type as well, and long enough to gain by that."""
    return (
        seen.is_operation(use)
        and not _multiplies(use)
        and not is_updating(use)
        and (use.dtype or "float32") in FLOAT32
        and use.num > 0
        and seen.seconds(use) / use.num > LONG_S
    )


def _advice(dtype: str) -> str:
    if dtype == "tf32":
        return 'Call torch.set_float32_matmul_precision("high") once at the start.'
    scaled = ", with a gradient scaler" if dtype == "float16" else ""
    return f"Compute matrix products in {dtype}{scaled}; weights stay float32."
