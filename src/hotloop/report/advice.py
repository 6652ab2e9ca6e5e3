"""Findings and what was tried, for the page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from hotloop.core.judgement import Diagnosis, Finding, TrialOutcome
from hotloop.report.evidence import evidence_rows
from hotloop.report.tables import table
from hotloop.report.terminal import MAX_FINDINGS, with_interval
from hotloop.report.words import gain, worth_sentence


def findings_section(diagnosis: Diagnosis | None) -> str:
    if diagnosis is None:
        return ""
    shown = diagnosis.findings[:MAX_FINDINGS]
    findings = "".join(_finding(finding) for finding in shown)
    more = len(diagnosis.findings) - len(shown)
    rest = f"<p>and {more} more in the JSON</p>" if more else ""
    if shown:
        rest += (
            "<p>How to test it, and what can go wrong: "
            f"<code>hotloop explain {escape(shown[0].code)}</code></p>"
        )
    missing = "".join(f"<li>{escape(what)}</li>" for what in diagnosis.not_examined)
    return (
        (f"<ul>{findings}</ul>{rest}" if findings else "<p>None.</p>")
        + _ledger(diagnosis.trials)
        + _worth(diagnosis)
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
        f"({gain(finding)}{answered}){advice}{_evidence(finding)}</li>"
    )


def _evidence(finding: Finding) -> str:
    rows = evidence_rows(finding.evidence)
    return table(("", ""), rows, kind="pairs-of") if rows else ""


def _worth(diagnosis: Diagnosis) -> str:
    worth = diagnosis.worth
    if worth is None:
        return ""
    return f"<h3>Is it worth it?</h3><p>{escape(worth_sentence(worth))}</p>"


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
    tried = table(head, rows)
    return f"<h3>Tried, one change at a time</h3>{tried}" if tried else ""
