"""What an option is where the command does not name it, as a script's own source says.

`parser.add_argument("-j", "--num-workers", default=0)` of argparse, and click's options, which look alike.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Sequence
from pathlib import Path


def script_defaults(command: Sequence[str]) -> dict[str, str]:
    """By name, `--num-workers`: the default as one would type it, where it is a number or a text. Empty for what is no Python."""
    script = next((Path(word) for word in command if word.endswith(".py")), None)
    try:
        source = script.read_bytes() if script is not None else b""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the script's own source
            tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return {}
    found: dict[str, str] = {}
    for call in (each for each in ast.walk(tree) if isinstance(each, ast.Call)):
        texts = (each.value for each in call.args if isinstance(each, ast.Constant))
        names = [each for each in texts if isinstance(each, str) and each.startswith("-")]
        given = {each.arg: each.value for each in call.keywords}.get("default")
        value = given.value if isinstance(given, ast.Constant) else None
        if isinstance(value, (int, float, str)) and not isinstance(value, bool):
            found |= dict.fromkeys(names, str(value))
    return found
