"""Watches a foreign training process from inside. `install` hooks it; see docs/DOCTOR.md."""

from hotloop.probe.attach.install import install, install_from_environment

__all__ = ["install", "install_from_environment"]
