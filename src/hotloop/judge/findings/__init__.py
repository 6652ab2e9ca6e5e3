"""Everything the judge can find, one file per cause.

Codes are permanent: 1xx input, 2xx copies and syncs, 3xx kernels, precision and compile,
4xx optimizer, 5xx memory, 6xx communication, 7xx checkpoint, evaluation and logging, 8xx host.
`hotloop explain CODE` prints the docstring of the file.
"""

from __future__ import annotations

from typing import Protocol

from hotloop.core.judgement import Breakdown, Finding
from hotloop.core.measurement import Measurement
from hotloop.judge.findings import (
    hl101_data_wait,
    hl102_serial_input,
    hl103_slow_collate,
    hl104_too_few_workers,
    hl105_cpus_full,
    hl106_input_io,
    hl107_input_in_loop,
    hl108_epoch_restart,
    hl109_input_jitter,
    hl110_worker_overhead,
    hl111_padding,
    hl201_pin_in_main,
    hl202_pageable_copies,
    hl203_copy_volume,
    hl204_sync_per_step,
    hl205_nan_filter,
    hl301_fp32_matmul,
    hl302_eager,
    hl303_launch_bound,
    hl304_channels_last,
    hl305_cudnn_benchmark,
    hl306_plain_attention,
    hl307_recompiles,
    hl308_graph_breaks,
    hl401_unfused_optimizer,
    hl501_small_batch,
    hl502_memory_thrash,
    hl503_memory_creep,
    hl601_communication,
    hl701_checkpoint_stall,
    hl702_evaluation,
    hl703_logging,
    hl801_own_code,
    hl802_one_thread,
    hl803_oversubscribed,
    hl804_garbage,
    hl805_throttled,
    hl806_slow_start,
)


class FindingModule(Protocol):
    """What each file of this directory holds, beside the docstring that explains it."""

    CODE: str
    TITLE: str

    def find(self, measurement: Measurement, breakdown: Breakdown) -> Finding | None:
        """The finding, with its evidence, or `None` where the cause is absent or was not seen."""


FINDINGS: dict[str, FindingModule] = {
    "HL101": hl101_data_wait,
    "HL102": hl102_serial_input,
    "HL103": hl103_slow_collate,
    "HL104": hl104_too_few_workers,
    "HL105": hl105_cpus_full,
    "HL106": hl106_input_io,
    "HL107": hl107_input_in_loop,
    "HL108": hl108_epoch_restart,
    "HL109": hl109_input_jitter,
    "HL110": hl110_worker_overhead,
    "HL111": hl111_padding,
    "HL201": hl201_pin_in_main,
    "HL202": hl202_pageable_copies,
    "HL203": hl203_copy_volume,
    "HL204": hl204_sync_per_step,
    "HL205": hl205_nan_filter,
    "HL301": hl301_fp32_matmul,
    "HL302": hl302_eager,
    "HL303": hl303_launch_bound,
    "HL304": hl304_channels_last,
    "HL305": hl305_cudnn_benchmark,
    "HL306": hl306_plain_attention,
    "HL307": hl307_recompiles,
    "HL308": hl308_graph_breaks,
    "HL401": hl401_unfused_optimizer,
    "HL501": hl501_small_batch,
    "HL502": hl502_memory_thrash,
    "HL503": hl503_memory_creep,
    "HL601": hl601_communication,
    "HL701": hl701_checkpoint_stall,
    "HL702": hl702_evaluation,
    "HL703": hl703_logging,
    "HL801": hl801_own_code,
    "HL802": hl802_one_thread,
    "HL803": hl803_oversubscribed,
    "HL804": hl804_garbage,
    "HL805": hl805_throttled,
    "HL806": hl806_slow_start,
}
