"""The table of `hotloop bench effectiveness`: for a terminal, and as Markdown with all that is needed to make it again."""

from __future__ import annotations

from collections.abc import Callable

from hotloop.core.effectiveness import Effectiveness
from hotloop.core.judgement import Verdict
from hotloop.core.ledger import TriedFix
from hotloop.core.measurement import Environment
from hotloop.report import numbers
from hotloop.report.ledger import how_measured, ratio_words, status_words
from hotloop.report.terminal import columns
from hotloop.report.words import sentence

LEARNS = {
    "same": "yes",
    "within_noise": "within noise",
    "different": "**no**",
    "not_checked": "not known",
}
NO_START_S = 0.05
"""Below it nothing is said of the start."""
FEW_PAIRS = 4
NOTHING = "-"


def effectiveness_table(found: Effectiveness) -> str:
    """The table with aligned columns, and below it what it is of."""
    rows = [[_plain(cell) for cell in row] for row in _table(found)]
    lines = [line.strip() for line in columns(rows)]
    notes = [_plain(each) for each in _notes(found)]
    return "\n".join([*lines, "", *notes])


def effectiveness_markdown(found: Effectiveness) -> str:
    """The table, and below it how, where and when it was measured."""
    head, *rows = _table(found)
    cells = [head, ["---"] * len(head), *rows]
    lines = ["| " + " | ".join(_escaped(cell) for cell in row) + " |" for row in cells]
    where = f"{_machine(found.environment)}, {found.date}: `{found.made_with}`."
    return "\n\n".join(["\n".join(lines), *_notes(found), where]) + "\n"


def _table(found: Effectiveness) -> list[list[str]]:
    columns = _COLUMNS
    if any(row.predicted for row in found.rows):
        columns = (*_COLUMNS[:1], ("predicted", _predicted), *_COLUMNS[1:])
    table = [[title for title, _ in columns]]
    if found.whole is not None:
        table.append([of(found.whole) for _, of in columns])
        table[-1][0] = f"**{WHOLE.get(found.whole.name, found.whole.name)}**"
    table += [[of(row) for _, of in columns] for row in found.rows]
    return table


WHOLE = {"auto": "all that `auto` chooses"}


def _technique(row: TriedFix) -> str:
    is_setting = row.value in (None, True) or str(row.value) in row.name
    return f"`{row.name}`" if is_setting else f"`{row.name}` {row.value}"


def _measured(row: TriedFix) -> str:
    verdict = row.verdict
    if verdict is None:
        return NOTHING
    low, high, ratios = verdict.ratio_low, verdict.ratio_high, verdict.pair_ratios
    if len(ratios) >= FEW_PAIRS:
        return ratio_words(verdict)
    if not ratios:
        return "not comparable"
    # So few have next to no interval: each is shown.
    found = " and ".join(map(numbers.ratio, ratios))
    if low is None or high is None:
        return f"{found} (1 pair)"
    ends = [f"{low:.2f}" if low >= 0.01 else "<0.01", f"{high:.2f}" if high <= 100 else ">100"]
    return f"{found} ({' to '.join(ends)}, {len(ratios)} pairs)"


def _predicted(row: TriedFix) -> str:
    expected = row.predicted
    if expected is None:
        return NOTHING
    return f"{numbers.interval(expected.ratio_low, expected.ratio_high)}x"


def _learns(row: TriedFix) -> str:
    return NOTHING if row.verdict is None else LEARNS[row.verdict.parity.result]


def _start(row: TriedFix) -> str:
    if row.start_s is None:
        return NOTHING
    if row.start_s < NO_START_S:
        return "none"
    paid = row.pays_after_steps
    after = f", paid after {numbers.counted(paid, 'step')}" if paid else ""
    return f"{numbers.seconds(row.start_s)}{after}"


def _verdict(row: TriedFix) -> str:
    verdict = row.verdict
    if row.status in ("not_applied", "failed"):
        return f"{status_words(row.status)}: {row.why}"
    if verdict is None:
        return row.why
    if len(verdict.pair_ratios) < FEW_PAIRS and row.status == "stopped":
        return "open: out of budget"
    if row.status == "what_if":
        return f"{_outcome(verdict)}; {row.why}"
    if row.status == "kept":
        alone = f"{verdict.outcome} alone, faster on top of the others"
        return "**faster**" if verdict.is_proven else alone
    # What stays out of the whole may be faster by itself.
    is_left = verdict.is_proven and row.status in ("rejected", "undecided", "stopped")
    return f"**faster**, not kept: {row.why}" if is_left else row.why


def _outcome(verdict: Verdict) -> str:
    words = {"improved": "faster without it", "regressed": "slower", "unchanged": "no difference"}
    return words.get(verdict.outcome, verdict.outcome)


_COLUMNS: tuple[tuple[str, Callable[[TriedFix], str]], ...] = (
    ("technique, alone", _technique),
    ("measured", _measured),
    ("learns the same", _learns),
    ("start-up", _start),
    ("verdict", _verdict),
)


def _notes(found: Effectiveness) -> list[str]:
    notes = []
    if found.whole is not None and (all_of := found.whole.details or found.whole.value):
        notes.append(f"The whole is {' '.join(str(all_of).split())}.")
    if found.whole is None:
        notes.append(
            "No row of the whole: `auto` chooses at most one other setting here, or was left out."
        )
    if found.rows or found.whole is not None:
        notes.append(
            f"Ratios are work per second over that of the start; each interval holds with 95 % at least. "
            f"{sentence(how_measured(found.ledger))}"
        )
    if found.ledger.not_comparable is not None:
        notes.append(
            f"Its losses are not comparable from run to run: {found.ledger.not_comparable}."
        )
    if found.not_here:
        names = numbers.listed([f"`{row.name}`" for row in found.not_here])
        notes.append(f"Nothing to measure here (`--json` says why): {names}.")
    if found.ledger.continue_with is not None:
        notes.append(
            f"Not all of it was measured to its end; go on with: `{found.ledger.continue_with}`"
        )
    return notes


def _machine(environment: Environment) -> str:
    memory = environment.memory_limit_bytes
    parts = [
        environment.device,
        *(
            [environment.cpu_model]
            if environment.cpu_model not in (None, environment.device)
            else []
        ),
        f"{environment.cpu_quota:g} CPUs",
        *([numbers.size(memory)] if memory else []),
        f"Python {environment.python}",
        *([f"torch {environment.torch}"] if environment.torch else []),
        *(f"{name}={value}" for name, value in environment.variables.items()),
        f"hotloop {environment.hotloop}",
    ]
    return ", ".join(map(str, parts))


def _plain(text: str) -> str:
    return " ".join(text.replace("`", "").replace("**", "").split())


def _escaped(cell: str) -> str:
    return " ".join(cell.split()).replace("|", "\\|")
