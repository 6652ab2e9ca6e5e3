"""What holds somebody's command back, in words and on the page."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from types import ModuleType
from typing import cast, get_args

import pytest

from hotloop.core.census import (
    CallUse,
    Census,
    LineUse,
    LoaderUse,
    OperatorUse,
)
from hotloop.core.command_run import CommandRun, Ended
from hotloop.core.judgement import Bound, Diagnosis, Finding, Steps, Worth
from hotloop.judge.findings import FINDINGS
from hotloop.judge.thresholds import FOREIGN, HEALTHY_BELOW
from hotloop.report.evidence import evidence_rows, operator_rows, use_rows
from hotloop.report.examined import (
    BUSY_MACHINE,
    CLAUSES,
    ENDED_BEFORE,
    NO_STEPS,
    NOT_ATTACHED,
    NOT_WRITTEN,
    WORTH_SAYING,
    cause,
    command_rows,
    examined_answer,
    held_back,
    why_no_step,
)
from hotloop.report.html import Page, render_html
from hotloop.report.terminal import BOUNDS, render_diagnosis

HOST = {"data_wait": 0.31, "forward": 0.3, "backward": 0.35, "unattributed": 0.04}
STEPS = Steps(60, 5, 0.2)
FINDING = Finding(
    "HL102",
    "Batches are made between the steps",
    1.45,
    site="train.py:42",
    evidence={"wait_s": 0.062, "data_wait_fraction": 0.31, "num_workers": 0, "unknown_s": None},
    optimization="loader_workers",
    advice="give the loader workers",
)


def run(ended: Ended | None = "by_itself", returncode: int | None = 0) -> CommandRun:
    return CommandRun(
        ("python", "train.py", "--name", "a b"),
        "/work",
        1e9,
        "0.1.0",
        steps=60 if ended == "enough_steps" else None,
        ended=ended,
        returncode=returncode,
        wall_s=200.0,
    )


def diagnosis(bound: Bound | None = "input", **more: object) -> Diagnosis:
    values = {"breakdown": HOST, "findings": (FINDING,), **more}
    return Diagnosis(bound, STEPS, **values)  # type: ignore[arg-type]


def test_the_answer_names_the_wait_the_gain_and_the_line() -> None:
    assert examined_answer(run(), diagnosis(), num_steps=60) == (
        "The training waits for data 31 % of the time; without that, all else equal, it could be up to 1.45x as fast "
        "(HL102, train.py:42: batches are made between the steps)."
    )


def test_the_headline_is_about_the_first_finding_with_its_own_share() -> None:
    fused = Finding(
        "HL401",
        "The optimizer is not fused",
        1.59,
        site="t.py:17",
        evidence={"optimizer_fraction": 0.37},
    )
    assert examined_answer(run(), diagnosis("input", findings=(fused,)), num_steps=60) == (
        "Updating the weights takes 37 % of the time; without that, all else equal, it could be up to 1.59x as fast "
        "(HL401, t.py:17: the optimizer is not fused)."
    )
    elsewhere = Finding(
        "HL801", "Own code", 3.4, site="t.py:7", evidence={"rank": 1, "own_fraction": 0.7}
    )
    text = examined_answer(run(), diagnosis(None, findings=(elsewhere,)), num_steps=60)
    assert text.startswith("On rank 1 the script's own code between the phases takes 70 % of the")


def test_what_most_of_the_step_is_stands_before_what_can_be_had() -> None:
    host = {"forward": 0.3, "backward": 0.37, "optimizer": 0.22, "unattributed": 0.11}
    fused = Finding(
        "HL401", "The optimizer is not fused", 1.38, site="t.py:33",
        evidence={"optimizer_fraction": 0.22},
    )  # fmt: skip
    shown = diagnosis("compute", findings=(fused,), breakdown=host)
    assert examined_answer(run(), shown, num_steps=60) == (
        "The training computes 67 % of the time; updating the weights takes 22 % of the time; without "
        "that, all else equal, it could be up to 1.38x as fast (HL401, t.py:33: the optimizer is not fused)."
    )
    assert ", mostly computing\n" in render_diagnosis(shown)


def test_every_bound_has_words_for_the_terminal() -> None:
    assert set(BOUNDS) == set(get_args(Bound))
    assert len(set(BOUNDS.values())) == len(BOUNDS)


def test_page_has_every_finding_and_the_terminal_says_so() -> None:
    many = tuple(replace(FINDING, code=f"HL10{n}") for n in range(5))
    shown = diagnosis(findings=many)
    assert "and 2 more in the page and the JSON" in render_diagnosis(shown)
    page = render_html(Page("t", diagnosis=shown))
    assert all(each.code in page for each in many)


def test_what_could_gain_less_than_five_per_cent_is_no_headline() -> None:
    assert WORTH_SAYING == HEALTHY_BELOW
    small = Finding("HL703", "Logging takes time", 1.04, evidence={"logging_fraction": 0.04})
    text = examined_answer(run(), diagnosis("compute", findings=(small,)), num_steps=60)
    assert text == (
        "The training computes 65 % of the time; nothing was found that would make it 5 % faster."
    )


def test_the_answer_of_a_busy_machine_says_so() -> None:
    assert BUSY_MACHINE == FOREIGN
    text = examined_answer(run(), diagnosis(), num_steps=60, foreign_busy=0.43)
    assert text.endswith(
        "Other programs kept 43 % of the CPUs busy meanwhile: these numbers are rough."
    )
    quiet = examined_answer(run(), diagnosis(), num_steps=60, foreign_busy=0.19)
    assert "ther programs" not in quiet
    told = replace(FINDING, evidence={**FINDING.evidence, "other_programs_fraction": 0.43})
    text = examined_answer(run(), diagnosis(findings=(told,)), num_steps=60, foreign_busy=0.43)
    assert text.count("ther programs") == 1


def test_runs_of_one_id_are_called_padding_only_where_a_mask_says_so() -> None:
    padded = Finding("HL111", "Much of each batch is padding", 1.6, evidence={"padded_fraction": 0.47, "source": "attention_mask"})  # fmt: skip
    assert cause(padded, who="the training") == "padding is 47 % of the tokens"
    guessed = replace(padded, evidence={"padded_fraction": 0.47, "source": "trailing id 3"})
    assert cause(guessed, who="the training") == (
        "47 % of the tokens are runs of id 3 at the ends of rows, as padding is"
    )


def test_what_was_not_looked_at_is_not_called_absent() -> None:
    unknown = Worth("not known", "the script's own lines: not observed")
    text = examined_answer(run(), diagnosis("compute", findings=(), worth=unknown), num_steps=60)
    assert text == "The training computes 65 % of the time; what would help is not known."
    few = replace(diagnosis("compute", findings=(), worth=unknown), steps=Steps(28, 10, 0.01, made=40, enough=120))  # fmt: skip
    assert "is not known from 40 steps (about 120 would do)." in examined_answer(run(), few, num_steps=28)  # fmt: skip
    text = examined_answer(run(), diagnosis(None, findings=(), worth=unknown), num_steps=60)
    assert text == "What holds the training back is not known."


@pytest.mark.parametrize("code", FINDINGS)
def test_a_share_that_a_finding_tells_has_its_words(code: str) -> None:
    shares = re.findall(r'"(\w+_fraction)"', inspect.getsource(cast(ModuleType, FINDINGS[code])))
    assert not shares or CLAUSES.keys() & set(shares)


def test_on_a_device_only_the_exposed_part_counts() -> None:
    device = {"compute": 0.88, "idle": 0.12}
    assert held_back(diagnosis(device=device)) == "the device waits for data 12 % of the time"


@pytest.mark.parametrize("bound", [*get_args(Bound), None])
@pytest.mark.parametrize("device", [None, {"compute": 0.7, "idle": 0.3}])
def test_every_bound_has_its_words(bound: Bound | None, device: dict[str, float] | None) -> None:
    words = held_back(diagnosis(bound, device=device))
    assert words[0].islower()
    assert not words.endswith(".")
    others = {held_back(diagnosis(each, device=device)) for each in get_args(Bound)}
    assert len(others) == len(get_args(Bound))


def test_data_that_the_loop_makes_itself_is_not_called_waiting() -> None:
    host = {"forward": 0.1, "backward": 0.1, "unattributed": 0.8}
    itself = Finding(
        "HL107",
        "The training thread prepares the data itself",
        4.0,
        evidence={"own_fraction": 0.74},
        gain_is_loose=True,
    )
    found = diagnosis(findings=(itself,), breakdown=host)
    assert held_back(found) == "the training thread prepares the data itself 74 % of the time"
    waits = replace(found, breakdown={"data_wait": 0.8, "unattributed": 0.2})
    assert held_back(waits) == "the training waits for data 80 % of the time"


def test_nothing_found_is_an_answer() -> None:
    text = examined_answer(run(), diagnosis("compute", findings=()), num_steps=60)
    assert text == (
        "The training computes 65 % of the time; nothing was found that would make it 5 % faster."
    )


def test_a_finding_whose_bound_is_loose_is_named_and_nothing_promised() -> None:
    loose = Finding("HL302", "Eager", 9.0, gain_is_loose=True)
    text = examined_answer(run(), diagnosis("compute", findings=(loose,)), num_steps=60)
    assert text == (
        "The training computes 65 % of the time; eager (HL302): what that costs shows only when tried."
    )


@pytest.mark.parametrize(
    ("ended", "returncode", "words"),
    [
        ("failed", 3, "the command ended with exit code 3"),
        ("failed", -9, "the command was killed by SIGKILL"),
        ("interrupted", 1, "it was interrupted"),
        (None, None, "its end was not recorded"),
    ],
)
def test_an_end_that_is_not_its_own_is_in_the_answer(
    ended: Ended | None, returncode: int | None, words: str
) -> None:
    assert words in examined_answer(run(ended, returncode), diagnosis(), num_steps=60)
    assert words in examined_answer(run(ended, returncode), None, num_steps=0)


def test_a_run_that_ends_before_the_steps_that_were_asked_for_says_how_many_were_counted() -> None:
    early = replace(run(), steps=1000)
    assert examined_answer(early, diagnosis(), num_steps=60).endswith(
        "; it ended before the 1,000 steps that were asked for: 60 were counted."
    )
    assert "asked for: 0 were counted" in examined_answer(early, None, num_steps=0)
    for whole in (run(), replace(early, ended="enough_steps"), replace(early, steps=60)):
        assert "asked for" not in examined_answer(whole, diagnosis(), num_steps=60)


def test_few_steps_are_said_to_be_few() -> None:
    assert "Only 2 steps say so" in examined_answer(run(), diagnosis(), num_steps=2)
    warmup = Diagnosis(None, Steps(0, 5, None))
    text = examined_answer(run(), warmup, num_steps=0)
    assert text == "Only 5 steps of warm-up were seen; it takes 50 steps in all, or more."
    assert examined_answer(run(), None, num_steps=0) == "No step was recorded."


def test_without_a_step_the_reason_fits_what_was_seen() -> None:
    def why(
        attached: bool, told: bool, ended: CommandRun, backwards: int = 0, stepped: bool = False
    ) -> list[str]:
        return why_no_step(
            attached=attached, told=told, stepped=stepped, backwards=backwards, run=ended
        )

    assert why(False, False, run()) == [NOT_ATTACHED]
    assert why(False, True, run()) == []
    assert why(True, False, run(), 3) == [
        f"torch was used; seen: no step of an optimizer, 3 passes backward; {NO_STEPS}"
    ]
    assert "hotloop.step()" in NO_STEPS
    assert why(True, False, run("failed", 1)) == ["it ended before its first step"]
    assert why(False, False, run(None, None)) == []
    # Killed before its files were written: nothing is denied that was not observed.
    for ended in (run(), run("failed", -11), run("interrupted", -15)):
        assert why(True, False, ended, stepped=True) == [NOT_WRITTEN]
    for ended in (run("failed", -9), run("interrupted", -15)):
        assert why(False, False, ended) == [ENDED_BEFORE]


def test_the_end_of_the_command_is_a_row() -> None:
    rows = dict(command_rows(run()))
    assert rows["command"] == "python train.py --name 'a b'"
    assert rows["ended"] == "by itself, with exit code 0, after 3 min 20 s"
    failed = "with exit code 3 after 3 min 20 s; its own message is in its output"
    assert dict(command_rows(run("failed", 3)))["ended"] == failed
    killed = "killed by SIGKILL after 3 min 20 s; the system does that when memory runs out"
    assert dict(command_rows(run("failed", -9)))["ended"] == killed
    assert dict(command_rows(run("failed", -11)))["ended"] == "killed by SIGSEGV after 3 min 20 s"
    assert "--steps 60" in dict(command_rows(run("enough_steps", None)))["ended"]
    bounded = replace(run("enough_steps", None), steps=None, seconds=60.0)
    assert "60 s of steps" in dict(command_rows(bounded))["ended"]
    assert "interrupted" in dict(command_rows(run("interrupted", 130)))["ended"]
    assert "not recorded" in dict(command_rows(run(None, None)))["ended"]
    block = replace(run(), of_a_block=True, command=("a notebook",))
    assert command_rows(block) == [
        ("command", "a notebook"),
        ("ended", "at the end of the block after 3 min 20 s"),
    ]
    enough = replace(block, ended="enough_steps", steps=60)
    assert "60 steps were counted: those after them" in dict(command_rows(enough))["ended"]


def test_evidence_has_units_and_leaves_out_what_is_not_known() -> None:
    assert evidence_rows(FINDING.evidence) == [
        ("wait", "62 ms"),
        ("data wait share", "31 %"),
        ("workers", "0"),
    ]


def test_the_terminal_shows_advice_evidence_and_whether_it_is_worth_it() -> None:
    worth = Worth("worth trying", "trying takes 4 min, and it could save 2 h.")
    text = render_diagnosis(diagnosis(worth=worth))
    assert (
        "HL102  Batches are made between the steps  at train.py:42 (up to 1.45x, all else equal)"
        in text
    )
    assert "seen: wait 62 ms; data wait share 31 %; workers 0" in text
    assert "  Worth trying: trying takes 4 min, and it could save 2 h." in text
    order = [text.index(words) for words in ("total", "100.0 %", "HL102", "is it worth it?")]
    assert order == sorted(order)


def test_a_speed_that_is_not_known_and_steps_that_were_not_made_are_left_out() -> None:
    assert "200 ms per step (median), 60 steps after 5 of warm-up" in render_diagnosis(diagnosis())
    paced = replace(diagnosis(), steps=replace(diagnosis().steps, samples_per_s=99.0))
    assert "samples/s (mean) over all 60 steps" in render_diagnosis(paced)
    text = render_diagnosis(Diagnosis(None, Steps(0, 3, None), not_examined=("everything",)))
    assert text == "not examined\n  everything"


def test_what_the_device_does_stands_below_the_host() -> None:
    text = render_diagnosis(diagnosis(device={"compute": 0.88, "idle": 0.12}))
    host, device = text.index("where a step's time goes"), text.index("what the device does")
    assert host < device < text.index(" 88.0 %") < text.index("HL102")
    assert text.count("100.0 %") == 2
    assert "hotloop explain HL102" in text


CENSUS = Census(
    device="cpu",
    num_threads=2,
    optimizer="AdamW(foreach)",
    compiled=True,
    num_graphs=3,
    num_recompiles=2,
    loaders=(
        LoaderUse(
            "train.py:42", True, "Images<script>", "data.py:7", None, False, False, 0, 32, False,
            False, None, 60, 4096, 0.062, 0.1, 0.06, 0.01, None, 0.9, 2, 0.5, 30,
        ),
    ),
    lines=tuple(LineUse("unattributed", f"train.py:{n}", "main", n / 1000) for n in range(1, 30)),
    saves=(CallUse("torch.save", "train.py:80", 3, 1.5),),
    operators=(OperatorUse("aten::mm", "float32", 12.0, 0.03),),
    recompile_reasons=("size mismatch <x>",),
)  # fmt: skip


def test_the_page_shows_findings_first_then_where_the_host_was() -> None:
    page = render_html(
        Page("t", breakdowns={"this run": HOST}, diagnosis=diagnosis(), examined=CENSUS)
    )
    order = [page.index(f'id="{name}"') for name in ("findings", "time", "host", "loaders", "seen")]
    assert order == sorted(order)
    assert page.count("<script") == 1  # the page's own
    assert "Images&lt;script&gt;" in page
    assert "<code>train.py:29</code>" in page
    assert "<code>train.py:1</code>" not in page  # the least of them
    assert "62 ms" in page
    assert "2 recompiles" in page


def test_a_census_that_saw_nothing_leaves_sections_out() -> None:
    page = render_html(Page(title="t", diagnosis=diagnosis(), examined=Census()))
    for name in ("host", "loaders", "seen"):
        assert f'id="{name}"' not in page


def test_on_an_accelerator_operations_are_ranked_by_its_time() -> None:
    operators = (
        OperatorUse("aten::item", None, 1.0, 0.5),
        OperatorUse("aten::mm", "bfloat16", 4.0, 0.001, device_s=0.02),
    )
    assert [row[0] for row in operator_rows(operators)] == ["`aten::mm`", "`aten::item`"]
    assert ("optimizer", "AdamW(foreach)") in use_rows(CENSUS)


@pytest.mark.parametrize(
    ("bound", "phase", "clause"),
    [
        ("input", "data_wait", "the training waits for data 40 % of the time"),
        ("copy", "host_to_device", "copying batches to the device takes 40 % of the time"),
        ("communication", "grad_sync", "waiting for the other processes takes 40 % of the time"),
        ("checkpoint", "checkpoint", "saving takes 40 % of the time"),
        ("evaluation", "eval", "evaluating takes 40 % of the time"),
        ("logging", "logging", "logging takes 40 % of the time"),
        ("optimizer", "optimizer", "updating the weights takes 40 % of the time"),
    ],
)
def test_bound_of_one_phase_is_said_with_the_share_of_that_phase(
    bound: Bound, phase: str, clause: str
) -> None:
    found = Diagnosis(bound, Steps(10, 3, 0.1), breakdown={phase: 0.4, "forward": 0.6})
    assert held_back(found) == clause
