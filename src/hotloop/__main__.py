"""`python -m hotloop`, and the console script: Ctrl-C ends both in one line from the first import on."""

from __future__ import annotations

import sys
from typing import NoReturn

RESUMABLE = 75
"""`ExitCode.RESUMABLE`, which is not imported yet."""


def main() -> NoReturn:
    try:
        from hotloop.cli.main import main as run_command

        run_command()
    except KeyboardInterrupt:
        if sys.stderr is not None:
            sys.stderr.write("interrupted\n")
        sys.exit(RESUMABLE)


if __name__ == "__main__":
    main()
