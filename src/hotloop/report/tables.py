"""Tables of the page, and what fills the plain ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from html import escape

from hotloop.core.measurement import Environment
from hotloop.report import numbers


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


def settings_table(settings: Sequence[tuple[str, str, str]]) -> str:
    """Those that somebody or something chose come first."""
    ranked = sorted(settings, key=lambda row: row[2] == "default")
    return table(("key", "value", "origin"), ranked, kind="mono")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, kind: str = "") -> str:
    if not rows:
        return ""
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{coded(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    style = f' class="{kind}"' if kind else ""
    thead = f"<thead><tr>{top}</tr></thead>" if any(head) else ""
    return f'<div class="wide"><table{style}>{thead}<tbody>{body}</tbody></table></div>'


def coded(text: str) -> str:
    """Escaped, with what stands between backticks as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))
