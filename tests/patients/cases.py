"""Every patient: a training script with one planted sickness, and the same training without it.

A script is a plain training script as its user would write it. `--healthy` is its twin; both make the
same batches and the same updates. How much time the sickness takes is measured, not assumed:
`live.py` runs both and holds the difference against `share`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

HERE = Path(__file__).parent
RECORDED = HERE.parent / "golden" / "patients"

Need = Literal["bf16", "cuda"]


@dataclass(frozen=True)
class Case:
    """One sickness."""

    name: str
    """Of the script, too: NAME.py."""
    code: str
    """What the doctor must name first."""
    share: float
    """Of the sick script's time, what is gone in the healthy one, at least."""
    site: str | None = None
    """Found in `function: line` of the place that must be named; `None` where it is no single place."""
    loss: float = 0.0
    """How far the two last losses may lie apart, relative; 0 where nothing is computed otherwise."""
    cpus: int = 1
    """That it may use: with one nothing else on the machine makes two threads wait for each other."""
    needs: tuple[Need, ...] = ()
    """Without which the sickness is none."""

    @property
    def script(self) -> Path:
        return HERE / f"{self.name}.py"

    def recorded(self, healthy: bool) -> Path:
        return RECORDED / f"{self.name}-{'healthy' if healthy else 'sick'}.json.gz"


CASES = (
    Case("slow_getitem", "HL102", share=0.20, site="__getitem__|decode", cpus=2),
    Case("slow_collate", "HL103", share=0.20, site="collate_lists", cpus=2),
    Case("main_thread_decode", "HL107", share=0.20, site="decode"),
    Case("io_wait", "HL106", share=0.20, site="__getitem__"),
    Case("worker_overhead", "HL110", share=0.20, site=r"DataLoader\(", cpus=2),
    Case("epoch_restart", "HL108", share=0.10, site=r"DataLoader\(", cpus=2),
    Case("sync_per_step", "HL204", share=0.05, needs=("cuda",)),
    Case("logging_per_step", "HL703", share=0.20, site=r"log\.debug"),
    Case("frequent_checkpoint", "HL701", share=0.10, site=r"torch\.save"),
    Case("evaluation_share", "HL702", share=0.20, site="evaluate"),
    Case("unfused_optimizer", "HL401", share=0.10, site=r"optimizer\.step|AdamW\(", loss=1e-2),
    Case("eager_small_ops", "HL302", share=0.15, site="[wW]ritten_?[oO]ut", loss=1e-2),
    Case("fp32_matmul", "HL301", share=0.20, site=r"model\(", loss=1e-2, needs=("bf16",)),
    Case(
        "math_attention",
        "HL306",
        share=0.15,
        site=r"Attention\.forward: .*(scores|softmax)",
        loss=1e-2,
    ),
    Case("padding_waste", "HL111", share=0.20, site="collate_fn=", loss=1e-2),
    Case("recompile_storm", "HL307", share=0.20, site=r"compiled\(", loss=1e-4),
    Case("slow_metrics", "HL801", share=0.20, site="count_by_name"),
    Case("garbage_collection", "HL804", share=0.20, site=r"gc\.collect"),
    Case("one_thread", "HL802", share=0.20, loss=1e-2, cpus=2),
    Case("anomaly_detection", "HL807", share=0.20),
    Case("deterministic_fill", "HL808", share=0.20, site="use_deterministic_algorithms"),
)


def why_not_here(case: Case) -> str | None:
    """What this machine lacks for a case; `None` where it can run."""
    import torch

    from hotloop.hardware.environment import fast_on_cpu

    if "cuda" in case.needs and not torch.cuda.is_available():
        return "needs a CUDA device"
    if "bf16" in case.needs and fast_on_cpu()[0] != "bfloat16":
        return "needs a CPU that multiplies bfloat16 faster than float32"
    if len(os.sched_getaffinity(0)) < case.cpus:
        return f"needs {case.cpus} CPUs"
    return None
