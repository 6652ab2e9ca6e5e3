"""Started by `python -m package.train`."""

from plain import train

train()
