"""One page that stands alone: no scripts, no fonts, nothing fetched. The answer first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from html import escape
from pathlib import Path

from hotloop.core.files import write_atomically
from hotloop.core.judgement import Diagnosis, Finding, TrialOutcome, Verdict
from hotloop.core.measurement import Environment
from hotloop.report import numbers, svg
from hotloop.report.style import CSS
from hotloop.report.terminal import MAX_FINDINGS, in_order, with_interval
from hotloop.report.words import gain, headline, is_kept, losses


@dataclass(frozen=True, slots=True)
class Page:
    """What a page may show. Parts that are missing are left out."""

    title: str
    answer: str = ""
    """The one sentence a reader came for."""
    verdict: Verdict | None = None
    diagnosis: Diagnosis | None = None
    breakdowns: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Host phases as fractions of wall time, per arm."""
    loss_curves: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    """`(step, loss)` per arm, raw."""
    facts: Sequence[tuple[str, str]] = ()
    """Names and values below the answer, already in words."""
    settings: Sequence[tuple[str, str, str]] = ()
    """Key, value, origin."""
    environment: Environment | None = None
    sample: str = ""
    """Text that the trained model wrote."""
    notes: Sequence[str] = ()


def write_html(path: Path, page: Page) -> None:
    """Write the page, whole or not at all. Raises `EnvironmentFailed`."""
    write_atomically(path, render_html(page).encode("utf-8", "replace"))


def render_html(page: Page) -> str:
    """The page as text. Everything that is not ours is escaped."""
    sections = [
        _answer(page),
        _verdict(page.verdict),
        _diagnosis(page.diagnosis),
        _breakdowns(page),
        _curves(page.loss_curves),
        _sample(page.sample),
        _table("Settings", ("key", "value", "origin"), page.settings, mono=True),
        _environment(page.environment),
        _notes(page),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(page.title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(section for section in sections if section)
        + "\n</main>\n</body>\n</html>\n"
    )


def _answer(page: Page) -> str:
    kind = ""
    if page.verdict is not None:
        kind = " good" if is_kept(page.verdict) else " plain"
        if page.verdict.outcome == "regressed" or page.verdict.parity.result == "different":
            kind = " bad"
    answer = f'<p class="answer{kind}">{escape(page.answer)}</p>' if page.answer else ""
    facts = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in page.facts)
    return f"<h1>{escape(page.title)}</h1>{answer}" + (f"<dl>{facts}</dl>" if facts else "")


def _verdict(verdict: Verdict | None) -> str:
    if verdict is None:
        return ""
    bar = ""
    low, mid, high = verdict.ratio_low, verdict.ratio, verdict.ratio_high
    if low is not None and mid is not None and high is not None:
        bar = svg.interval_bar(low, mid, high, label=with_interval(mid, low, high))
    rows = [("verdict", headline(verdict)), ("losses", losses(verdict.parity))]
    if verdict.parity.reason and verdict.parity.result in ("same", "within_noise"):
        rows.append(("how losses were compared", verdict.parity.reason))
    if (whole := verdict.all_in) is not None:
        ratio = with_interval(whole.ratio, whole.ratio_low, whole.ratio_high)
        rows.append(("over all steps, slow ones included", ratio))
    for arm, value in (
        (verdict.baseline, verdict.baseline_s_per_work),
        (verdict.candidate, verdict.candidate_s_per_work),
    ):
        if value:
            rows.append((arm, numbers.rate(1 / value, f"{verdict.unit}s")))
    if verdict.confidence is not None:
        looks = f"{verdict.num_looks} look{'s' if verdict.num_looks != 1 else ''}"
        rows.append(("confidence", f"{numbers.percent(verdict.confidence)}, over {looks}"))
    if verdict.noise_floor is not None:
        rows.append(("noise floor, same against same", numbers.percent(verdict.noise_floor)))
    if verdict.minimum_detectable_effect is not None:
        rows.append(
            (
                "gains these pairs can show",
                f"{numbers.percent(verdict.minimum_detectable_effect)} or more",
            )
        )
    rows.extend(("because", reason) for reason in verdict.reasons)
    pairs = [(str(i), f"{ratio:.4f}") for i, ratio in enumerate(verdict.pair_ratios, 1)]
    return f"<h2>Verdict</h2>{bar}{_table('', ('', ''), rows)}" + _table(
        "Each pair of processes", ("pair", "ratio"), pairs, level=3
    )


def _diagnosis(diagnosis: Diagnosis | None) -> str:
    if diagnosis is None:
        return ""
    shown = diagnosis.findings[:MAX_FINDINGS]
    findings = "".join(_finding(finding) for finding in shown)
    more = len(diagnosis.findings) - len(shown)
    rest = f"<p>and {more} more in the JSON</p>" if more else ""
    missing = "".join(f"<li>{escape(what)}</li>" for what in diagnosis.not_examined)
    return (
        "<h2>Findings</h2>"
        + (f"<ul>{findings}</ul>{rest}" if findings else "<p>None.</p>")
        + _ledger(diagnosis.trials)
        + (f"<h3>Not examined</h3><ul>{missing}</ul>" if missing else "")
    )


def _finding(finding: Finding) -> str:
    site = f" at <code>{escape(finding.site)}</code>" if finding.site else ""
    answered = (
        f"; answered by <code>{escape(finding.optimization)}</code>" if finding.optimization else ""
    )
    advice = f"<br>{escape(finding.advice)}" if finding.advice else ""
    return (
        f"<li><strong>{escape(finding.code)}</strong> {escape(finding.title)}{site} "
        f"({gain(finding)}{answered}){advice}</li>"
    )


def _ledger(trials: Sequence[TrialOutcome]) -> str:
    rows = [
        (
            trial.optimization,
            ", ".join(f"{key}={value}" for key, value in trial.setting.items()),
            with_interval(trial.ratio, trial.ratio_low, trial.ratio_high) or trial.outcome,
            trial.parity.replace("_", " "),
            "kept" if trial.kept else "dropped",
            trial.reason,
        )
        for trial in trials
    ]
    head = ("change", "setting", "ratio", "losses", "", "why")
    return _table("Tried, one change at a time", head, rows, level=3)


def _breakdowns(page: Page) -> str:
    arms = dict(page.breakdowns)
    if not arms and page.diagnosis is not None and page.diagnosis.breakdown:
        arms = {"this run": page.diagnosis.breakdown}
    arms = {arm: fractions for arm, fractions in arms.items() if fractions}
    if not arms:
        return ""
    every = {
        name: max(f.get(name, 0.0) for f in arms.values()) for f in arms.values() for name in f
    }
    names = in_order(every)
    bars = "".join(
        f"<h3>{escape(arm)}</h3>{svg.breakdown_bar(fractions, names)}"
        for arm, fractions in arms.items()
    )
    columns = {arm: numbers.shares(dict(fractions)) for arm, fractions in arms.items()}
    body = "".join(
        f'<tr><td><span class="swatch p{index % 10}"></span>{escape(name)}</td>'
        + "".join(f'<td class="number">{column.get(name, "")}</td>' for column in columns.values())
        + "</tr>"
        for index, name in enumerate(names)
    )
    totals = "".join(
        f'<td class="number">{numbers.share(sum(f.values()))}</td>' for f in arms.values()
    )
    head = "".join(f"<th>{escape(arm)}</th>" for arm in arms)
    return (
        f"<h2>Where a step's time goes</h2>{bars}<table><thead><tr><th>phase</th>{head}</tr></thead>"
        f'<tbody>{body}<tr class="total"><td>total</td>{totals}</tr></tbody></table>'
    )


def _curves(curves: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    drawing = svg.loss_curves(curves)
    if not drawing:
        return ""
    legend = "".join(
        f'<span class="key"><span class="swatch c{index % 4}"></span>{escape(name)}</span>'
        for index, name in enumerate(curves)
    )
    return f"<h2>Loss</h2>{drawing}<p>{legend}</p>"


def _sample(sample: str) -> str:
    return f"<h2>A sample of the trained model</h2><pre>{escape(sample)}</pre>" if sample else ""


def _environment(environment: Environment | None) -> str:
    if environment is None:
        return ""
    return _table("Environment", ("", ""), environment_rows(environment))


def environment_rows(environment: Environment) -> list[tuple[str, str]]:
    """Names and values in words, for every place that shows an environment."""
    rows: list[tuple[str, str]] = []
    for each in fields(environment):
        value = getattr(environment, each.name)
        if each.name == "variables":
            rows.extend((name, str(text)) for name, text in value.items())
        elif each.name.endswith("_bytes"):
            rows.append((each.name.removesuffix("_bytes").replace("_", " "), numbers.size(value)))
        else:
            text = (
                numbers.UNKNOWN
                if value is None
                else f"{value:g}"
                if isinstance(value, float)
                else str(value)
            )
            rows.append((each.name.replace("_", " "), text))
    return rows


def _notes(page: Page) -> str:
    notes = "".join(f"<li>{escape(note)}</li>" for note in page.notes)
    return f"<h2>Notes</h2><ul>{notes}</ul>" if notes else ""


def _table(
    title: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    level: int = 2,
    mono: bool = False,
) -> str:
    if not rows:
        return ""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    kind = ' class="mono"' if mono else ""
    heading = f"<h{level}>{escape(title)}</h{level}>" if title else ""
    thead = f"<thead><tr>{top}</tr></thead>" if any(head) else ""
    return f'{heading}<div class="wide"><table{kind}>{thead}<tbody>{body}</tbody></table></div>'
