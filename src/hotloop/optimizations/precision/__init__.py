"""Mixed precision: matrix products in a dtype that the hardware computes faster than fp32.

Weights, gradients and optimizer state stay fp32 (Micikevicius et al. 2018); `torch.autocast` casts
at the products. bf16 has the range of fp32 and needs no scaler; fp16 does not and does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.ceilings import PRECISION_DTYPES, faster_than_fp32
from hotloop.hardware.limits import Machine
from hotloop.optimizations.optimization import Choice, Optimization
from hotloop.optimizations.source_edit import AroundCall, ScaledLoss, SetUp, SourceEdit


def _choose(machine: Machine, config: Mapping[str, Any]) -> Choice:
    faster = faster_than_fp32(machine.fast_dtypes)
    if "bfloat16" in faster:
        return Choice("bf16", "the hardware multiplies bf16 faster")
    if "float16" in faster:
        return Choice("fp16", "the hardware multiplies fp16 faster, and has no bf16")
    return Choice("fp32", "this hardware multiplies no smaller dtype faster")


def _why_not(machine: Machine, value: Any, config: Mapping[str, Any]) -> str | None:
    if value == "tf32" and machine.device_type != "cuda":
        return "tf32 is a mode of NVIDIA GPUs; this run is on the CPU"
    name = PRECISION_DTYPES[value]
    if value == "fp32" or name in faster_than_fp32(machine.fast_dtypes):
        return None
    if name in machine.fast_dtypes:
        return f"this device multiplies {name} slower than float32"
    return f"{name} is only emulated on this device"


INIT_SCALE = 2.0**14
"""Of the gradient scaler for fp16 in a script. torch begins at 2^16, where the gradient of a mean over one element
overflows already, and the first updates are left out; 2^14 grows to that within 4000 steps."""
_SCALER = "grad_scaler"
_MAKE_SCALER = f'{_SCALER} = torch.amp.GradScaler("DEVICE", init_scale={INIT_SCALE})\n\n\n'
_HEAD = '''def in_SHORT(model, /, *args, **kwargs):
    """model(*args, **kwargs) with its matrix products in DTYPE; what it gives is float32, as before."""
    if not torch.is_grad_enabled():
        return model(*args, **kwargs)
    with torch.autocast("DEVICE", dtype=torch.DTYPE):
        made = model(*args, **kwargs)
'''
_TAILS = {
    "tensor": """\
    return made.float() if made.dtype == torch.DTYPE else made
""",
    "tuple": """\
    return tuple(
        each.float() if torch.is_tensor(each) and each.dtype == torch.DTYPE else each for each in made
    )
""",
    "any": """\
    return as_float32(made)


def as_float32(made):
    if torch.is_tensor(made):
        return made.float() if made.dtype == torch.DTYPE else made
    if isinstance(made, dict):
        for key, value in made.items():
            made[key] = as_float32(value)
        return made
    if isinstance(made, tuple) and hasattr(made, "_fields"):
        return type(made)(*map(as_float32, made))
    if isinstance(made, (list, tuple)):
        return type(made)(map(as_float32, made))
    return made
""",
}


def _source_edit(value: Any, facts: Mapping[str, Any]) -> SourceEdit | str:
    """What the live form does, and nothing else: the loss outside the model stays out of autocast."""
    if value == "tf32":
        return SetUp(
            (
                "torch.backends.cuda.matmul.allow_tf32 = True",
                "torch.backends.cudnn.allow_tf32 = True",
            )
        )
    if "device_type" not in facts:
        return "its live form did not say where"
    device_type, dtype = facts["device_type"], PRECISION_DTYPES[value]
    text = _HEAD + _TAILS[facts.get("made", "any")]
    words = (
        f'call the model under `torch.autocast("{device_type}", dtype=torch.{dtype})`, and turn what it '
        "gives to float32 after it"
    )

    def filled(template: str) -> str:
        for blank, given in (("DEVICE", device_type), ("DTYPE", dtype), ("SHORT", value)):
            template = template.replace(blank, given)
        return template

    if value == "bf16":
        return AroundCall(f"in_{value}", filled(text), words)
    scaled = filled(
        f"; make `{_MAKE_SCALER.strip()}` once, and write `{_SCALER}.scale(loss).backward()`, "
        f"`{_SCALER}.unscale_(optimizer)` before gradients are clipped, `{_SCALER}.step(optimizer)` and "
        f"`{_SCALER}.update()`"
    )
    return ScaledLoss(f"in_{value}", filled(_MAKE_SCALER + text), words + scaled, _SCALER)


_SPEEDUP = (1.8, 4.0)
"""Speed of products in the shorter type: what CPUs with AVX512-BF16 or AMX gave public scripts."""
_CAST_S = (1e-5, 4e-5)
"""Casting what goes into a product and what comes back."""
_OTHERS = (0.0, 0.4)
"""Share of other long operations that goes: they move half the bytes at best, and stay fp32 at worst."""


def _expect(evidence: Mapping[str, Any], value: Any) -> tuple[float, float] | None:
    """What products and the operations after them save, less the casts.

    saved = products (1 - 1 / speedup - cast / length of a product) + others x their share
    """
    if "tf32" in str(evidence.get("fast_dtypes")):
        return None  # an NVIDIA GPU: neither its casts nor its products are those of a CPU
    products, length = evidence.get("product_fraction"), evidence.get("product_s")
    others = evidence.get("others_fraction") or 0.0
    if not products or not length:
        return None
    least, most = (
        products * (1 - 1 / speedup - cast / length) + share * others
        for speedup, cast, share in zip(_SPEEDUP, reversed(_CAST_S), _OTHERS, strict=True)
    )
    return 1 / (1 - least), 1 / (1 - most)


PRECISION = Optimization(
    name="precision",
    summary="Matrix products in bf16, fp16 or tf32 instead of fp32; weights and optimizer stay fp32.",
    parity_class="reduced_precision",
    key="train.precision",
    off="fp32",
    settings=("bf16", "fp16", "tf32"),
    argument="dtype",
    choose=_choose,
    why_not=_why_not,
    is_only_slow=lambda value: value != "tf32",
    observed=lambda census, value: (
        PRECISION_DTYPES[value] in census.matmul_dtypes if census.matmul_dtypes else None
    ),
    answers=("HL301",),
    source_form="with torch.autocast(device_type, dtype=torch.bfloat16):\n    loss = model(x, y)\n"
    "# float16 needs a torch.amp.GradScaler as well; Lightning does both with Trainer(precision='16-mixed')",
    source_edit=_source_edit,
    trainer_arguments=lambda value, applied_to: f"{value}=True",
    leaves="a script that autocasts; a model no product of which ran in the shorter type; for fp16, a "
    "script in which gradients could be read while they are scaled: several optimizers, closures, gradient hooks",
    expect=_expect,
    risks=(
        "fp16 overflows: its scaler leaves such an update out and halves the scale. Emulated dtypes are "
        "slower than fp32. Sums over many terms lose digits: the loss stays fp32."
    ),
)
