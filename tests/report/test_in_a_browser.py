"""The page as a browser draws it: readable on a phone and in both themes, and its buttons copy what they say.

Skipped where there is no Chromium. Pictures of every page go to the directory that `HOTLOOP_SCREENSHOTS` names, else to
pytest's temporary directory (`screenshots*`).
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cases import CASES
from record import load

from browser import NAMES, Browser, find_browser
from full_page import FULL
from hotloop.core.command_run import CommandRun
from hotloop.core.files import write_json
from hotloop.core.judgement import Interval, Parity, Verdict
from hotloop.core.ledger import Ledger, TriedFix
from hotloop.judge.diagnose import diagnose
from hotloop.report.html import Page, write_html
from hotloop.runs.run_page import page_of
from hotloop.runs.stored_run import read_run

PROGRAM = find_browser()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason=f"none of {', '.join(NAMES)} is on PATH")

REPOSITORY = Path(__file__).parents[2]
MEASURE = """
(() => {
  document.querySelectorAll("details").forEach((each) => (each.open = true));
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const over = ([r, g, b, a = 1], [x, y, z]) => [r * a + x * (1 - a), g * a + y * (1 - a), b * a + z * (1 - a)];
  const light = (rgb) => {
    const [r, g, b] = rgb.map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    if (!node) return [255, 255, 255];
    const own = parts(getComputedStyle(node).backgroundColor);
    return own[3] === 0 ? behind(node.parentElement) : over(own, own.length > 3 ? behind(node.parentElement) : own);
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const pale = [];
  let texts = 0;
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const holder = text.parentElement;
    if (!text.data.trim() || !holder.checkVisibility({visibilityProperty: true})) continue;
    texts += 1;
    const ground = behind(holder);
    let letters = over(parts(getComputedStyle(holder).color), ground);
    for (let node = holder; node; node = node.parentElement) {
      letters = over([...letters, Number(getComputedStyle(node).opacity)], ground);
    }
    const [dark, bright] = [light(letters), light(ground)].sort((a, b) => a - b);
    const contrast = (bright + 0.05) / (dark + 0.05);
    if (contrast < 4.5) pale.push(`${contrast.toFixed(2)} ${text.data.trim().slice(0, 40)}`);
  }
  const root = document.documentElement;
  const wide = [...document.querySelectorAll("main *")].filter(
    (each) => each.getBoundingClientRect().right > root.clientWidth + 1 && !each.closest(".wide, svg"));
  return {
    texts, pale, ground: behind(document.body), width: root.clientWidth, needed: root.scrollWidth,
    outside: wide.map((each) => `${each.tagName} ${each.className} ${each.textContent.slice(0, 40)}`),
  };
})()
"""


def examined(directory: Path, name: str, *, ledger: Ledger | None, patch: str = "") -> Page:
    """The page of a recorded patient, from its files, as `hotloop report` makes it."""
    case = next(each for each in CASES if each.name == name)
    measurement = load(case.recorded(healthy=False))
    run = CommandRun(
        ("python", f"tests/patients/{name}.py"), str(REPOSITORY), time.time(), "0.1.0", seconds=60.0,
        ended="enough_steps", wall_s=66.0,
    )  # fmt: skip
    here = directory / name
    kept = here / "before" / "files" / "tests" / "patients"
    kept.mkdir(parents=True)
    shutil.copy(case.script, kept)
    write_json(here / "doctor.json", run)
    write_json(here / "measurement.json", measurement)
    write_json(here / "diagnosis.json", diagnose(measurement))
    if ledger is not None:
        write_json(here / "ledger.json", ledger)
    return replace(page_of(read_run(here)), patch=patch)


LOADER = "loader = DataLoader(Slow(), batch_size=16, shuffle=True"
PATCH = (
    f"--- a/io.py\n+++ b/io.py\n@@ -1,2 +1,2 @@\n-{LOADER})\n+{LOADER}, num_workers=8)\n"
    f' x = "<b>&amp;</b>"\r\n {"a_name_" * 30}\n'
)
FASTER = Verdict(
    "improved", 9.08, 8.59, 9.59, 0.99,
    Parity("same", "bitwise", num_steps=60, max_difference=0.0, reason="the losses are equal"),
    "baseline", "together-loader_workers", num_pairs=4, pair_ratios=(8.9, 8.95, 9.2, 9.25),
    noise_floor=0.017, baseline_s_per_work=0.028, candidate_s_per_work=0.0031, unit="step",
)  # fmt: skip
SAME = replace(FASTER, outcome="unchanged", ratio=1.0, ratio_low=0.99, ratio_high=1.005)
KEPT = TriedFix(
    "loader_workers", 8, "kept", "faster, and learns the same", ("HL106",), 6.07,
    Interval(3.6, 3.11, 4.22), FASTER, start_s=0.198, pays_after_steps=8, memory_bytes=161_000_000,
    patch="edited", patch_text="io.py:14",
)  # fmt: skip
FIXES = (
    TriedFix("fused_optimizer", True, "rejected", "no gain", ("HL401", "HL106"), 1.1, verdict=SAME),
    KEPT,
    TriedFix("precision", "bf16", "not_tried", "loader_workers already brings what its finding promised"),
    replace(KEPT, name="compile", value=True, patch="words", patch_text="at io.py:13: model = torch.compile(model)"),
)  # fmt: skip
ON = "hotloop doctor --out runs/doctor-io --budget 12m -- python tests/patients/slow_metrics.py"


def tried(*fixes: TriedFix, kept: tuple[str, ...]) -> Ledger:
    command = ("python", "io.py")
    together = FASTER if kept else None
    return Ledger(
        command, fixes, kept, together, 19, 216, 48.9, 300.0, diff="runs/doctor-io/fix.patch",
        isolation="layer", forked=True, continue_with=None if kept else ON,
    )  # fmt: skip


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page with a kept fix, one where none was kept, one where none was tried, and one with everything else."""
    runs, found = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("pages")
    both = tried(*FIXES, kept=("loader_workers", "compile"))
    none = tried(FIXES[0], FIXES[2], kept=())
    pages = {
        "kept": examined(runs, "io_wait", ledger=both, patch=PATCH),
        "none-kept": examined(runs, "slow_metrics", ledger=none),
        "none-tried": examined(runs, "slow_collate", ledger=None),
        "everything": FULL,
    }
    for name, page in pages.items():
        write_html(found / f"{name}.html", page)
    return {name: found / f"{name}.html" for name in pages}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert PROGRAM is not None
    started = Browser(PROGRAM, tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    named = os.environ.get("HOTLOOP_SCREENSHOTS")
    if named is None:
        return tmp_path_factory.mktemp("screenshots")
    Path(named).mkdir(parents=True, exist_ok=True)
    return Path(named)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1200])
def test_every_text_can_be_read_and_nothing_lies_outside_of_the_window(
    browser: Browser, pages: dict[str, Path], pictures: Path, width: int, theme: str
) -> None:
    for name, page in pages.items():
        browser.show(page, width=width, theme=theme)
        browser.picture(pictures / f"{name}-{width}-{theme}.png")
        seen = browser.value(MEASURE)
        assert seen["texts"] > 100, name
        assert (sum(seen["ground"]) > 380) == (theme == "light")
        assert seen["pale"] == [], name
        assert seen["outside"] == [], name
        assert seen["needed"] <= seen["width"] == width, name


def test_buttons_copy_the_diff_and_the_command_to_the_last_byte(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.show(pages["kept"], width=1200, theme="light")
    copied = {}
    for number in range(browser.value('document.querySelectorAll(".copied button").length')):
        button = f'document.querySelectorAll(".copied button")[{number}]'
        said = browser.value(f"{button}.textContent")
        after = browser.value(f"{button}.click(), {button}.textContent")
        copied[said] = after, browser.value("navigator.clipboard.readText()")
    assert copied == {
        "Copy the command": ("Copied", "git apply runs/doctor-io/fix.patch"),
        "Copy the diff": ("Copied", PATCH),
    }


def test_a_script_that_is_not_the_pages_own_does_not_run(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    write_html(page, FULL)
    said = json.dumps("it ran")
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("<main>", f"<main><script>document.title = {said}</script>"))
    browser.show(page, width=1200, theme="light")
    assert browser.value("document.title") == FULL.title
