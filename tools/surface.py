"""The public surface as text files, so that a change to it is a visible diff.

python tools/surface.py            write tests/golden/surface/ and the table of docs/FIXES.md
python tools/surface.py --check    compare, print the difference, exit 1 if there is one
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
GOLDEN = Path("tests") / "golden" / "surface"
FIXES = "docs/FIXES.md"
WIDTH = 88

JSON_MODULES = (
    "hotloop.core.step",
    "hotloop.core.census",
    "hotloop.core.measurement",
    "hotloop.core.judgement",
    "hotloop.core.ceilings",
    "hotloop.core.command_run",
    "hotloop.core.effectiveness",
    "hotloop.core.ledger",
    "hotloop.core.memory_use",
    "hotloop.core.sessions",
    "hotloop.core.stack_profile",
    "hotloop.core.task_scores",
    "hotloop.core.telemetry",
    "hotloop.data.manifest",
)
"""Every dataclass of these is stored as JSON that others may read."""


def help_texts() -> str:
    import click

    from hotloop.cli.main import COMMANDS, group

    def text(command: click.Command, parent: click.Context | None, name: str) -> str:
        context = click.Context(
            command,
            info_name=name,
            parent=parent,
            terminal_width=WIDTH,
            max_content_width=WIDTH,
            color=False,
        )
        return "\n".join(line.rstrip() for line in command.get_help(context).splitlines())

    top = click.Context(group, info_name="hotloop", terminal_width=WIDTH, max_content_width=WIDTH)
    parts = [text(group, None, "hotloop")]
    for name in COMMANDS:
        command = group.get_command(top, name)
        assert command is not None
        parts.append(text(command, top, name))
        if isinstance(command, click.Group):
            inside = click.Context(command, info_name=name, parent=top)
            for inner in command.list_commands(inside):
                subcommand = command.get_command(inside, inner)
                assert subcommand is not None
                parts.append(text(subcommand, inside, inner))
    return f"\n\n{'-' * WIDTH}\n\n".join(parts)


def config_keys() -> str:
    from hotloop.core.config import RunConfig, known_keys

    defaults = RunConfig.model_validate({"data": {"source": "python-stdlib"}}).flat()
    defaults["data.source"] = None
    lines = []
    for name, key in known_keys().items():
        lines.append(f"{name} = {json.dumps(defaults[name])}")
        lines.extend(f"    {line}" for line in key.description.splitlines())
    return "\n".join(lines)


def finetune_keys() -> str:
    """The settings of a fine-tuning that are not, or not with that default, those of `config.txt`."""
    from hotloop.core.finetune_config import FinetuneConfig

    return _unlike_shared(FinetuneConfig)


def causal_keys() -> str:
    """Those of a decoder's."""
    from hotloop.core.causal_config import CausalConfig

    return _unlike_shared(CausalConfig)


def _unlike_shared(kind: Any) -> str:
    from hotloop.core.config import known_keys

    shared = known_keys()
    lines = []
    for name, key in known_keys(kind).items():
        if name not in shared or shared[name] != key:
            lines.append(f"{name} = {key.default or '(must be given)'}")
            lines.extend(f"    {line}" for line in key.description.splitlines())
    return "\n".join(lines)


def findings() -> str:
    from hotloop.judge.findings import FINDINGS, title_of

    return "\n".join(f"{code} {title_of(code)}" for code in sorted(FINDINGS))


def optimizations() -> str:
    from hotloop.optimizations.catalogue import CATALOGUE

    return "\n".join(f"{o.name} {o.parity_class} {o.key}" for o in CATALOGUE.values())


def fixes_page() -> str:
    """The page as it is, with its tables: techniques that the doctor can put into a running script, and findings without."""
    from hotloop.judge.findings import FINDINGS, reason_without_fix, title_of
    from hotloop.optimizations.catalogue import CATALOGUE

    lines = [
        "| name | what it changes | tried when | left alone, with the reason | parity |",
        "|" + "---|" * 5,
    ]
    for each in CATALOGUE.values():
        if each.live_form is None:
            continue
        when = ", ".join(each.answers) or f"`--only {each.name}`"
        when += f", with {each.needs}" if each.needs else ""
        parity = each.parity_class
        parity += "; other_draws where batches draw random numbers" if each.other_draws_in else ""
        summary = each.summary.removesuffix(".")
        lines.append(f"| `{each.name}` | {summary} | {when} | {each.leaves} | {parity} |")
    page = _with_table((ROOT / FIXES).read_text(encoding="utf-8"), lines)
    rows = [
        f"| {code} | {title_of(code)} | {why} |"
        for code, module in FINDINGS.items()
        if (why := reason_without_fix(module))
    ]
    return _with_table(page, ["| finding | what | why no fix |", "|" + "---|" * 3, *rows])


def _with_table(page: str, lines: Sequence[str]) -> str:
    """The page with the table that begins with the same column made of `lines`."""
    before, begin, rest = page.partition("|".join(lines[0].split("|")[:2]) + "|")
    _, end, after = rest.partition("\n\n")
    if not (begin and end):
        raise AttributeError(f"no table in {FIXES}")
    return before + "\n".join(lines) + "\n\n" + after.rstrip("\n")


def exit_codes() -> str:
    from hotloop.cli.main import INTERNAL_ERROR
    from hotloop.core.errors import ExitCode

    codes = {code.name: int(code) for code in ExitCode} | {"INTERNAL_ERROR": INTERNAL_ERROR}
    return "\n".join(f"{value} {name}" for name, value in codes.items())


def json_fields() -> str:
    lines = []
    for name in JSON_MODULES:
        for kind in vars(importlib.import_module(name)).values():
            if dataclasses.is_dataclass(kind) and getattr(kind, "__module__", "") == name:
                lines += [f"{kind.__name__}.{f.name}: {f.type}" for f in dataclasses.fields(kind)]
    return "\n".join(lines)


SURFACE: dict[str, Callable[[], str]] = {
    "help.txt": help_texts,
    "config.txt": config_keys,
    "finetune_config.txt": finetune_keys,
    "causal_config.txt": causal_keys,
    "findings.txt": findings,
    "optimizations.txt": optimizations,
    FIXES: fixes_page,
    "exit_codes.txt": exit_codes,
    "json_fields.txt": json_fields,
}


def _path(name: str) -> Path:
    return ROOT / (name if "/" in name else GOLDEN / name)


def difference(name: str) -> str:
    """A unified diff from the golden file to what the code says now; empty when they agree."""
    path = _path(name)
    golden = path.read_text(encoding="utf-8") if path.is_file() else ""
    now = SURFACE[name]() + "\n"
    lines = difflib.unified_diff(
        golden.splitlines(), now.splitlines(), f"stored/{name}", f"code/{name}", lineterm=""
    )
    return "\n".join(lines)


def main() -> int:
    if "--check" in sys.argv[1:]:
        differences = [text for name in SURFACE if (text := difference(name))]
        if differences:
            sys.stdout.write("\n".join(differences) + "\n\n")
            sys.stderr.write(
                "error: the public surface is not what is stored\n"
                "  if the change is meant: make surface, and say so in CHANGELOG.md\n"
            )
        return 1 if differences else 0
    failed = 0
    for name, make in SURFACE.items():
        try:
            text = make()
        except (ImportError, AttributeError) as error:  # the others can still be written
            sys.stderr.write(f"error: {name} not written: {error}\n")
            failed = 1
            continue
        _path(name).parent.mkdir(parents=True, exist_ok=True)
        _path(name).write_text(text + "\n", encoding="utf-8")
    return failed


if __name__ == "__main__":
    sys.exit(main())
