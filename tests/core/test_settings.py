from __future__ import annotations

import os
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
        ("train:\n  compile: maybe\n", ":4", "'auto', 'blocks', "),
        ("optimizer:\n  learning_rate: 0\n", ":4", "greater than 0"),
        ("model:\n  heads: 5\n", ":4", "not a multiple of `heads` 5"),
        ("schedule:\n  warmup_steps: 5000\n", ":4", "leaves nothing of `train.steps`"),
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


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: &x {k: v}\nb: &y {a: *x, b: *x}\n", 2),
        ("data: &a {mix: *a}\n", 1),
        ("a: &a [1]\ndata:\n  source: [*a, *a]\n", 3),
    ],
)
def test_alias_is_refused_with_its_line(tmp_path: Path, text: str, line: int) -> None:
    error = error_of(write(tmp_path, text))
    assert error.what == "not valid YAML: an alias is not read here; write the value out"
    assert error.where == f"{tmp_path}/config.yaml:{line}"


@pytest.mark.parametrize(
    "value",
    [
        "0b_",
        "0x_",
        "!!int abc",
        "!!float x",
        "!!bool x",
        "!!timestamp x",
        "!!binary a",
        "9" * 5000,
        "[" * 3000,
        "{a: " * 3000,
        "!!python/name:os.system",
        ":".join("9" * 3000),
    ],
)
def test_value_that_yaml_cannot_make_is_one_clear_error(tmp_path: Path, value: str) -> None:
    from_flag = error_of(write(tmp_path, BASE), f"train.steps={value}")
    assert from_flag.what.startswith("not valid YAML: ")
    assert from_flag.where == f"train.steps={value}" or len(from_flag.where or "") == 80
    from_file = error_of(write(tmp_path, f"{BASE}train:\n  steps: {value}\n"))
    assert from_file.where == f"{tmp_path}/config.yaml:4"
    assert len(str(from_file)) < 400


@pytest.mark.parametrize("text", ["origins: 5\n", "origins: [1]\n", "origins: {a: 1}\n"])
def test_origins_that_are_no_words_are_refused(tmp_path: Path, text: str) -> None:
    error = error_of(write(tmp_path, BASE + text))
    assert "`origins`" in error.what
    assert error.where == f"{tmp_path}/config.yaml:3"


def test_date_is_text_and_a_long_value_is_cut(tmp_path: Path) -> None:
    assert load_settings(write(tmp_path, BASE + "name: 2001-12-15\n")).config.name == "2001-12-15"
    listed = error_of(write(tmp_path, BASE + "name: [2001-12-15]\n"))
    assert listed.what.endswith("not ['2001-12-15']")
    long = error_of(write(tmp_path, BASE), f"name={'-' * 5000}")
    assert len(str(long)) < 400


def test_section_whose_keys_are_all_commented_out_has_its_defaults(tmp_path: Path) -> None:
    settings = load_settings(write(tmp_path, BASE + "train:\n  # steps: 5\nmodel:\n"))
    assert settings.config.train.steps == 1000
    assert error_of(write(tmp_path, "data:\n")).what == "`data` is missing"


@pytest.mark.parametrize(
    ("text", "overrides", "where"),
    [
        (BASE + "train: 5\n", (), "{path}:3"),
        ("data: foo\n", (), "{path}:1"),
        (BASE, ("train=5",), "train=5"),
        (BASE, ("data.reading=text",), "data.reading=text"),
    ],
)
def test_value_for_a_section_is_answered_with_how_to_set_its_keys(
    tmp_path: Path, text: str, overrides: tuple[str, ...], where: str
) -> None:
    path = write(tmp_path, text)
    error = error_of(path, *overrides)
    assert "is a section, not a setting" in error.what
    assert error.where == where.format(path=path)
    assert error.do
    assert "set its keys" in error.do


def test_dotted_key_in_a_file_is_answered_with_how_it_is_written_there(tmp_path: Path) -> None:
    error = error_of(write(tmp_path, BASE + "train.steps: 5\n"))
    assert error.what == "`train.steps` is written with a dot, which only flags are"
    assert error.do == "write `steps` indented below `train:`"


@pytest.mark.parametrize(
    "override",
    [
        f"model.context={10**21}",
        "model.context=3000000",
        f"model.width={4 * 10**18}",
        "model.layers=1000000",
        f"train.steps={10**12}",
        f"checkpoint.keep={10**12}",
        f"data.shuffle_buffer={10**12}",
    ],
)
def test_integer_has_an_upper_bound_that_the_error_states(tmp_path: Path, override: str) -> None:
    error = error_of(write(tmp_path, BASE), override)
    assert "less than or equal to" in error.what or "is no int that can be read" in error.what


def test_config_that_is_no_regular_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), Path("/dev/full")):
        assert "not a regular file" in error_of(path).what
    (tmp_path / "large.yaml").write_bytes(b"# comment\n" * 100_000)
    assert "larger than" in error_of(tmp_path / "large.yaml").what


def test_place_of_a_value_is_its_line_or_the_flag_itself(tmp_path: Path) -> None:
    path = write(tmp_path, BASE + "train:\n  steps: 5000\n")
    settings = load_settings(path, ["train.precision=tf32", "train.clip_norm=null"])
    assert settings.place("train.steps") == f"{path}:4"
    assert settings.place("train.precision") == "train.precision=tf32"
    assert settings.place("train.clip_norm") == "train.clip_norm=null"
    assert settings.place("model.width") is None


def test_contradiction_of_a_section_is_found_at_the_flag_that_made_it(tmp_path: Path) -> None:
    config = write(tmp_path, f"{BASE}train:\n  steps: 20\nschedule:\n  warmup_steps: 5\n")
    flag = "schedule.warmup_steps=999"
    assert error_of(config, flag).where == flag
    both = write(tmp_path, f"{BASE}train:\n  steps: 20\nschedule:\n  warmup_steps: 999\n")
    assert error_of(both).where == f"{tmp_path}/config.yaml:6"
