from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hotloop.core.errors import UsageError
from hotloop.optimizations.catalogue import CATALOGUE
from hotloop.trial.arm import Arm
from hotloop.tune.options import KNOWN, Option, options_of
from hotloop.tune.runner import with_work, work_of

COMMAND = ("python", "train.py", "--batch-size", "8", "--lr=0.1", "width=4", "--amp", "-j", "2")
HYDRA = ("python", "train.py", "lr=0.1", "+data.bs=4", "SOLVER.LR", "0.1")


def option(text: str, command: tuple[str, ...] = COMMAND) -> Option:
    return options_of([text], [], [], command)[0]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("--batch-size=8,16, 32", ("16", "32")),  # 8 is that of the command
        ("--num-workers=0..3", ("0", "1", "2", "3")),
        ("--n=8..64*2,100", ("8", "16", "32", "64", "100")),
        ("-j=0..2", ("0", "1")),
        ("--data=../one,two.txt,..", ("../one", "two.txt", "..")),  # no ranges
        ("width=4,8", ("8",)),
        ("--amp", ("off",)),
        ("--compile", ("on",)),
        (r"CONF=a:1\,b:2,c:3", ("a:1,b:2", "c:3")),  # a comma of the value itself
    ],
)
def test_values_are_those_that_the_command_does_not_have(text: str, values: tuple[str]) -> None:
    assert option(text).values == values


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("--batch-size=16", "16", "python train.py --batch-size 16 --lr=0.1 width=4 --amp -j 2"),
        ("--lr=0.2", "0.2", "python train.py --batch-size 8 --lr=0.2 width=4 --amp -j 2"),
        ("width=8", "8", "python train.py --batch-size 8 --lr=0.1 width=8 --amp -j 2"),
        ("--amp", "off", "python train.py --batch-size 8 --lr=0.1 width=4 -j 2"),
        ("-j=4", "4", "python train.py --batch-size 8 --lr=0.1 width=4 --amp -j 4"),
        ("-k=4", "4", "python train.py --batch-size 8 --lr=0.1 width=4 --amp -j 2 -k 4"),
        ("--new=4", "4", "python train.py --batch-size 8 --lr=0.1 width=4 --amp -j 2 --new=4"),
        ("--fast", "on", "python train.py --batch-size 8 --lr=0.1 width=4 --amp -j 2 --fast"),
    ],
)
def test_a_value_takes_the_place_of_the_commands_own(text: str, value: str, expected: str) -> None:
    found = option(text)
    assert found.applied(COMMAND, {}, value) == (tuple(expected.split()), {})


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("data.bs=8", "8", "python train.py lr=0.1 +data.bs=8 SOLVER.LR 0.1"),
        ("+data.bs=8", "8", "python train.py lr=0.1 +data.bs=8 SOLVER.LR 0.1"),
        ("++seed=1", "1", "python train.py lr=0.1 +data.bs=4 SOLVER.LR 0.1 ++seed=1"),
        ("bs=8", "8", "python train.py lr=0.1 +data.bs=4 SOLVER.LR 0.1 bs=8"),
        ("SOLVER.LR=0.2", "0.2", "python train.py lr=0.1 +data.bs=4 SOLVER.LR 0.2"),
        ("-J=2", "2", "python train.py lr=0.1 +data.bs=4 SOLVER.LR 0.1 -J 2"),
    ],
)
def test_words_without_dashes_are_words_of_the_command(
    text: str, value: str, expected: str
) -> None:
    found = option(text, HYDRA)
    assert found.applied(HYDRA, {}, value) == (tuple(expected.split()), {})


def test_a_scripts_own_default_is_what_the_others_are_compared_with(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "p.add_argument('-j', '--num-workers', type=int, default=0)\n"
        "p.add_argument('--batch-size', default=32); p.add_argument('--name', default=None)\n"
        "p.add_argument('--lr', default=1 / 3); p.add_argument(*names, default=4)\n"
    )
    command = ("python", str(script), "--batch-size", "8")
    assert option("--num-workers=0..2", command).values == ("1", "2")
    assert option("-j=0..2", command).values == ("1", "2")
    assert option("--batch-size=8,32", command).values == ("32",)
    assert option("--lr=0,1", command).values == ("0", "1")
    varied = option("--batch-size=8,64", ("python", str(script)))
    assert work_of(with_work(Arm("a", ("python", str(script)), "step_clock"), [varied])) == 32
    for text in (b"\xff", b"def", b"(" * 5000):
        script.write_bytes(text)
        assert option("--num-workers=0,1", command).values == ("0", "1")


@pytest.mark.parametrize(
    ("given", "value", "applied"),
    [
        ("-b 64", "64", "-b 16"),
        ("-b64", "64", "-b16"),
        ("--batch 64", "64", "--batch 16"),  # as argparse completes it
        ("--batch=64", "64", "--batch=16"),
        ("--batch-size 64", "64", "--batch-size 16"),
        ("", "32", "--batch-size=16"),
    ],
)
def test_a_value_that_the_command_gives_by_another_name_is_its_own(
    tmp_path: Path, given: str, value: str, applied: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "p.add_argument('-b', '--batch-size', type=int, default=32); p.add_argument('--bar')\n"
        "sys.argv.index('--batch-size')\n"
    )
    command = ("python", str(script), *given.split())
    varied = option("--batch-size=16,32,64", command)
    assert varied.given(command) == value
    assert varied.values == tuple(each for each in ("16", "32", "64") if each != value)
    assert work_of(with_work(Arm("a", command, "step_clock"), [varied])) == int(value)
    assert varied.applied(command, {}, "16")[0] == ("python", str(script), *applied.split())


def test_of_an_option_with_two_defaults_none_is_known(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "a.add_argument('--n', default=8); b.add_argument('--n', default=16)\n"
        "a.add_argument('--m', default=2); b.add_argument('--m', default=2)\n"
        "a.add_argument('--num', default=1); a.add_argument('--number', default=1)\n"
    )
    command = ("python", str(script), "--nu", "3")
    assert option("--n=8,16", command).values == ("8", "16")
    assert option("--m=2,4", command).values == ("4",)
    assert option("--num=1,3", command).values == ("3",)  # `--nu` may be either, and is refused


def test_a_variable_is_set_and_the_command_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    found = option("OMP_NUM_THREADS=1,2")
    assert found.values == ("1",)
    assert found.applied(COMMAND, {"A": "b"}, "1") == (COMMAND, {"A": "b", "OMP_NUM_THREADS": "1"})


def test_the_last_of_several_counts_as_parsers_take_it() -> None:
    command = ("python", "train.py", "--n=1", "--n", "-2")
    assert option("--n=1,-2", command).values == ("1",)
    assert option("--n=1", command).applied(command, {}, "1")[0] == (*command[:4], "1")


@pytest.mark.parametrize(
    ("vary", "parity", "accept", "said"),
    [
        ([], [], [], "nothing to vary"),
        (["batch"], [], [], "not understood"),
        (["--n="], [], [], "not understood"),
        (["--n=4..1"], [], [], "not understood"),
        (["--n=1..x"], [], [], "not understood"),
        (["--n=..4"], [], [], "not understood"),
        (["--n=1,4..1"], [], [], "not understood"),
        (["--n=0..64*2"], [], [], "not understood"),
        (["=3"], [], [], "not understood"),
        (["--n=0..99"], [], [], "more than 64"),
        (["--batch-size=8"], [], [], "there is no other"),
        (["--a=1", "--a=2"], [], [], "twice"),
        (["--a=1"], ["b=bitwise"], [], "`b` is not varied"),
        (["--a=1"], ["a=same"], [], "no such class"),
        (["--a=1"], [], ["b"], "`b` is not varied"),
        (["--num-workers=1"], [], ["num-workers"], "has no effect"),
    ],
)
def test_what_is_not_understood_is_refused_in_one_line(
    vary: list[str], parity: list[str], accept: list[str], said: str
) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        options_of(vary, parity, accept, COMMAND)
    assert "\n" not in refused.value.what


@pytest.mark.parametrize(
    ("name", "parity_class", "scales"),
    [
        ("--num_workers", "bitwise", ""),
        ("--dataloader_num_workers", "bitwise", ""),
        ("--pin-memory", "bitwise", ""),
        ("OMP_NUM_THREADS", "reduction_order", ""),
        ("OMP_PROC_BIND", "bitwise", ""),
        ("KMP_AFFINITY", "bitwise", ""),
        ("--bf16", "reduced_precision", ""),
        ("--compile", "reduction_order", ""),
        ("--gradient_checkpointing", "reduction_order", ""),
        ("--batch-size", "changes_training", "samples"),
        ("--per_device_train_batch_size", "changes_training", "samples"),
        ("--minibatch_size", "changes_training", "samples"),
        ("--samples_per_gpu", "changes_training", "samples"),
        ("--gradient_accumulation_steps", "changes_training", "samples"),
        ("--eval-batch-size", None, ""),
        ("--block_size", "changes_training", "tokens"),
        ("--seq_len", "changes_training", "tokens"),
        ("--max_seq_length", None, ""),  # which texts need not reach
        ("--torch_dtype", "reduced_precision", ""),
        ("--attn_implementation", "reduction_order", ""),
        ("PYTORCH_CUDA_ALLOC_CONF", "bitwise", ""),
        ("PYTORCH_ALLOC_CONF", "bitwise", ""),
        ("MALLOC_ARENA_MAX", "bitwise", ""),
        ("LD_PRELOAD", "bitwise", ""),
        ("--foo", None, ""),
        ("train.batch_size", "changes_training", "samples"),
        ("--train.batch-size", "changes_training", "samples"),
        ("+trainer.accumulate_grad_batches", "changes_training", "samples"),
        ("SOLVER.IMS_PER_BATCH", "changes_training", "samples"),
        ("--accum-interval", "changes_training", "samples"),
        ("data.num_workers", "bitwise", ""),
        ("++model.context_length", "changes_training", "tokens"),
        ("optimizer.lr", "changes_training", ""),
        ("eval.batch_size", None, ""),
        ("data.val.seq_len", None, ""),
        ("model.foo", None, ""),
    ],
)
def test_names_tell_what_an_option_may_change(
    name: str, parity_class: str | None, scales: str
) -> None:
    found = option(f"{name}=77")
    assert (found.parity_class, found.known.scales) == (parity_class, scales)


def test_what_was_told_counts_more_than_the_name() -> None:
    vary = ["--num-workers=1", "--foo=1"]
    found = options_of(vary, ["num_workers=changes_training"], ["foo"], COMMAND)
    assert [(each.parity_class, each.is_accepted) for each in found] == [
        ("changes_training", False),
        ("changes_training", True),
    ]


@pytest.mark.parametrize(
    ("name", "over"),
    [("--num-workers", "all"), ("--prefetch-factor", "all"), ("--batch-size", "steady"), ("--foo", "steady")],
)  # fmt: skip
def test_slow_steps_count_for_what_changes_how_workers_deliver(name: str, over: str) -> None:
    assert option(f"{name}=77").over == over


def test_techniques_of_names_are_in_the_catalogue() -> None:
    assert {name for known in KNOWN for name in known.techniques} <= CATALOGUE.keys()


def test_work_of_a_step_is_the_product_of_what_the_command_says() -> None:
    def work(*vary: str, command: tuple[str, ...] = COMMAND) -> tuple[int, bool]:
        arm = Arm("baseline", (sys.executable, *command[1:]), "step_clock")
        found = with_work(arm, options_of(vary, [], [], command))
        assert found.env  # counted where it can be
        return work_of(found), found.tokens_per_step is not None

    assert work("--lr=1") == (0, False)
    assert work("--batch-size=16") == (8, False)
    assert work("--batch-size=16", "--bptt=9") == (0, False)
    assert work("data.bs=8", command=HYDRA) == (4, False)
    assert work("train.batch_size=8", command=HYDRA) == (0, False)
    assert work("--batch-size=16", "--bptt=9", command=(*COMMAND, "--bptt=5")) == (40, True)


def test_accumulation_goes_with_the_batch_size_so_that_a_step_keeps_its_samples() -> None:
    command = ("python", "train.py", "--batch-size=8", "--accum", "4")
    (batch,) = options_of(["--batch-size=16,32"], [], [], command, ["--accum"])
    assert batch.label("16") == "--batch-size=16 --accum=2"
    assert batch.applied(command, {}, "32")[0][2:] == ("--batch-size=32", "--accum", "1")
    assert batch.parity_class == "reduction_order"
    arm = Arm("baseline", (sys.executable, *command[1:]), "step_clock")
    assert work_of(with_work(arm, [batch])) == 32
    told = options_of(
        ["--batch-size=16"], ["batch-size=changes_training"], [], command, ["--accum"]
    )
    assert told[0].parity_class == "changes_training"


@pytest.mark.parametrize(
    ("vary", "name", "what"),
    [
        (["--lr=1"], "--accum", "one batch size that is varied"),
        (["--batch-size=16", "--accum=2"], "--accum", "one batch size that is varied"),
        (["--batch-size=12"], "--accum", "32 samples of a step are no multiple"),
        (["--batch-size=0"], "--accum", "32 samples of a step are no multiple"),
        (["--batch-size=auto"], "--accum", "32 samples of a step are no multiple"),
        (["--batch-size=16"], "--other", "no number for --other"),
    ],
)
def test_accumulation_that_cannot_go_with_it_is_refused(
    vary: list[str], name: str, what: str
) -> None:
    with pytest.raises(UsageError, match=what):
        options_of(vary, [], [], ("python", "train.py", "--batch-size=8", "--accum=4"), [name])
