from __future__ import annotations

from pathlib import Path

import pytest

from hotloop.core.config import known_keys
from hotloop.core.errors import UsageError
from hotloop.core.settings import load_settings, store_settings

BASE = "data:\n  source: python-stdlib\n"


def write(directory: Path, text: str) -> Path:
    path = directory / "config.yaml"
    path.write_text(text)
    return path


def error_of(path: Path, *overrides: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        load_settings(path, overrides)
    return caught.value


def test_misspelled_key_is_answered_with_its_line_and_the_right_name(tmp_path: Path) -> None:
    error = error_of(write(tmp_path, BASE + "train:\n  compiled: true\n"))
    assert error.what == "unknown key `train.compiled`"
    assert error.where == f"{tmp_path}/config.yaml:4"
    assert error.do == "did you mean `train.compile`?"


def test_key_in_the_wrong_section_is_answered_with_the_right_one(tmp_path: Path) -> None:
    assert error_of(write(tmp_path, BASE), "train.learning_rate=1").do == (
        "did you mean `optimizer.learning_rate`?"
    )


@pytest.mark.parametrize(
    ("text", "where", "says"),
    [
        ("train:\n  steps: many\n", ":4", "`train.steps`: input should be a valid integer"),
        ("train:\n  steps: 1.5\n", ":4", "`train.steps`"),
        ("train:\n  steps: -3\n", ":4", "greater than 0"),
        ("train:\n  steps: true\n", ":4", "`train.steps`"),
        ("train:\n  precision: fp8\n", ":4", "'bf16'"),
        ("train:\n  compile: maybe\n", ":4", "'auto' or a valid boolean"),
        ("optimizer:\n  learning_rate: 0\n", ":4", "greater than 0"),
        ("model:\n  heads: 5\n", ":4", "not a multiple of `heads` 5"),
        ("schedule:\n  warmup_steps: 5000\n", "", "leaves nothing of `train.steps`"),
        ("checkpoint:\n  keep: 1\n", ":4", "greater than or equal to 2"),
    ],
)
def test_wrong_value_is_refused_with_its_place(
    tmp_path: Path, text: str, where: str, says: str
) -> None:
    error = error_of(write(tmp_path, BASE + text))
    assert says in error.what
    assert error.where is not None
    assert error.where.endswith(f"config.yaml{where}")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("schedule:\n  name: constant\n  final_fraction: 0.2\n", "schedule.final_fraction"),
        ("train:\n  clip_norm: null\n  clip: fused\n", "train.clip"),
        ("eval:\n  every_steps: 0\n  windows: 9\n", "eval.windows"),
    ],
)
def test_setting_without_effect_is_an_error_with_its_fix(
    tmp_path: Path, text: str, key: str
) -> None:
    error = error_of(write(tmp_path, BASE + text))
    assert error.what == f"`{key}` has no effect here"
    assert error.do


def test_both_and_neither_source_are_refused(tmp_path: Path) -> None:
    assert "exactly one" in error_of(write(tmp_path, "data:\n  prepared: x\n  source: y\n")).what
    assert "`data` is missing" in error_of(write(tmp_path, "name: x\n")).what


@pytest.mark.parametrize(
    "text", ["- a\n- b\n", "a: [1\n", "data: {source: a}\ndata: {source: b}\n", "? [a]\n: b\n"]
)
def test_text_that_is_no_config_is_one_clear_error(tmp_path: Path, text: str) -> None:
    assert error_of(write(tmp_path, text)).where


def test_missing_file_and_binary_file_are_one_clear_error(tmp_path: Path) -> None:
    assert "no such config file" in error_of(tmp_path / "none.yaml").what
    (tmp_path / "config.yaml").write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in error_of(tmp_path / "config.yaml").what
    assert error_of(tmp_path).where == str(tmp_path)


def test_python_tags_are_not_read(tmp_path: Path) -> None:
    error = error_of(write(tmp_path, "name: !!python/object/apply:os.getcwd []\n" + BASE))
    assert "not valid YAML" in error.what


def test_every_value_knows_its_origin(tmp_path: Path) -> None:
    path = write(tmp_path, BASE + "optimizer:\n  learning_rate: 3e-4\n")
    settings = load_settings(path, ["train.steps=200"])
    assert settings.config.optimizer.learning_rate == 3e-4
    assert settings.origin("optimizer.learning_rate") == f"{path}:4"
    assert settings.origin("train.steps") == "flag"
    assert settings.origin("model.width") == "default"


def test_stored_config_reads_back_with_values_origins_and_digest(tmp_path: Path) -> None:
    path = write(tmp_path, BASE + "schedule:\n  name: constant\n")
    settings = load_settings(path, ["train.seed=7"])
    store_settings(settings, tmp_path / "stored.yaml")
    again = load_settings(tmp_path / "stored.yaml")
    assert again.config == settings.config
    assert again.origins == settings.origins
    assert again.config.digest() == settings.config.digest()


def test_digest_tells_settings_apart(tmp_path: Path) -> None:
    path = write(tmp_path, BASE)
    assert load_settings(path).config.digest() != (
        load_settings(path, ["train.seed=1"]).config.digest()
    )


def test_config_is_frozen(tmp_path: Path) -> None:
    config = load_settings(write(tmp_path, BASE)).config
    with pytest.raises(ValueError, match="frozen"):
        config.train.steps = 3  # type: ignore[misc]


def test_flag_for_prepared_data_takes_the_place_of_the_files_source(tmp_path: Path) -> None:
    path = write(tmp_path, BASE + "  tokenizer: bytes\n")
    data = load_settings(path, ["data.prepared=somewhere"]).config.data
    assert (data.prepared, data.source) == ("somewhere", None)
    assert "exactly one" in error_of(path, "data.prepared=a", "data.source=b").what
    other = write(tmp_path, "data:\n  prepared: somewhere\n")
    assert load_settings(other, ["data.source=text"]).config.data.source == "text"


def test_flag_that_turns_something_off_does_not_blame_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, BASE + "eval:\n  every_steps: 20\n  windows: 8\n")
    assert load_settings(path, ["eval.every_steps=0"]).config.eval.every_steps == 0
    assert "no effect" in error_of(path, "eval.every_steps=0", "eval.windows=3").what


@pytest.mark.parametrize(
    "override",
    [
        "optimizer.learning_rate=.inf",
        "optimizer.weight_decay=.inf",
        "train.seed=99999999999999999999",
        "train.num_threads=100000",
        "name=../elsewhere",
    ],
)
def test_value_that_would_break_later_is_refused_at_once(tmp_path: Path, override: str) -> None:
    assert error_of(write(tmp_path, BASE), override).what


def test_every_key_is_listed_with_its_default_and_a_whole_sentence() -> None:
    keys = known_keys()
    assert keys["train.microbatch"].default == "8"
    assert keys["data.source"].default == "null"
    for name, key in keys.items():
        assert "\n" not in key.summary, name
        if key.description:
            assert key.summary.endswith((".", ")")), f"{name}: {key.summary}"
            assert key.summary.count("`") % 2 == 0, name
