"""Options of a script as its own source declares them: other names, and the default where the command has none of these.

`parser.add_argument("-j", "--num-workers", default=0)` of argparse, and click's options, which look alike.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

DECLARING = ("add_argument", "option", "add_option")


class Declared(NamedTuple):
    """One option."""

    names: tuple[str, ...] = ()
    """`-j`, `--num-workers`, and what argparse takes for it: `--num` where no other begins so."""
    default: str | None = None
    """As one would type it, where it is a number or a text."""


def script_options(command: Sequence[str]) -> dict[str, Declared]:
    """By each of its names; of what is declared twice in two ways no default is known. Empty for what is no Python."""
    script = next((Path(word) for word in command if word.endswith(".py")), None)
    try:
        source = script.read_bytes() if script is not None else b""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the script's own source
            tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return {}
    found: dict[str, Declared] = {}
    for call in (each for each in ast.walk(tree) if isinstance(each, ast.Call)):
        texts = (each.value for each in call.args if isinstance(each, ast.Constant))
        names = tuple(each for each in texts if isinstance(each, str) and each.startswith("-"))
        given = {each.arg: each.value for each in call.keywords}
        called = getattr(call.func, "attr", getattr(call.func, "id", ""))
        if "default" not in given and called not in DECLARING:
            continue
        default = given.get("default")
        value = default.value if isinstance(default, ast.Constant) else None
        is_known = isinstance(value, (int, float, str)) and not isinstance(value, bool)
        one = Declared(names, str(value) if is_known else None)
        for name in names:
            before = found.get(name, one)
            found[name] = one if before == one else Declared(before.names)
    for word in {word.partition("=")[0] for word in command} - found.keys():
        whole = [name for name in found if word.startswith("--") and name.startswith(word)]
        if len({found[name] for name in whole}) == 1 and word != "--":
            longer = found[whole[0]]
            longer = longer._replace(names=(*longer.names, word))
            found |= dict.fromkeys(longer.names, longer)
    return found
