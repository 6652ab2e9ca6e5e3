"""The process that ends what belongs to a token where hotloop itself is gone."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress

from hotloop.trial import watchdog


class Guard:
    """Ends what carries `token` in `variable` where this process is gone."""

    def __init__(self, token: str, variable: str = watchdog.TRIAL) -> None:
        # -I -S: nothing of the user's environment is loaded, and it is up in about 10 ms.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", watchdog.__file__, token, variable],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # outlives a signal to hotloop's own group
        )

    def tell(self, line: str) -> None:
        """`group N` or `tree N`, as `watchdog` reads them."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except OSError:  # someone ended the watchdog; the command itself needs it no more than that
            pass

    def release(self) -> None:
        """Every process of the command has been seen to."""
        if self._process.returncode is None:
            self.tell("done")
            with suppress(OSError):
                self._process.communicate()
