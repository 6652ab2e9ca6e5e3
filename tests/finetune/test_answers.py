"""`hotloop generate` of a fine-tuned decoder: several prompts at a time give what each gives alone."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from decoders import (
    TEMPLATE,
    asked,
    model_of,
    save_decoder,
    tokenizer,
    write_chats,
    write_prompts,
)
from tokenizers.processors import TemplateProcessing
from torch._dynamo.utils import counters

from hotloop.core.errors import UsageError
from hotloop.finetune import answers
from hotloop.finetune.conduct import Steps
from hotloop.finetune.job import settings_of, start
from hotloop.hardware.device import why_compile_cannot_run
from hotloop.train.trained import Text

KINDS = ["llama", "gpt2", "qwen2", "pythia", "mistral", "bloom", "gemma2", "lfm2"]
LONG = "z" * 150
"""A token each, nearly as many as the model reads: it ends before the others."""
PROMPTS = ["a", LONG, *(prompt for prompt, _ in asked(4))]
Sizes = list[int]
IS_OLD = transformers.__version__.startswith("4.")


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> Sizes:
    """How many rows each step has."""
    found: Sizes = []
    real = answers.choose

    def counted(logits: torch.Tensor, draws: Any, **how: Any) -> list[int]:
        found.append(len(logits))
        return real(logits, draws, **how)

    monkeypatch.setattr(answers, "choose", counted)
    return found


def run_of(kind: str, place: Path, template: str | None = None) -> Path:
    """A run whose model has so large weights that a wrong position changes what it says."""
    model, own = model_of(kind), tokenizer()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(8 if weight.dim() > 1 else 1)
    model.save_pretrained(place / "model")
    own.chat_template = template
    own.save_pretrained(place / "model")
    config = "task: instructions\ndata: {file: gone.jsonl}\nmodel: {path: base}\n"
    (place / "config.yaml").write_text(config)
    return place


def said(run: Path, prompts: list[str], *, seed: int = 0, **how: Any) -> list[tuple[Any, ...]]:
    texts = [Text(prompt, seed + number) for number, prompt in enumerate(prompts)]
    settings = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "num_tokens": 24, **how}
    notes: list[str] = []
    for _ in answers.write_answers(run, texts, device="cpu", warn=notes.append, **settings):
        pass
    return [(each.text, each.tokens, each.ended) for each in texts] + [tuple(notes)]


@pytest.mark.parametrize("kind", KINDS)
def test_several_prompts_are_answered_as_each_alone(
    kind: str, tmp_path: Path, sizes: Sizes
) -> None:
    run = run_of(kind, tmp_path)
    together = said(run, PROMPTS)
    if kind == "lfm2" and IS_OLD:  # whose convolutions read padding
        assert "answers one prompt after the other" in together[-1][0]
        return
    assert together[-1] == ()
    assert max(sizes) == len(PROMPTS)
    if kind != "bloom":  # which has no last position
        assert len(set(sizes)) > 1  # a row that has ended takes part no longer
        assert together[1][1:] == (160 - len(tokenizer()(LONG)["input_ids"]), "tokens")
    alone = [said(run, [prompt])[0] for prompt in PROMPTS]
    assert together[:-1] == alone
    own, model = tokenizer(), transformers.AutoModelForCausalLM.from_pretrained(run / "model")
    for prompt, (text, num, ended) in zip(PROMPTS, alone, strict=True):
        ids = own(prompt, return_tensors="pt").input_ids
        made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=num + (ended == "end_of_text"), do_sample=False, pad_token_id=0)  # fmt: skip
        assert own.decode(made[0, ids.shape[1] :]).removesuffix(own.eos_token) == text
    drawn = {"temperature": 1.5, "top_k": 40, "top_p": 0.9}
    together = said(run, PROMPTS, seed=5, **drawn)
    alone = [said(run, [prompt], seed=5 + n, **drawn)[0] for n, prompt in enumerate(PROMPTS)]
    assert together[:-1] == alone


def test_prompts_of_a_chat_are_answered_together_and_end_with_their_turn(
    tmp_path: Path, sizes: Sizes
) -> None:
    run = run_of("llama", tmp_path, TEMPLATE)
    drawn = {"temperature": 100.0, "num_tokens": 60}  # so that every token is about as likely
    prompts = 3 * PROMPTS[2:]
    together = said(run, prompts, seed=3, **drawn)
    assert max(sizes) == 12
    assert "end_of_text" in [each[2] for each in together[:-1]]
    assert together[:-1] == [said(run, [p], seed=3 + n, **drawn)[0] for n, p in enumerate(prompts)]


def test_as_many_are_answered_at_a_time_as_memory_holds(
    tmp_path: Path, sizes: Sizes, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of("llama", tmp_path)
    together = said(run, PROMPTS)
    sizes.clear()
    monkeypatch.setattr(answers, "MOST_CACHE_BYTES", 2 * 2 * 2 * 2 * 8 * 4 * 170)
    assert said(run, PROMPTS) == together
    assert max(sizes) == 2


@pytest.mark.at_once(1)
@pytest.mark.parametrize(
    "kind",
    [
        *("gpt2", "llama"),
        *(
            pytest.param(each, marks=pytest.mark.slow)  # compiles for half a minute
            for each in ("gemma2", "bloom", "mistral", "pythia", "qwen2")
        ),
    ],
)
def test_compiled_answers_are_the_same_by_one_graph(
    kind: str, tmp_path: Path, sizes: Sizes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the whole compiler. Of more prompts than memory holds at a time, and of rows that end before others."""
    if why := why_compile_cannot_run(torch.device("cpu")):
        pytest.skip(why)
    run = run_of(kind, tmp_path)
    drawn = {"temperature": 1.5, "top_k": 40, "top_p": 0.9}
    plain = [said(run, PROMPTS), said(run, PROMPTS, seed=5, **drawn)]
    monkeypatch.setattr(answers, "MOST_CACHE_BYTES", 4 * 2 * 2 * 2 * 8 * 4 * 170)
    sizes.clear()
    for how, wanted in zip(({}, {"seed": 5, **drawn}), plain, strict=True):
        torch._dynamo.reset()
        counters.clear()
        with torch._dynamo.config.patch(error_on_recompile=True):
            assert said(run, PROMPTS, compiled=True, **how) == wanted
        # That of transformers 4 has two breaks in it.
        assert counters["stats"]["unique_graphs"] == (3 if kind == "gpt2" and IS_OLD else 1)
    assert max(sizes) < len(PROMPTS)


def test_a_model_that_transformers_does_not_compile_answers_uncompiled_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of("llama", tmp_path)
    plain = said(run, PROMPTS)
    monkeypatch.setattr(transformers.LlamaPreTrainedModel, "_can_compile_fullgraph", False)
    *found, (note,) = said(run, PROMPTS, compiled=True)
    assert found == plain[:-1]
    assert "--compile is off: transformers says of LlamaForCausalLM that it cannot be" in note


def test_a_model_that_padding_changes_answers_one_prompt_after_the_other_and_says_so(
    tmp_path: Path, sizes: Sizes, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of("gpt2", tmp_path)
    alone = [said(run, [prompt])[0] for prompt in PROMPTS]
    real: Callable[..., Any] = transformers.GPT2LMHeadModel.forward

    own = "cache" if "cache" in inspect.signature(real).parameters else "past_key_values"

    def forward(self, input_ids, cache=None, use_cache=None, **rest):  # type: ignore[no-untyped-def]
        return real(self, input_ids, use_cache=use_cache, **{own: cache})

    monkeypatch.setattr(transformers.GPT2LMHeadModel, "forward", forward)
    sizes.clear()
    together = said(run, PROMPTS)
    assert together[:-1] == alone
    assert max(sizes) == 1
    assert "GPT2LMHeadModel answers one prompt after the other" in together[-1][0]


def test_a_prompt_that_is_too_long_is_told_before_any_is_answered(
    tmp_path: Path, sizes: Sizes
) -> None:
    run = run_of("llama", tmp_path)
    with pytest.raises(UsageError, match="tokens, and the model reads 160"):
        said(run, ["a", 3 * LONG])
    assert not sizes


@pytest.mark.parametrize("chats", [True, False])
def test_prompts_are_written_as_the_examples_were_also_when_their_file_is_gone(
    chats: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    data = (write_chats if chats else write_prompts)(tmp_path / "a.jsonl", 20)
    words = ["task=instructions", f"data.file={data}", f"model.path={save_decoder('gpt2', tmp_path / 'base', TEMPLATE)}"]  # fmt: skip
    words += ["train.steps=1", "logging.tensorboard=false"]
    run = tmp_path / "run"
    start(settings_of("instructions", None, words), run, Steps(warn=lambda note: None))
    read: list[str] = []
    real = transformers.PreTrainedTokenizerFast.__call__

    def reading(self: Any, text: Any, **how: Any) -> Any:
        read.append(text)
        return real(self, text, **how)

    monkeypatch.setattr(transformers.PreTrainedTokenizerFast, "__call__", reading)
    there = said(run, ["sky"], num_tokens=2)
    assert (tokenizer_says_user(read), there[-1]) == (chats, ())
    read.clear()
    data.unlink()
    assert said(run, ["sky"], num_tokens=2) == there
    assert tokenizer_says_user(read) == chats
    (run / "prompts.json").unlink()  # as a run of before
    (note,) = said(run, ["sky"], num_tokens=2)[-1]
    assert "are written as chats, which nothing shows that the examples were: no such file" in note


def test_what_the_tokenizer_puts_behind_a_text_does_not_stand_behind_a_prompt(tmp_path: Path) -> None:  # fmt: skip
    run = run_of("llama", tmp_path)
    wanted = said(run, PROMPTS)
    own = tokenizer()
    ends = TemplateProcessing(single="$A <|end|>", special_tokens=[("<|end|>", 0)])
    own.backend_tokenizer.post_processor = ends
    own.save_pretrained(run / "model")
    assert transformers.AutoTokenizer.from_pretrained(run / "model")("a")["input_ids"][-1] == 0
    assert said(run, PROMPTS) == wanted
    begins = TemplateProcessing(single="<|im_start|> $A <|end|>", special_tokens=[("<|end|>", 0), ("<|im_start|>", 1)])  # fmt: skip
    own.backend_tokenizer.post_processor = begins
    assert answers._asked(own, "a", chats=False) == [1, *tokenizer()("a")["input_ids"]]


def test_what_cannot_be_asked_is_one_clear_error(tmp_path: Path) -> None:
    refuses = "{% if messages[0].role != 'system' %}{{ raise_exception('who am I?') }}{% endif %}"
    own = tokenizer()
    own.chat_template = refuses
    with pytest.raises(UsageError, match=r"does not take a single turn of a user: who am I\?"):
        answers._asked(own, "sky", chats=True)
    assert answers._asked(own, "", chats=False) == [0]
    own.eos_token = None
    with pytest.raises(UsageError, match="an empty prompt"):
        answers._asked(own, "", chats=False)
    run = run_of("mamba", tmp_path)
    with pytest.raises(UsageError, match=r"MambaForCausalLM has no attention"):
        said(run, ["sky"])


def tokenizer_says_user(read: list[str]) -> bool:
    return any("<|im_start|>user\nsky" in text for text in read)
