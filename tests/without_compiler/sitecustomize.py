"""Run by Python at its start: see `no_compiler`."""

import sys

import no_compiler  # noqa: F401

# Trials are not forked from a process that holds modules of no package.
del sys.modules["no_compiler"]
