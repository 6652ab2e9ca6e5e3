"""Where in the script the model computes: a line is named where it is the likely one."""

from __future__ import annotations

from dataclasses import replace

from script_inputs import HEALTHY, script

from hotloop.core.census import LineUse
from hotloop.judge.judged_run import JudgedRun
from hotloop.judge.own_code import attention_line, compiled_line, formula_line, products_line


def forward(*lines: tuple[int, str, float, str | None]) -> tuple[LineUse, ...]:
    """`(number, function, fraction, inside)` each."""
    uses = (LineUse("forward", f"m.py:{n}", name, part, inside) for n, name, part, inside in lines)
    other = LineUse("backward", "m.py:1", "main", 0.6, None)
    return JudgedRun(script((), replace(HEALTHY, lines=(*uses, other))), ()).lines("forward")


def test_products_are_where_a_layer_that_multiplies_was_called() -> None:
    seen = forward(
        (5, "Net.forward", 0.3, "functional.gelu"),
        (6, "Net.forward", 0.1, "linear.Linear.forward"),
        (7, "Net.forward", 0.08, "conv.Conv2d._conv_forward"),
        (7, "Net.forward", 0.04, "conv.Conv1d._conv_forward"),
    )
    assert products_line(seen) == "m.py:7"
    dotted = forward(
        (5, "Net.forward", 0.3, "torch.nn.functional.gelu"),
        (6, "Net.forward", 0.1, "torch.nn.modules.linear.Linear.forward"),
        (7, "Net.forward", 0.2, "somebody.linear.solve"),
    )
    assert products_line(dotted) == "m.py:6"
    assert products_line(forward((5, "Net.forward", 0.3, None))) == "m.py:5"
    assert products_line(forward()) is None


def test_formulas_are_in_the_function_that_most_called_single_operations() -> None:
    seen = forward(
        (3, "Block.forward", 0.4, "linear.Linear.forward"),
        (5, "norm", 0.06, None),
        (8, "gelu", 0.04, None),
        (9, "gelu", 0.05, "_tensor.Tensor.__pow__"),
    )
    dotted = forward((3, "gelu", 0.05, None), (9, "gelu", 0.06, "torch._tensor.Tensor.__pow__"))
    assert formula_line(dotted) == "m.py:9"
    assert formula_line(seen) == "m.py:9"
    assert formula_line(forward((3, "main", 0.4, "linear.Linear.forward"))) is None


def test_attention_is_where_softmax_was_called_else_the_one_function_full_of_formulas() -> None:
    formulas = ((5, "Attention.forward", 0.06, None), (6, "Attention.forward", 0.05, None))
    assert attention_line(forward(*formulas, (8, "gelu", 0.1, None))) == "m.py:5"
    assert (
        attention_line(forward(*formulas, (8, "gelu", 0.1, None), (9, "norm", 0.1, None))) is None
    )
    named = (
        (9, "mix", 0.01, "functional.softmax"),
        (12, "loss", 0.3, "functional.log_softmax"),
    )
    assert attention_line(forward(*formulas, *named)) == "m.py:9"


def test_what_is_compiled_is_named_only_where_it_was_seen_for_long_enough() -> None:
    seen = forward(
        (4, "main", 0.2, "guards.check"), (4, "main", 0.3, "meta_utils.describe"), (5, "main", 0.1, "x.y")
    )  # fmt: skip
    assert compiled_line(seen, 0.45) == "m.py:4"
    assert compiled_line(seen, 0.55) is None
    assert compiled_line(forward(), 0.1) is None
