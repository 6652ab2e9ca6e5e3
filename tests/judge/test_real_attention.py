"""Attention of real models, as torch's profiler sees a step of them: why it is not fused, and what to change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from script_inputs import HEALTHY, script, steps

from hotloop.core.judgement import Finding
from hotloop.judge.diagnose import diagnose
from hotloop.optimizations.catalogue import CATALOGUE
from hotloop.probe.attach.operators import Seen, summed

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
SMALL = {"vocab_size": 64}


def gpt2(**changes: Any) -> Any:
    config = transformers.GPT2Config(
        n_embd=64, n_layer=2, n_head=4, n_positions=128, **SMALL, **changes
    )
    return transformers.GPT2LMHeadModel(config)


def bert(**changes: Any) -> Any:
    config = transformers.BertConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        **SMALL,
        **changes,
    )
    return transformers.BertForMaskedLM(config)


def profiled(model: Any) -> Seen:
    tokens = torch.randint(0, 64, (4, 128))
    model.train()
    with torch.profiler.profile(record_shapes=True) as profiler:
        model(
            input_ids=tokens, attention_mask=torch.ones_like(tokens), labels=tokens
        ).loss.backward()
    return summed(profiler.profiler.kineto_results.events(), 1)


def attention_finding(model: Any) -> tuple[Finding | None, Any]:
    """What is said of a step that is nothing but its attention, and the census it is said of. Each operation takes as long."""
    seen = profiled(model)
    own = [
        replace(
            use, self_s=1e-4 * use.num
        )  # a machine that is busy in one of them makes it the whole step
        for use in seen.operators
        if use.name in ("aten::_softmax", "aten::bmm", "aten::baddbmm", "aten::bernoulli_")
    ]
    census = replace(
        HEALTHY, operators=tuple(own), attention=seen.attention,
        profiled_step_s=max(sum(use.self_s for use in own), 1e-6),
    )  # fmt: skip
    findings = diagnose(script(steps(), census)).findings
    return next((f for f in findings if f.code == "HL306"), None), census


@pytest.mark.parametrize(
    ("model", "argument"),
    [(gpt2, "attn_pdrop"), (bert, "attention_probs_dropout_prob")],
)
def test_dropout_of_attention_is_named_as_what_keeps_it_from_the_fused_kernel(
    model: Any, argument: str
) -> None:
    finding, census = attention_finding(model(**{argument: 0.1}))
    assert census.attention == ("sdpa:math",)
    assert finding is not None
    assert finding.title == "Attention runs in torch's unfused math kernel"
    assert argument in finding.advice
    assert finding.optimization is None
    assert CATALOGUE["attention"].values_for is not None
    assert CATALOGUE["attention"].values_for(census) == ()
    healthy, census = attention_finding(model(**{argument: 0.0}))
    assert census.attention == ("sdpa:flash",)
    assert healthy is None


def test_attention_that_is_written_out_is_still_said_to_be() -> None:
    finding, census = attention_finding(gpt2(attn_implementation="eager"))
    assert census.attention == ("plain",)
    assert finding is not None
    assert (finding.title, finding.optimization) == ("Attention is written out", "attention")
