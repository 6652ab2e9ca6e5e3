"""One page that stands alone: no scripts, no fonts, nothing fetched. The answer first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from hotloop.core.census import Census
from hotloop.core.course import ArmsCourse, Curve, MachineCourse, PairSpeeds, StepCourse
from hotloop.core.files import write_atomically
from hotloop.core.judgement import Diagnosis, Target, Verdict
from hotloop.core.ledger import Ledger
from hotloop.core.measurement import Environment
from hotloop.report import numbers
from hotloop.report.charts import Series, line_chart
from hotloop.report.checklist import target_table
from hotloop.report.comparison import arm_bars, loss_charts, pair_chart, ratio_chart
from hotloop.report.course import machine_charts
from hotloop.report.evidence import findings_section, host_section, loaders_section, use_section
from hotloop.report.ledger import ledger_section, patch_section
from hotloop.report.step_time import breakdown, step_bars
from hotloop.report.style import CSS
from hotloop.report.tables import coded, environment_rows, settings_table, table
from hotloop.report.terminal import verdict_rows
from hotloop.report.words import is_kept, losses


@dataclass(frozen=True, slots=True)
class Page:
    """What a page may show. Parts that are missing are left out."""

    title: str
    answer: str = ""
    """The one sentence a reader came for."""
    problems: Sequence[str] = ()
    """What is damaged."""
    notes: Sequence[str] = ()
    """What is missing or unfinished."""
    facts: Sequence[tuple[str, str]] = ()
    """Names and values below the answer, already in words."""
    verdict: Verdict | None = None
    pairs: Sequence[PairSpeeds] = ()
    pairs_of: tuple[str, str, str] = ("baseline", "candidate", "token")
    """The arms of `pairs` and the unit of their work."""
    arms: ArmsCourse | None = None
    breakdowns: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Host phases as fractions of wall time, per arm or run."""
    device: Mapping[str, float] | None = None
    """Fractions of device time."""
    ranks: Sequence[tuple[str, str]] = ()
    """Processes that train together, in words."""
    steps: StepCourse | None = None
    held_out: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    """`(step, loss)` of evaluations, by name."""
    machine: MachineCourse | None = None
    cpus: float | None = None
    """CPUs that the run may use."""
    use: Sequence[tuple[str, str]] = ()
    """How much of the hardware was used, in words."""
    targets: Sequence[Target] = ()
    diagnosis: Diagnosis | None = None
    explanations: Mapping[str, str] = field(default_factory=dict)
    """The page of `hotloop explain` for each finding's code."""
    examined: Census | None = None
    """What somebody else's command was seen to do; its findings then stand before everything else."""
    ledger: Ledger | None = None
    """Fixes that were tried on it."""
    patch: str = ""
    """The diff of those that were kept."""
    sample: str = ""
    """Text that the trained model wrote."""
    environment: Environment | None = None
    settings: Sequence[tuple[str, str, str]] = ()
    """Key, value, origin."""
    footer: str = ""


def write_html(path: Path, page: Page) -> None:
    """Write the page, whole or not at all. Raises `EnvironmentFailed`."""
    write_atomically(path, render_html(page).encode("utf-8", "replace"))


def render_html(page: Page) -> str:
    """The page as text. Everything that is not ours is escaped."""
    sections = [
        ("before-after", "Before and after", _comparison(page)),
        ("time", "Where a step's time goes", _time(page)),
        ("loss", "Loss", _loss(page)),
        ("speed", "Speed", _speed(page.steps)),
        ("targets", "Targets", target_table(page.targets) if page.targets else ""),
        ("hardware", "Use of the hardware", _hardware(page)),
        ("findings", "Findings", findings_section(page.diagnosis, page.explanations)),
        ("sample", "A sample of the trained model", _sample(page.sample)),
        ("environment", "Environment", _environment(page.environment)),
        ("settings", "Settings", settings_table(page.settings)),
    ]
    if page.examined is not None:
        sections = [
            ("do", "Do this", patch_section(page.ledger, page.patch)),
            ("fixes", "Fixes tried", ledger_section(page.ledger)),
            ("findings", "Findings", findings_section(page.diagnosis, page.explanations)),
            ("time", "Where a step's time goes", _time(page)),
            ("host", "Time by line", host_section(page.examined)),
            ("loaders", "Loaders", loaders_section(page.examined)),
            ("seen", "Settings detected", use_section(page.examined)),
            *(each for each in sections if each[0] not in ("findings", "time")),
        ]
    shown = [(name, title, body) for name, title, body in sections if body]
    links = " ".join(f'<a href="#{name}">{title}</a>' for name, title, _ in shown)
    body = "\n".join(
        f'<section id="{name}"><h2>{title}</h2>{content}</section>'
        for name, title, content in shown
    )
    footer = f"<footer><p>{coded(page.footer)}</p></footer>" if page.footer else ""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(page.title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n<main>\n"
        f"{_top(page)}{f'<nav>{links}</nav>' if links else ''}\n{body}\n{footer}"
        "</main>\n</body>\n</html>\n"
    )


def _top(page: Page) -> str:
    kind = ""
    if page.verdict is not None:
        kind = " good" if is_kept(page.verdict) else " plain"
        if page.verdict.outcome == "regressed" or page.verdict.parity.result == "different":
            kind = " bad"
    answer = f'<p class="answer{kind}">{escape(page.answer)}</p>' if page.answer else ""
    facts = "".join(
        f"<div><dt>{escape(k.strip())}</dt><dd>{coded(v)}</dd></div>" for k, v in page.facts
    )
    return f"<h1>{escape(page.title)}</h1>{answer}{_missing(page)}" + (
        f'<dl class="facts">{facts}</dl>' if facts else ""
    )


def _missing(page: Page) -> str:
    boxes = ""
    for kind, said, lines in (
        ("", "Damaged, and left out here:", page.problems),
        (" mild", "To know:", page.notes),
    ):
        if lines:
            items = "".join(f"<li>{coded(line)}</li>" for line in lines)
            boxes += f'<div class="missing{kind}"><p>{said}</p><ul>{items}</ul></div>'
    return boxes


def _comparison(page: Page) -> str:
    verdict = page.verdict
    parts = []
    if verdict is not None:
        parts += [arm_bars(verdict), ratio_chart(verdict)]
    if page.pairs:
        parts.append(pair_chart(page.pairs, *page.pairs_of))
    if verdict is not None:
        parts.append(_evidence(verdict))
    return "".join(parts)


def _evidence(verdict: Verdict) -> str:
    rows = [*verdict_rows(verdict), ("losses", losses(verdict.parity))]
    if verdict.parity.reason and verdict.parity.result in ("same", "within_noise"):
        rows.append(("how losses were compared", verdict.parity.reason))
    if verdict.confidence is not None:
        looks = f"{verdict.num_looks} look{'s' if verdict.num_looks != 1 else ''}"
        rows.append(("confidence", f"{numbers.percent(verdict.confidence)}, over {looks}"))
    return table(("", ""), rows, kind="pairs-of")


def _time(page: Page) -> str:
    arms = dict(page.breakdowns)
    if not arms and page.diagnosis is not None and page.diagnosis.breakdown:
        arms = {"this run": page.diagnosis.breakdown}
    arms = {arm: fractions for arm, fractions in arms.items() if fractions}
    parts = [breakdown(arms)] if arms else []
    if page.device:
        parts.append(breakdown({"on the device": page.device}))
    if page.ranks:
        rows = table(("", ""), page.ranks, kind="pairs-of")
        parts.append(f"<h3>Processes that train together</h3>{rows}")
    if page.steps is not None:
        parts.append(step_bars(page.steps.spans))
    return "".join(parts)


def _loss(page: Page) -> str:
    parts = []
    if page.arms is not None:
        band = page.verdict.parity.band if page.verdict is not None else None
        parts.append(loss_charts(page.arms, page.pairs_of[0], page.pairs_of[1], band=band))
    series = []
    course = page.steps
    if course is not None and course.loss.num_values:
        series.append(Series("training", course.loss, 1))
    for number, (name, points) in enumerate(page.held_out.items()):
        series.append(Series(name, _exact(points), 2 + number % 4, dots=len(points) <= 100))
    notes = []
    if course is not None and not course.loss.is_exact:
        notes.append(
            "training: the line is the median of neighbouring steps, the band their lowest and highest"
        )
    if course is not None and course.num_not_finite:
        steps = "step" if course.num_not_finite == 1 else "steps"
        notes.append(
            f"no number at {course.num_not_finite:,} {steps}, first at step {course.first_not_finite:,}"
        )
    title = "Loss of the final training" if page.arms is not None else "Loss over the steps"
    drawn = line_chart(
        title, series, kind="plain", unit="nats a target", from_zero=False, note="; ".join(notes)
    )
    if not drawn and notes:
        drawn = f"<p>{escape('; '.join(notes))}</p>"
    parts.append(drawn)
    if course is not None:
        parts.append(
            line_chart(
                "Norm of the gradients, before clipping",
                [Series("gradient norm", course.grad_norm, 1)],
                kind="plain",
            )
        )
    return f'<div class="grid">{"".join(parts)}</div>' if any(parts) else ""


def _speed(course: StepCourse | None) -> str:
    if course is None:
        return ""
    unit = f"{course.unit}s"
    pace = ""
    if course.pace is not None:
        pace = (
            f"median of the {course.pace.num_steps:,} steps without a tag: "
            f"{numbers.rate(course.pace.median, unit)}; nine in ten lie between "
            f"{numbers.rate(course.pace.low, unit)} and {numbers.rate(course.pace.high, unit)}"
        )
    if not course.rate.is_exact:
        pace += "; the band runs from the slowest to the fastest step of each place"
    return line_chart(
        "Speed of each step",
        [Series("speed", course.rate, 1)],
        kind="count",
        unit=f"{unit}/s",
        note=pace.removeprefix("; "),
        written=lambda value: numbers.rate(value, unit),
    )


def _hardware(page: Page) -> str:
    rows = table(("", ""), [(name.strip(), text) for name, text in page.use], kind="pairs-of")
    charts = machine_charts(page.machine, cpus=page.cpus) if page.machine is not None else ""
    return rows + charts


def _sample(sample: str) -> str:
    # An untrained model writes any byte; what is no letter has no place in a page.
    clean = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in sample)
    return f"<pre>{escape(clean)}</pre>" if clean else ""


def _environment(environment: Environment | None) -> str:
    if environment is None:
        return ""
    return table(("", ""), environment_rows(environment), kind="pairs-of")


def _exact(points: Sequence[tuple[int, float]]) -> Curve:
    values = tuple(value if math.isfinite(value) else None for _, value in points)
    return Curve(tuple(float(step) for step, _ in points), values, values, values, len(values))
