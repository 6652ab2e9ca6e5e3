"""What a finding or a census counted, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hotloop.core.census import CallUse, Census, LoaderUse, OperatorUse
from hotloop.report import numbers
from hotloop.report.numbers import UNKNOWN

MOST_CALLS = 20
MOST_OPERATORS = 15

Evidence = Mapping[str, float | int | str | None]
Rows = list[tuple[str, ...]]


def evidence_rows(evidence: Evidence) -> list[tuple[str, str]]:
    """Names and values; units are read from the endings of the names. What is not known is left out."""
    return [
        (_name(key), value_text(key, value))
        for key, value in evidence.items()
        if value is not None and value != ""
    ]


def value_text(key: str, value: float | int | str) -> str:
    """`fetch_s: 0.012` is 12 ms."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if key.endswith("_s"):
        return numbers.seconds(value)
    if key.endswith("_bytes"):
        return numbers.size(int(value))
    if key.endswith("_fraction"):
        return numbers.percent(value)
    if key.startswith("gain_"):
        return numbers.ratio(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


NAMES = {
    "cpus_busy_fraction": "CPUs busy with this run, share",
    "other_programs_fraction": "CPUs busy with other programs, share",
    "longest_padded_fraction": "padding if each batch ended with its longest row",
    "grouped_padded_fraction": "padding if these were sorted by length as well",
    "gain_at_longest": "gain at most if each batch ended with its longest row",
    "gain_grouped": "gain, about, if these were sorted by length as well",
}


def _name(key: str) -> str:
    if key in NAMES:
        return NAMES[key]
    if key.endswith("_fraction"):
        key = f"{key.removesuffix('_fraction')}_share"
    for ending in ("_s", "_bytes"):
        key = key.removesuffix(ending)
    return key.removeprefix("num_").replace("_", " ")


def loader_title(loader: LoaderUse) -> str:
    """Its place, and what it is for."""
    return f"`{loader.site}`, for {'training' if loader.trains else 'evaluation'}"


def loader_rows(loader: LoaderUse) -> list[tuple[str, str]]:
    """What it was seen to do."""
    workers = "none" if not loader.num_workers else str(loader.num_workers)
    if loader.num_workers and loader.persistent_workers:
        workers += ", persistent"
    batch = UNKNOWN if loader.batch_size is None else str(loader.batch_size)
    if loader.batch_bytes is not None:
        batch += f", {numbers.size(loader.batch_bytes)}"
    dataset = loader.dataset + (f" (`{loader.dataset_site}`)" if loader.dataset_site else "")
    rows = [
        ("dataset", dataset),
        ("workers", workers),
        ("batch", batch),
        ("batches seen", f"{loader.num_batches:,}"),
    ]
    for name, seconds in (
        ("wait for a batch, median", loader.wait_s),
        ("wait, one in a hundred is longer", loader.wait_p99_s),
        ("making a batch, median", loader.fetch_s),
        ("of it in the collate function", loader.collate_s),
        ("pinning a batch, in the main process", loader.pin_s),
        ("first batch of an epoch, median", loader.epoch_start_s),
    ):
        if seconds is not None:
            rows.append((name, numbers.seconds(seconds)))
    if loader.fetch_cpu_fraction is not None:
        rows.append(("CPU time of making it", numbers.percent(loader.fetch_cpu_fraction)))
    return rows


def call_rows(census: Census) -> Rows:
    """Calls that were counted: what, where, how often, host seconds."""
    groups: tuple[tuple[str, tuple[CallUse, ...]], ...] = (
        ("copy to the device", census.copies),
        ("wait for the device", census.syncs),
        ("saving", census.saves),
        ("logging", census.logs),
        ("evaluation", census.evaluations),
    )
    found = [(kind, call) for kind, calls in groups for call in calls]
    ranked = sorted(found, key=lambda each: -each[1].seconds)[:MOST_CALLS]
    return [
        (
            kind,
            f"`{call.what}`",
            f"`{call.site}`" if call.site else "",
            f"{call.num:,}",
            numbers.seconds(call.seconds),
        )
        for kind, call in ranked
    ]


def operator_rows(operators: Sequence[OperatorUse]) -> Rows:
    """Operations of a profiled step, most time first."""
    on_device = any(each.device_s for each in operators)

    def cost(each: OperatorUse) -> float:
        return each.device_s if on_device else each.self_s

    ranked = sorted(operators, key=lambda each: -cost(each))[:MOST_OPERATORS]
    return [
        (f"`{each.name}`", each.dtype or "", f"{each.num:,.0f}", numbers.seconds(cost(each)))
        for each in ranked
    ]


def use_rows(census: Census) -> list[tuple[str, str]]:
    """What the process was seen to use, a line each; what was not observed is left out."""
    compiled = None
    if census.compiled is not None:
        num = census.num_graphs
        made = f"{num} graphs" if num else "earlier in its process"
        compiled = f"yes, {made}" if census.compiled else "no"
        if census.num_graph_breaks:
            compiled += f", {census.num_graph_breaks} breaks"
        if census.num_recompiles:
            compiled += f", {census.num_recompiles} recompiles"
    found = [
        ("device", census.device),
        ("processes", str(census.num_ranks) if (census.num_ranks or 1) > 1 else None),
        ("CPU threads", str(census.num_threads) if census.num_threads else None),
        ("optimizer", census.optimizer),
        ("weights", ", ".join(census.parameter_dtypes) or None),
        ("matrix products", ", ".join(census.matmul_dtypes) or None),
        ("attention", ", ".join(census.attention) or None),
        ("compiled", compiled),
        (
            "backward passes per step",
            f"{census.microbatches:.3g}" if census.microbatches is not None else None,
        ),
        (
            "start, until the first step",
            numbers.seconds(census.start_s) if census.start_s is not None else None,
        ),
    ]
    return [(name, value) for name, value in found if value]
