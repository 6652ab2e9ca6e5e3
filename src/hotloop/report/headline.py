"""A finding's own share of the time, and what mending it could bring, as clauses."""

from __future__ import annotations

from hotloop.core.judgement import Finding
from hotloop.report.numbers import percent, ratio

OTHERS = "other programs"

CLAUSES = {
    "data_wait_fraction": "{who} waits for data {share} of the time",
    "restart_fraction": "{who} waits for the first batches of epochs {share} of the time",
    "late_fraction": "{who} waits for batches that come late {share} of the time",
    "overhead_fraction": "{who} waits for what workers add to a batch {share} of the time",
    "padded_fraction": "padding is {share} of the tokens",
    "pinning_fraction": "pinning batches takes {share} of the time",
    "copy_fraction": "copying batches to the device takes {share} of the time",
    "product_fraction": "matrix products take {share} of the time",
    "elementwise_fraction": "operations on single elements take {share} of the time",
    "forward_backward_fraction": "forward and backward take {share} of the time",
    "launch_fraction": "starting short operations takes {share} of the time",
    "convolution_fraction": "convolutions take {share} of the time",
    "attention_fraction": "attention takes {share} of the time",
    "recompile_fraction": "compiling anew takes {share} of the time",
    "break_fraction": "leaving compiled code takes {share} of the time",
    "optimizer_fraction": "updating the weights takes {share} of the time",
    "communication_fraction": "waiting for the other processes takes {share} of the time",
    "checkpoint_fraction": "saving takes {share} of the time",
    "evaluation_fraction": "evaluating takes {share} of the time",
    "logging_fraction": "logging takes {share} of the time",
    "own_fraction": "the script's own code between the phases takes {share} of the time",
    "parallel_fraction": "{share} of the time one thread computes what more could share",
    "collection_fraction": "collecting garbage takes {share} of the time",
    "throttled_fraction": "heat or power holds the device back {share} of the time",
    "start_fraction": "starting takes {share} of the run",
    "computing_fraction": "computing takes {share} of the time",
    "idle_fraction": "the device idles {share} of the time",
}
"""By the name of a share in a finding's evidence."""


def cause(finding: Finding, *, who: str) -> str:
    """`the training waits for data 31 % of the time`; its title where it has no share."""
    shares = [
        (name, value)
        for name, value in finding.evidence.items()
        if name in CLAUSES and isinstance(value, int | float)
    ]
    if not shares:
        return f"{finding.title[0].lower()}{finding.title[1:]}"
    name, value = shares[0]
    source = finding.evidence.get("source")
    if name == "padded_fraction" and isinstance(source, str) and source.startswith("trailing id"):
        return f"{percent(value)} of the tokens are runs of {source.removeprefix('trailing ')} at the ends of rows, as padding is"
    clause = CLAUSES[name].format(who=who, share=percent(value))
    rank = finding.evidence.get("rank")
    return clause if rank is None else f"on rank {rank} {clause}"


def remedy(finding: Finding) -> str:
    """What mending it could bring, with its code and line; or why that cannot be told."""
    title = f"{finding.title[0].lower()}{finding.title[1:]}"
    where = f"{finding.code}, {finding.site}" if finding.site is not None else finding.code
    others = finding.evidence.get("other_programs_fraction")
    if isinstance(others, float):
        return (
            f" ({where}); {OTHERS} keep {percent(others)} of the CPUs busy, so whether workers would "
            "help cannot be told now: run it again when the machine is quiet"
        )
    gain = ratio(finding.gain_at_most)
    return f"; without that it could be up to {gain} as fast ({where}: {title})"
