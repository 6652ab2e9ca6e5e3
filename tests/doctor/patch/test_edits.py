"""Each kind of edit on sources as people write them: only the intended call changes, or words say why not."""

from __future__ import annotations

import ast
import hashlib
import subprocess
import tempfile
import textwrap
from argparse import Namespace
from pathlib import Path

import pytest

from hotloop.doctor.patch.edit import edited, unified_diff
from hotloop.doctor.patch.imports import set_up_edit
from hotloop.doctor.patch.keywords import keywords_edit, loader_call
from hotloop.doctor.patch.model_call_edits import (
    around_call_edit,
    before_loop_edit,
    definition_edit,
)
from hotloop.doctor.patch.source import Frame, Source, Unsafe
from hotloop.optimizations.catalogue import CATALOGUE
from hotloop.optimizations.source_edit import (
    AroundCall,
    BeforeLoop,
    Keywords,
    SetUp,
    SourceEdit,
)

FUSED = Keywords("torch.optim", ("Adam", "AdamW", "SGD", "Adagrad"), {"fused": "True"})
WORKERS = Keywords("torch.utils.data", ("DataLoader",), {"num_workers": "2"})


def form(name: str, value: object, **facts: object) -> SourceEdit:
    made = CATALOGUE[name].source_edit
    assert made is not None
    found = made(value, facts)
    assert not isinstance(found, str)
    return found


def frame_at(content: bytes, call: str, *, function: str = "<module>") -> Frame:
    """As if the call that begins with this text, or has this text as its callee, was being executed."""
    (found,) = [
        node
        for node in ast.walk(ast.parse(content))
        if isinstance(node, ast.Call) and ast.unparse(node).startswith(call)
    ]
    assert found.end_lineno is not None
    assert found.end_col_offset is not None
    span = (found.lineno, found.col_offset, found.end_lineno, found.end_col_offset)
    digest = hashlib.sha256(content).hexdigest()
    return Frame("train.py", found.lineno, function, span, digest, direct=True)


def opened(tmp_path: Path, text: str | bytes, call: str) -> tuple[Source, Frame]:
    content = textwrap.dedent(text).encode() if isinstance(text, str) else text
    (tmp_path / "train.py").write_bytes(content)
    frame = frame_at(content, call)
    return Source(tmp_path, frame), frame


def with_keywords(tmp_path: Path, text: str | bytes, call: str, wanted: Keywords = FUSED) -> bytes:
    source, frame = opened(tmp_path, text, call)
    return edited(source, [keywords_edit(source, source.call_at(frame), wanted)])


def patched(old: bytes, diff: bytes) -> bytes:
    """As git applies it."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "train.py")
        file.write_bytes(old)
        subprocess.run(["git", "apply", "-"], cwd=directory, input=diff, check=True)
        return file.read_bytes()


def changed_lines(old: bytes, new: bytes) -> list[str]:
    diff = unified_diff("train.py", old, new)
    assert patched(old, diff) == new
    return [line for line in diff.decode("latin-1").split("\n")[2:] if line.startswith(("+", "-"))]


@pytest.mark.parametrize(
    ("call", "becomes"),
    [
        (
            "torch.optim.AdamW(model.parameters())",
            "torch.optim.AdamW(model.parameters(), fused=True)",
        ),
        ("optim.SGD(ps, lr=0.1,)", "optim.SGD(ps, lr=0.1, fused=True,)"),
        ("AdamW( ps , 1e-3 )", "AdamW( ps , 1e-3, fused=True )"),
        ("th.optim.Adam(ps, fused=None)", "th.optim.Adam(ps, fused=True)"),
        ("AdamW(p for p in ps)", "AdamW((p for p in ps), fused=True)"),
        ("AdamW([{'params': ps}], **{})", None),
        ("AdamW(*everything)", None),
        ("(AdamW)(ps)", "(AdamW)(ps, fused=True)"),
        ("Mine(ps)", None),
        ("Later(ps)", None),
        ("torch.optim.lr_scheduler.StepLR(ps, 1)", None),
    ],
)
def test_keyword_is_added_to_torchs_own_optimizers_alone(
    tmp_path: Path, call: str, becomes: str | None
) -> None:
    text = (
        "import torch\nimport torch as th\nfrom torch import optim\nfrom torch.optim import AdamW\n"
        "class Mine(torch.optim.Adam): pass\n"
        "if th: from torch.optim import Adam as Later\nelse: Later = Mine\n"
        f"first, made = torch.zeros(1), {call}  # note: AdamW(\n"
    )
    begins = ast.unparse(ast.parse(call)).removesuffix(")")
    if becomes is None:
        with pytest.raises(Unsafe):
            with_keywords(tmp_path, text, begins)
        return
    new = with_keywords(tmp_path, text, begins)
    assert new.decode() == text.replace(f"{call}  #", f"{becomes}  #")


ANOMALY = Keywords("torch.autograd", ("set_detect_anomaly",), {"mode": "False"}, {"mode": 0})


@pytest.mark.parametrize(
    ("given", "becomes"),
    [
        ("True", "False"),
        ("True, False", "False, False"),
        ("mode=True, check_nan=False", "mode=False, check_nan=False"),
        ("check_nan=False, mode=True", "check_nan=False, mode=False"),
        ("options.debug", None),
        ("mode=options.debug", None),
        ("*options", None),
    ],
)
def test_argument_is_set_where_it_was_given_without_a_name(
    tmp_path: Path, given: str, becomes: str | None
) -> None:
    text = f"import torch\ntorch.autograd.set_detect_anomaly({given})  # why\n"
    if becomes is None:
        with pytest.raises(Unsafe):
            with_keywords(tmp_path, text, "torch.autograd", ANOMALY)
        return
    new = with_keywords(tmp_path, text, "torch.autograd", ANOMALY)
    assert new.decode() == text.replace(f"({given})", f"({becomes})")


LONG = """\
import torch

def configure(self, groups):
    optimizer = torch.optim.AdamW(
        groups,
        lr=3e-4,  # Karpathy's
        betas=(0.9, 0.95){comma}  # as in the paper
    )
    return optimizer
"""


@pytest.mark.parametrize("comma", [",", ""])
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("indent", ["    ", "\t"])
def test_call_over_several_lines_keeps_its_shape(
    tmp_path: Path, comma: str, ends: str, indent: str
) -> None:
    text = LONG.format(comma=comma).replace("    ", indent).replace("\n", ends).encode()
    new = with_keywords(tmp_path, text, "torch.optim.AdamW")
    end = ends.strip("\n")
    deep = 2 * indent
    lines = changed_lines(text, new)
    if comma:
        assert lines == [f"+{deep}fused=True,{end}"]
    else:
        betas = f"{deep}betas=(0.9, 0.95)"
        assert lines == [
            f"-{betas}  # as in the paper{end}",
            f"+{betas},  # as in the paper{end}",
            f"+{deep}fused=True{end}",
        ]
    assert new.count(b"\r\n") == (new.count(b"\n") if end else 0)


@pytest.mark.parametrize(
    "content",
    [
        "# -*- coding: latin-1 -*-\nfrom torch.optim import SGD\nname = 'Bo\u00ebs'; o = SGD([name])\n".encode(
            "latin-1"
        ),
        b"\xef\xbb\xbffrom torch.optim import SGD\r\no = SGD([1])\r\n",
        "from torch.optim import SGD\nname = '日本語'; o = SGD([name])".encode(),
        b"from torch.optim import SGD\n\x0c\no = SGD([1])\n",
    ],
    ids=["latin-1", "bom", "no newline at the end", "form feed"],
)
def test_bytes_that_are_not_edited_stay(tmp_path: Path, content: bytes) -> None:
    new = with_keywords(tmp_path, content, "SGD")
    assert new.replace(b", fused=True", b"") == content
    assert new != content
    diff = unified_diff("train.py", content, new)
    assert patched(content, diff) == new


def test_the_executed_one_of_several_calls_in_a_line_is_edited(tmp_path: Path) -> None:
    text = "from torch.optim import SGD\na, b = SGD([1], lr=1), SGD([2], lr=1)\n"
    new = with_keywords(tmp_path, text, "SGD([2]")
    assert new.decode().endswith("a, b = SGD([1], lr=1), SGD([2], lr=1, fused=True)\n")


def test_name_that_is_bound_otherwise_is_not_torchs(tmp_path: Path) -> None:
    text = """
    from torch.utils.data import DataLoader

    def make(DataLoader, data):
        return DataLoader(data, batch_size=2)
    """
    with pytest.raises(Unsafe, match="decided while it runs"):
        with_keywords(tmp_path, text, "DataLoader", WORKERS)


@pytest.mark.parametrize(
    ("call", "becomes"),
    [
        ("DataLoader(d)", "DataLoader(d, num_workers=2)"),
        (
            "DataLoader(d, num_workers=4, shuffle=True)",
            "DataLoader(d, num_workers=2, shuffle=True)",
        ),
        ("DataLoader(d, num_workers=config.workers)", None),
        (
            "DataLoader(d, 4, persistent_workers=False, **({}))",
            None,
        ),
        (
            "DataLoader(d, num_workers=0, persistent_workers=False, **more)",
            "DataLoader(d, num_workers=2, persistent_workers=False, **more)",
        ),
        ("DataLoader(d, 4, True, None, None, 1)", None),
    ],
)
def test_workers_are_set_in_the_loaders_call(
    tmp_path: Path, call: str, becomes: str | None
) -> None:
    text = f"from torch.utils.data import DataLoader\nloader = {call}\n"
    if becomes is None:
        with pytest.raises(Unsafe):
            with_keywords(tmp_path, text, "DataLoader", WORKERS)
    else:
        assert with_keywords(tmp_path, text, "DataLoader", WORKERS).decode() == (
            f"from torch.utils.data import DataLoader\nloader = {becomes}\n"
        )


def test_what_torch_refuses_without_workers_is_taken_back(tmp_path: Path) -> None:
    text = (
        "from torch.utils.data import DataLoader\n"
        "DataLoader([1], num_workers=4, persistent_workers=True, prefetch_factor=8, "
        "multiprocessing_context='spawn')\n"
    )
    none = form("loader_workers", 0)
    assert isinstance(none, Keywords)
    new = with_keywords(tmp_path, text, "DataLoader", none)
    exec(compile(new, "train.py", "exec"), {})  # torch takes it
    assert new.decode().endswith(
        "DataLoader([1], num_workers=0, persistent_workers=False, prefetch_factor=None, "
        "multiprocessing_context=None)\n"
    )


@pytest.mark.parametrize("given", ["args.workers", "max(2, cpus())", "4 if fast else 0"])
def test_option_of_the_script_is_never_left_without_effect(tmp_path: Path, given: str) -> None:
    text = f"from torch.utils.data import DataLoader\nDataLoader(d, num_workers={given})\n"
    with pytest.raises(Unsafe, match="which would have no effect any more"):
        with_keywords(tmp_path, text, "DataLoader", WORKERS)


@pytest.mark.parametrize("workers", [0, 2])
def test_longer_queue_goes_with_any_number_of_workers_of_an_option(
    tmp_path: Path, workers: int
) -> None:
    text = "from torch.utils.data import DataLoader\nDataLoader([1], num_workers=args.workers)\n"
    longer = form("prefetch", 8)
    assert isinstance(longer, Keywords)
    new = with_keywords(tmp_path, text, "DataLoader", longer)
    assert new.decode().endswith(
        "DataLoader([1], num_workers=args.workers, prefetch_factor=8 if args.workers else None)\n"
    )
    exec(compile(new, "train.py", "exec"), {"args": Namespace(workers=workers)})  # torch takes it
    computed = text.replace("args.workers", "count()")
    with pytest.raises(Unsafe, match="may be 0 there"):
        with_keywords(tmp_path, computed, "DataLoader", longer)


def test_number_of_threads_is_said_to_be_of_one_machine(tmp_path: Path) -> None:
    threads = form("threads", 2)
    assert isinstance(threads, SetUp)
    assert set_up(tmp_path, "import torch\nmain()\n", threads) == (
        "import torch\ntorch.set_num_threads(2)  # for the machine that it was measured on\nmain()\n"
    )
    assert "suits this machine alone" in threads.note


def test_filling_of_memory_is_turned_off_unless_the_script_speaks_of_it(tmp_path: Path) -> None:
    fill = form("uninitialized_fill", False)
    assert isinstance(fill, SetUp)
    line = "torch.utils.deterministic.fill_uninitialized_memory = False\n"
    asks = "torch.use_deterministic_algorithms(True)\nmain()\n"
    new = set_up(tmp_path, f"import torch\n{asks}", fill)
    assert new == f"import torch\n{line}{asks}"
    with pytest.raises(Unsafe, match="speaks of `fill_uninitialized_memory`"):
        set_up(tmp_path, new, fill)


def test_workers_are_never_told_to_persist(tmp_path: Path) -> None:
    wanted = form("loader_workers", 4)
    assert isinstance(wanted, Keywords)
    assert "persistent_workers" not in {**wanted.values, **wanted.where_given}


def test_loader_is_found_by_its_line(tmp_path: Path) -> None:
    text = """\
    import torch.utils.data as data
    loader = wrap(data.DataLoader(
        things, batch_size=2), data.TensorDataset())
    a, b = data.DataLoader(things), data.DataLoader(others)
    """
    source, frame = opened(tmp_path, text, "wrap")
    call = loader_call(source, frame, WORKERS)
    new = edited(source, [keywords_edit(source, call, WORKERS)])
    assert b"batch_size=2, num_workers=2), data." in new
    with pytest.raises(Unsafe, match="several"):
        loader_call(source, Frame("train.py", 4, "?", None, frame.sha256, True), WORKERS)


def compiled_before(tmp_path: Path, text: str, call: str) -> str:
    source, frame = opened(tmp_path, text, call)
    wanted = BeforeLoop("{model}.compile()")
    return edited(source, [before_loop_edit(source, source.call_at(frame), wanted)]).decode()


MODEL_CALLS = [
    (
        """\
        model = Net()
        # the loop
        for epoch in range(3):
            for x in loader:
                model.seen = loss(model(x))
                optimizer.step()
        """,
        "model",
        "model.compile()\n# the loop\nfor epoch",
    ),
    (
        """\
        class Trainer:
            def run(self):
                while True:
                    self.steps += 1
                    self.loss = self.model(x)
                    self.optimizer.step()
        """,
        "self.model",
        "    def run(self):\n        self.model.compile()\n        while True:",
    ),
    (
        """\
        for fold in range(3):
            model = Net()
            if fold:
                for x in loader: model(x); optimizer.step()
        """,
        "model",
        "    if fold:\n        model.compile()\n        for x in loader: model(x)",
    ),
]


@pytest.mark.parametrize(("text", "call", "part"), MODEL_CALLS)
def test_line_stands_before_the_outermost_loop_that_keeps_its_model(
    tmp_path: Path, text: str, call: str, part: str
) -> None:
    new = compiled_before(tmp_path, text, f"{call}(")
    assert part in new
    assert new.count(".compile()") == 1


@pytest.mark.parametrize(
    "text",
    [
        "for model in models:\n    model(x)\n    o.step()\n",
        "def step(model):\n    model(x)\n    o.step()\n",
        "def step(model):\n    for x in microbatches:\n        model(x)\n    o.step()\n",
        "[model(x) for x in xs]\n",
        "while True:\n    losses = map(lambda x: model(x), xs)\n    o.step()\n",
        "while True:\n    if a:\n        self.model = DDP(self.model)\n    self.model(x)\n    o.step()\n",
        "while True:\n    for self in selves:\n        self.model(x)\n    o.step()\n",
        "while True:\n    models[0](x)\n    o.step()\n",
    ],
)
def test_model_that_changes_or_is_not_called_in_a_loop_is_left_to_words(
    tmp_path: Path, text: str
) -> None:
    call = next(each for each in ("self.model(", "models[0](", "model(") if each in text)
    with pytest.raises(Unsafe):
        compiled_before(tmp_path, text, call)


def test_call_inside_a_lambda_is_left_to_words(tmp_path: Path) -> None:
    text = "from torch.optim import SGD\nmake = lambda ps: SGD(ps)\n"
    source, frame = opened(tmp_path, text, "SGD")
    frame = Frame(frame.file, frame.line, "<lambda>", frame.span, frame.sha256, True)
    with pytest.raises(Unsafe, match="lambda"):
        source.call_at(frame)


@pytest.mark.parametrize("made", ["tensor", "tuple", "any"])
def test_model_is_called_through_a_function_that_is_written_above(
    tmp_path: Path, made: str
) -> None:
    text = """\
    '''Trains.'''
    import os
    from net import Net
    model = Net()
    loss = criterion(model(x.to(0),
                           **batch), y)
    """
    wanted = form("precision", "bf16", device_type="cpu", made=made)
    assert isinstance(wanted, AroundCall)
    source, frame = opened(tmp_path, text, "model")
    call = source.call_at(frame)
    new = edited(
        source, [definition_edit(source, call, wanted), around_call_edit(source, call, wanted)]
    )
    tree = ast.parse(new)
    names = [each.name for each in tree.body if isinstance(each, ast.FunctionDef)]
    assert names == (["in_bf16", "as_float32"] if made == "any" else ["in_bf16"])
    assert "loss = criterion(in_bf16(model, x.to(0)," in new.decode()
    assert new.decode().startswith(
        "'''Trains.'''\nimport os\nfrom net import Net\nimport torch\n\n\ndef"
    )
    assert b"\n\n\nmodel = Net()" in new
    again, frame = opened(tmp_path, new, "criterion")
    with pytest.raises(Unsafe, match="already"):
        definition_edit(again, again.call_at(frame), wanted)


def test_another_torch_in_the_file_is_respected(tmp_path: Path) -> None:
    text = "import jax.torch as torch\nmodel(x)\n"
    source, frame = opened(tmp_path, text, "model")
    wanted = form("precision", "bf16", device_type="cpu", made="tensor")
    assert isinstance(wanted, AroundCall)
    with pytest.raises(Unsafe, match="called `torch`"):
        definition_edit(source, source.call_at(frame), wanted)


def test_builtin_that_calls_the_model_is_not_taken_for_it(tmp_path: Path) -> None:
    source, frame = opened(tmp_path, "import torch\nout = list(made)\n", "list")
    wanted = form("precision", "bf16", device_type="cpu", made="tensor")
    assert isinstance(wanted, AroundCall)
    with pytest.raises(Unsafe, match="something else"):
        around_call_edit(source, source.call_at(frame), wanted)


def set_up(tmp_path: Path, text: str, wanted: SetUp) -> str:
    source, _ = opened(tmp_path, text, "main")
    return edited(source, [set_up_edit(source, wanted, tmp_path)]).decode()


def test_switches_are_set_before_the_users_own_modules_are_imported(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("")
    wanted = form("precision", "tf32")
    assert isinstance(wanted, SetUp)
    new = set_up(
        tmp_path,
        "import os\nimport torch\nfrom torch import nn\nimport json\nimport mine\n\nmain()\n",
        wanted,
    )
    assert new == (
        "import os\nimport torch\nfrom torch import nn\nimport json\n"
        "torch.backends.cuda.matmul.allow_tf32 = True\ntorch.backends.cudnn.allow_tf32 = True\n"
        "import mine\n\nmain()\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        "from torch import nn\nmain()\n",
        "import torch as th\nmain()\n",
        "import torch\ntorch.set_num_threads(1)\nmain()\n",
        "try:\n    import torch\nexcept ImportError:\n    torch = None\nmain()\n",
    ],
)
def test_switches_of_a_script_that_has_no_plain_torch_or_sets_them_are_left_to_words(
    tmp_path: Path, text: str
) -> None:
    with pytest.raises(Unsafe):
        set_up(tmp_path, text, SetUp(("torch.set_num_threads(2)",), ("set_num_threads",)))


def test_several_edits_of_one_file_go_together(tmp_path: Path) -> None:
    text = "import torch\nmodel = make()\no = torch.optim.SGD(ps)\nfor x in xs:\n    model(x)\n    o.step()\n"
    source, frame = opened(tmp_path, text, "model(")
    call = source.call_at(frame)
    wanted = form("precision", "bf16", device_type="cpu", made="tensor")
    assert isinstance(wanted, AroundCall)
    optimizer = source.call_at(frame_at(text.encode(), "torch.optim"))
    new = edited(
        source,
        [
            set_up_edit(source, SetUp(("torch.set_num_threads(2)",)), tmp_path),
            set_up_edit(source, SetUp(("torch.backends.cudnn.benchmark = True",)), tmp_path),
            keywords_edit(source, optimizer, FUSED),
            before_loop_edit(source, call, BeforeLoop("{model}.compile()")),
            definition_edit(source, call, wanted),
            around_call_edit(source, call, wanted),
        ],
    ).decode()
    assert new.startswith(
        "import torch\ntorch.set_num_threads(2)\ntorch.backends.cudnn.benchmark = True\n\n\ndef in_bf16("
    )
    assert new.endswith(
        "model = make()\no = torch.optim.SGD(ps, fused=True)\nmodel.compile()\n"
        "for x in xs:\n    in_bf16(model, x)\n    o.step()\n"
    )


def test_source_that_is_not_what_ran_is_not_edited(tmp_path: Path) -> None:
    _, frame = opened(tmp_path, "main()\n", "main")
    (tmp_path / "train.py").write_text("main() \n")
    with pytest.raises(Unsafe, match="changed"):
        Source(tmp_path, frame)
    (tmp_path / "train.py").unlink()
    with pytest.raises(Unsafe, match="not found"):
        Source(tmp_path, frame)
    for file, why in (("/etc/train.py", "outside"), ("../train.py", "cannot name")):
        with pytest.raises(Unsafe, match=why):
            Source(tmp_path, Frame(file, 1, "main", None, frame.sha256, True))


def test_link_out_of_the_directory_is_not_edited(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "here").mkdir()
    _, frame = opened(tmp_path / "elsewhere", "main()\n", "main")
    (tmp_path / "here" / "train.py").symlink_to(tmp_path / "elsewhere" / "train.py")
    with pytest.raises(Unsafe, match="link"):
        Source(tmp_path / "here", frame)
