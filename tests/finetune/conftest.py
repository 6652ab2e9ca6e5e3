"""What the tests of fine-tuning share."""

from collections.abc import Callable

import pytest

from hotloop.cli.main import run as run_here


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command in this process, and returns what it said; without line ends where code is 0."""

    def running(arguments: list[str], *, code: int | None = 0) -> str:
        ended = run_here(arguments)
        said = "".join(capfd.readouterr())
        assert ended == (code or 0), said
        return " ".join(said.split()) if code == 0 else said

    return running
