"""Findings and what was tried, for the page."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from hotloop.core.judgement import Diagnosis, Finding
from hotloop.report.evidence import evidence_rows
from hotloop.report.tables import table
from hotloop.report.words import gain, worth_sentence


def findings_section(diagnosis: Diagnosis | None, pages: Mapping[str, str]) -> str:
    """Findings with their evidence; `pages` explains each code, and is folded below it."""
    if diagnosis is None:
        return ""
    findings = "".join(_finding(each, pages.get(each.code, "")) for each in diagnosis.findings)
    missing = "".join(f"<li>{escape(what)}</li>" for what in diagnosis.not_examined)
    return (
        (f"<ul>{findings}</ul>" if findings else "<p>None.</p>")
        + _worth(diagnosis)
        + (f"<h3>Not examined</h3><ul>{missing}</ul>" if missing else "")
    )


def _finding(finding: Finding, page: str) -> str:
    site = f" at <code>{escape(finding.site)}</code>" if finding.site else ""
    fixed = (
        f"; fixed by <code>{escape(finding.optimization)}</code>" if finding.optimization else ""
    )
    advice = f"<br>{escape(finding.advice)}" if finding.advice else ""
    return (
        f"<li><strong>{escape(finding.code)}</strong> {escape(finding.title)}{site} "
        f"({gain(finding)}{fixed}){advice}{_evidence(finding)}{_explanation(finding.code, page)}</li>"
    )


def _explanation(code: str, page: str) -> str:
    if not page:
        return ""
    summary = f"<summary>What {escape(code)} means, how to test it, what can go wrong</summary>"
    return f"<details>{summary}<pre>{escape(page)}</pre></details>"


def _evidence(finding: Finding) -> str:
    rows = evidence_rows(finding.evidence)
    return table(("", ""), rows, kind="pairs-of") if rows else ""


def _worth(diagnosis: Diagnosis) -> str:
    worth = diagnosis.worth
    if worth is None:
        return ""
    return f"<h3>Is it worth it?</h3><p>{escape(worth_sentence(worth))}</p>"
