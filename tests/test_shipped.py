"""What is shipped works as written: configs, README commands, examples."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest

from hotloop.cli.main import EXTRAS, group
from hotloop.core.settings import load_settings
from hotloop.hardware.limits import Machine
from hotloop.optimizations.catalogue import CONFIGURED, resolve
from hotloop.quickstart.arms import refuse_what_the_script_cannot_do

REPOSITORY = Path(__file__).parents[1]
CONFIGS = sorted((REPOSITORY / "configs").glob("*.yaml"))
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
TRAINER = (REPOSITORY / "docs" / "TRAINER.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_config_loads_names_a_text_source_and_resolves(path: Path) -> None:
    settings = load_settings(path)
    assert settings.config.data.source == "python-stdlib"
    assert settings.config.name == path.stem
    for device in ("cpu", "cuda"):
        resolve(settings, Machine(device, ("bfloat16", "float32"), None, 2))


@pytest.mark.parametrize("name", ["quickstart", "llama-32k", "gpt2-124m-cpu"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_config_and_its_plain_twin_differ_in_techniques_alone(name: str, device: str) -> None:
    """As they become on a machine that can do everything: the twin has every technique off."""
    machine = Machine(device, ("bfloat16", "float32"), None, 2)
    settings = [load_settings(REPOSITORY / f"configs/{n}.yaml") for n in (name, f"{name}-plain")]
    refuse_what_the_script_cannot_do(settings[0].config)
    tuned, plain = (resolve(s, machine)[0].config.flat() for s in settings)
    for technique in CONFIGURED.values():
        assert plain[technique.key] == technique.off
    different = {key for key, value in tuned.items() if plain[key] != value}
    assert {"train.precision", "train.compile", "optimizer.fused"} <= different
    assert different <= {"name", *(technique.key for technique in CONFIGURED.values())}


@pytest.mark.parametrize(
    ("name", "beside"),
    [
        ("plain_gpt", set()),
        ("plain_llama", {"plain_gpt"}),
        ("compiled_gpt", {"plain_gpt", "plain_llama"}),
    ],
)
def test_example_imports_nothing_of_ours(name: str, beside: set[str]) -> None:
    text = (REPOSITORY / f"examples/{name}.py").read_text(encoding="utf-8")
    imported = set(re.findall(r"^(?:from|import) (\w+)", text, flags=re.MULTILINE))
    assert imported <= {"argparse", "json", "math", "pathlib", "numpy", "torch"} | beside


def test_readme_names_only_targets_and_files_that_are_there() -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`?make ([a-z]+)", README):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
    docs = ("docs/TRAINER.md", "docs/USING.md", "docs/VERDICTS.md")
    for page in (REPOSITORY / name for name in ("README.md", *docs)):
        for link, heading in re.findall(
            r"\]\(([^)#]+)#?([^)]*)\)", page.read_text(encoding="utf-8")
        ):
            target = page.parent / link
            assert link.startswith("https://") or target.exists(), link
            if heading:
                found = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
                assert heading in [each.lower().replace(" ", "-") for each in found]


def test_what_the_readme_says_of_its_recorded_run_is_in_its_picture() -> None:
    picture = (REPOSITORY / "docs" / "answer.svg").read_text(encoding="utf-8")
    assert len(picture) < 40_000
    assert re.findall(r"<script|@font-face|(?:href|src|url)\W+http", picture) == []
    texts = ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")
    drawn = " ".join(each.text or "" for each in texts).replace("\u00a0", " ")
    recorded = README.partition("<!-- recorded: begin -->")[2].partition("<!-- recorded: end")[0]
    said = re.sub(r"\]\([^)]*\)|`[^`]*`|A script of \d+ lines|1\.5 ms", "", recorded)
    numbers = re.findall(r"\d[\d.-]*\d|\d", said)
    assert len(numbers) >= 10
    assert [each for each in numbers if each not in re.findall(r"\d[\d.-]*\d|\d", drawn)] == []


def test_what_each_optimization_brings_is_as_it_was_recorded() -> None:
    def rows_of(page: str) -> list[tuple[str, ...]]:
        """Of the first table whose rows are techniques, without the mark of what a longer run would measure further."""
        table = page.partition("| technique, alone |")[2].partition("\n\n")[0].splitlines()[2:]
        cells = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in table]
        return [(*row[:-1], row[-1].removeprefix("open: ")) for row in cells]

    results = REPOSITORY / "benchmarks" / "results" / "effectiveness-quickstart-plain.md"
    recorded = rows_of(results.read_text(encoding="utf-8"))
    decided = [row for row in recorded if row[-1].strip("*") in ("faster", "slower")]
    assert len(decided) == 4
    assert rows_of(README) == decided
    assert len([row for row in recorded if row[-1].startswith(("inconclusive", "no gain"))]) == 10


def test_the_picture_is_of_the_script_that_is_shipped() -> None:
    picture = (REPOSITORY / "docs" / "answer.svg").read_text(encoding="utf-8")
    script = (REPOSITORY / "benchmarks" / "answer" / "io.py").read_text(encoding="utf-8")
    lines = script.splitlines()
    sites = set(re.findall(r"\bio\.py:(\d+)", picture))
    named = {lines[int(site) - 1].strip() for site in sites}
    assert named == {"def __getitem__(self, i):", *(x for x in lines if "= DataLoader(" in x)}
    assert "sleep(0.0015)" in script
    assert f"A script of {len([line for line in lines if line.strip()])} lines" in README


def test_what_a_package_index_shows_has_no_dead_link() -> None:
    shown = subprocess.run(
        [sys.executable, "setup.py", "--long-description"],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "](" in README
    assert re.findall(r"\]\((?!https://)[^)]*\)", shown) == []
    assert len(shown.rstrip().splitlines()) == len(README.splitlines())


@pytest.mark.usefixtures("without_compiler")
def test_commands_for_ones_own_text_run_as_written(tmp_path: Path) -> None:
    block = next(
        b for b in re.findall(r"```\n(.*?)```", TRAINER, flags=re.DOTALL) if "my-texts" in b
    )
    texts = tmp_path / "my-texts"
    texts.mkdir()
    for number in range(8):
        (texts / f"{number}.txt").write_text(f"Once there was a loop, number {number}. " * 80)
    (tmp_path / "configs").symlink_to(REPOSITORY / "configs")
    hotloop = f"{sys.executable} -m hotloop"
    script = "set -e\n" + block.replace(".venv/bin/hotloop", hotloop).replace(":8192", ":300")
    ended = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "HOTLOOP_CACHE": str(tmp_path / "cache")},
    )
    assert ended.returncode == 0, ended.stderr
    assert "Once" in ended.stdout.splitlines()[-1] or "Once" in ended.stdout
    assert "total" in ended.stdout  # the breakdown that adds up


def test_commands_in_the_docs_are_understood() -> None:
    """Of every block the names of commands and options, and what these are given. Nothing is run."""
    found = []
    for page in (REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")):
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for block in re.findall(r"^```(?:bash)?\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
            found += re.findall(r"^(?:\.venv/bin/)?hotloop ([a-z].*?)(?: &)?$", block, re.MULTILINE)
    found += re.findall(r"`hotloop ([a-z]+ -.*?\w)`", README)
    assert len(found) > 30
    for line in found:
        name, *words = shlex.split(line, comments=True)
        command = group.get_command(click.Context(group), name)
        while isinstance(command, click.Group):
            command = command.get_command(click.Context(command), words.pop(0))
        assert command is not None, line
        command.make_context(name, words)


@pytest.mark.parametrize("page", ["docs/TRAINER.md", "docs/BATCHES.md"])
def test_settings_shown_in_the_docs_are_settings(page: str, tmp_path: Path) -> None:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL)
    assert blocks
    for number, block in enumerate(blocks):
        path = tmp_path / f"{number}.yaml"
        path.write_text(block)
        load_settings(path)


def test_extras_that_are_named_are_there_and_listed() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(project["optional-dependencies"]) - {"dev"}
    sources = (path.read_text(encoding="utf-8") for path in (REPOSITORY / "src").rglob("*.py"))
    saying = r"(?:hotloop\[|(?:pip_install|not_installed|importing)\([\"'])(\w+)"
    named = {name for text in sources for name in re.findall(saying, text)}
    assert {"zstd", "pid", "lora", "fast"} <= named
    assert named | set(EXTRAS.values()) <= extras
    using = (REPOSITORY / "docs" / "USING.md").read_text(encoding="utf-8")
    listed = using[using.index("| extra |") : using.index("## From a clone")]
    assert set(re.findall(r"`(\w+)`", listed)) >= extras


def test_the_extra_keeps_the_oldest_transformers_that_fine_tuning_is_said_to_take() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (REPOSITORY / "docs" / "FINETUNE.md").read_text(encoding="utf-8")
    (oldest,) = re.findall(r"transformers (\S+) or newer is needed", page)
    assert project["optional-dependencies"]["export"] == [f"transformers>={oldest}"]


def test_commands_for_ones_own_script_load_without_any_extra() -> None:
    commands = ["cli.doctor", "runs.run_page", "cli.monitor", "cli.explain", "cli.env"]
    modules = [*commands, "doctor.program", "doctor.fix_campaign", "doctor.patch.write"]
    program = f"""
import importlib, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {set(EXTRAS)!r}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Refuse())
for module in {modules!r}:
    importlib.import_module("hotloop." + module)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
