"""What several rooms' tests share: a small corpus, prepared, and a config small enough for seconds."""

from __future__ import annotations

import gc
import os
import random
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import hypothesis
import pytest

# How fast a machine is at this moment is no property of the code.
hypothesis.settings.register_profile("hotloop", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("hotloop")

# Before torch is loaded anywhere: two test workers with two threads each would fight for two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Cases beyond `at_once` are slow ones. What takes longest comes first, so that no worker is left with it at the end."""
    items.sort(key=lambda item: item.path.name != "test_tune.py")
    seen: Counter[str] = Counter()
    for item in items:
        marker = item.get_closest_marker("at_once")
        if marker is None:
            continue
        function = item.nodeid.partition("[")[0]
        seen[function] += 1
        if seen[function] > marker.args[0]:
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """It makes a million objects and no garbage: to look through them again and again took nearly a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()  # nor is any of it garbage later
        gc.enable()


WITHOUT_COMPILER = Path(__file__).with_name("without_compiler")


@pytest.fixture
def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes started by the test train without loading torch's compiler: half of what they take."""
    monkeypatch.setenv("PYTHONPATH", str(WITHOUT_COMPILER), prepend=os.pathsep)


WORDS = [
    "the",
    "loop",
    "reads",
    "a",
    "batch",
    "and",
    "the",
    "model",
    "learns",
    "from",
    "it",
    "while",
    "a",
    "clock",
    "looks",
    "on",
]


def corpus(num_documents: int = 60, seed: int = 0) -> str:
    """Deterministic text of short documents, one per line."""
    generator = random.Random(seed)
    return "\n".join(
        " ".join(generator.choices(WORDS, k=generator.randint(5, 60))) for _ in range(num_documents)
    )


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared directory of bytes, about 10 thousand tokens."""
    from preparing import prepare

    directory = tmp_path_factory.mktemp("corpus")
    texts = directory / "texts"
    texts.mkdir()
    for number in range(12):
        (texts / f"{number:02}.txt").write_text(corpus(10, seed=number))
    prepare([str(texts)], directory / "prepared", tokenizer="bytes", validation_fraction=0.2)
    return directory / "prepared"


@pytest.fixture
def tiny_config(tiny_settings: str, tmp_path: Path) -> Path:
    """A config file that trains 12 steps in a second or two."""
    path = tmp_path / "tiny.yaml"
    path.write_text(tiny_settings)
    return path


@pytest.fixture(scope="session")
def tiny_settings(prepared: Path) -> str:
    return f"""name: tiny
data:
  prepared: {prepared}
model:
  layers: 1
  width: 16
  heads: 2
  context: 16
train:
  steps: 12
  microbatch: 4
  compile: false
  precision: fp32
  num_threads: 1
schedule:
  warmup_steps: 4
eval:
  every_steps: 6
  windows: 4
checkpoint:
  every_steps: 4
  background: false  # saves beside the steps are where the clock has them
"""


@pytest.fixture(scope="session")
def finished_run(tiny_settings: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the tiny config leaves, for tests that only read it."""
    from hotloop.core.settings import load_settings
    from hotloop.train.start import start

    directory = tmp_path_factory.mktemp("finished")
    (directory / "tiny.yaml").write_text(tiny_settings)
    start(load_settings(directory / "tiny.yaml"), directory / "run")
    return directory / "run"


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that nothing lies in, here and in processes that are started."""
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
