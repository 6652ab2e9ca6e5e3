"""`hotloop bench` says what it measured, in words and in JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from hotloop.data.prepare import ensure_prepared
from hotloop.data.prepared import open_prepared
from hotloop.data.spec import Spec

Command = Callable[..., tuple[int, str, str]]


def test_missing_source_is_refused(hotloop: Command) -> None:
    code, _, err = hotloop("bench", "loader", "no/such/source")
    assert code == 2
    assert "no such source" in err


@pytest.mark.usefixtures("cache")
def test_both_loaders_are_measured_over_the_same_ids(
    prepared: Path,
    tmp_path: Path,
    hotloop: Command,
) -> None:
    file = tmp_path / "found.json"
    words = ["bench", "loader", str(prepared), "--batch", "4", "--context", "16", "--rounds", "3"]
    code, said, _ = hotloop(*words, "--json", file)
    assert code == 0
    found = json.loads(file.read_text())
    assert found["schema"] == "hotloop.bench_loader/1"
    assert found["same_ids"] is True
    names = [each["name"] for each in found["contestants"]]
    assert names == ["hotloop", "hotloop, packed", "DataLoader, 0 workers", "DataLoader, 2 workers"]
    for each in found["contestants"]:
        assert len(each["seconds"]) == 3
        assert min(each["seconds"]) > 0
        assert each["batches_per_round"] >= 1
    assert all(name in said for name in names)


@pytest.mark.usefixtures("cache")
def test_json_on_stdout_is_all_of_it_and_adds_up(
    corpus_directory: Path,
    hotloop: Command,
) -> None:
    """From a source, which is prepared first."""
    words = [str(corpus_directory), "--batch", "2", "--context", "8", "--rounds", "3"]
    found = json.loads(hotloop("bench", "loader", *words, "--json", "-")[1])
    assert (found["batch"], found["context"], found["rounds"]) == (2, 8, 3)
    train = open_prepared(ensure_prepared(Spec((str(corpus_directory),)))).train
    assert found["tokens_in_corpus"] == len(train)
    for each in found["contestants"]:
        speed = each["batches_per_round"] * 2 * 8 / statistics.median(each["seconds"])
        assert found["tokens_per_s"][each["name"]] == pytest.approx(speed)
    assert found["environment"]


@pytest.mark.parametrize(
    ("option", "what"),
    [
        (["--tokenizer", "bytes"], "--tokenizer has no effect"),
        (["--batch", "100000"], "one batch takes 100000"),
    ],
)
@pytest.mark.usefixtures("cache")
def test_what_cannot_be_read_from_a_prepared_directory_is_refused(
    prepared: Path, hotloop: Command, option: list[str], what: str
) -> None:
    code, _, err = hotloop("bench", "loader", prepared, *option)
    assert code == 2
    assert what in err
