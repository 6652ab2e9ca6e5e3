"""Run by Python at its start: see `no_compiler`."""

import no_compiler  # noqa: F401
