"""A picture of an answer, to be shown to others: an SVG of what the terminal said, by rich."""

from __future__ import annotations

import io
import re
import shlex
import textwrap

from hotloop.core.judgement import Diagnosis
from hotloop.core.ledger import Ledger
from hotloop.core.measurement import Environment
from hotloop.report.ledger import ledger_answer
from hotloop.report.terminal import render_breakdown
from hotloop.report.words import losses

WIDTH = 84
MOST_OF_COMMAND = 64
_FONT_FACES = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""Of rich's pictures: fonts from a server, which a picture must not ask for."""


def render_card(
    ledger: Ledger, diagnosis: Diagnosis, environment: Environment | None, answer: str
) -> str:
    """What held the run back, what was proven, and where. answer: the sentence on top of the terminal's page.

    `ledger` keeps at least one fix. An SVG of its own: no font, script or picture from elsewhere.
    """
    from rich.console import Console
    from rich.text import Text

    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    command = textwrap.shorten(shlex.join(ledger.command), MOST_OF_COMMAND, placeholder=" ...")
    parts = [
        (f"$ hotloop doctor -- {command}\n", "bold"),
        (f"{answer}\n", ""),
        (f"{render_breakdown(diagnosis.breakdown)}\n" if diagnosis.breakdown else "", "cyan"),
        (ledger_answer(ledger), "bold green"),
        (_learns(ledger), ""),
        (f"\n{_where(environment)}" if environment is not None else "", "dim"),
    ]
    for text, style in parts:
        if text:
            console.print(Text(text, style=style))
    return _FONT_FACES.sub("", console.export_svg(title="hotloop", unique_id="hotloop"))


def _learns(ledger: Ledger) -> str:
    together = ledger.together
    if together is None:
        return ""
    words = losses(together.parity)
    return f"{words[0].upper()}{words[1:]}."


def _where(environment: Environment) -> str:
    torch = f", torch {environment.torch}" if environment.torch is not None else ""
    return f"{environment.device}, {environment.cpu_quota:g} CPUs{torch}, hotloop {environment.hotloop}"
