"""`hotloop train --task instructions` and `--task text`, from a file to a decoder that transformers loads."""

import importlib.util
import json
import math
import os
import re
from collections.abc import Callable
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
import transformers
from decoders import (
    MARKED_TEMPLATE,
    TEMPLATE,
    asked,
    chat,
    model_of,
    save_decoder,
    tokenizer,
    write_chats,
    write_lines,
    write_prompts,
)
from encoders import save_encoder, write_csv
from safetensors.torch import load_file
from tokenizers import processors

import warm_python
from hotloop.cli.main import run as run_here
from hotloop.core.causal_config import CausalConfig, CausalModel
from hotloop.core.errors import UsageError
from hotloop.core.settings import load_settings
from hotloop.core.step import read_steps
from hotloop.finetune.causal import CausalLearner, CausalWork
from hotloop.finetune.causal_start import arithmetic
from hotloop.finetune.chats import read_sources
from hotloop.finetune.decoder import load_decoder
from hotloop.finetune.sequences import Counts, Example, examples_of

Run = Callable[..., str]
FAST = ["optimizer.learning_rate=1e-2", "logging.tensorboard=false"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def job(tmp_path: Path) -> list[str]:
    data, model = write_prompts(tmp_path / "asked.jsonl"), save_decoder("llama", tmp_path / "llama")
    return ["train", "--task", "instructions", "--data", str(data), "--model", str(model), *FAST]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def running(arguments: list[str], *, code: int = 0) -> str:
        ended = run_here(arguments)
        said = "".join(capfd.readouterr())
        assert ended == code, said
        return " ".join(said.split())

    return running


def test_answers_become_a_decoder_that_transformers_loads_and_that_has_learned(
    job: list[str], tmp_path: Path, run: Run
) -> None:
    said = run([*job, "train.epochs=12", "--out", str(tmp_path / "run")])
    task = json.loads((tmp_path / "run/task.json").read_text())
    assert task["perplexity"] == math.exp(task["held_out_loss"])
    assert task["perplexity"] < 1.6
    assert f"perplexity {task['perplexity']:.4f} over {task['num_targets']} held-out tokens" in said
    assert "8 steps of 8 examples an epoch, 96 steps in 12 epochs" in said
    assert [s.samples for s in read_steps(tmp_path / "run/steps.jsonl")] == ([8] * 7 + [2]) * 12

    shown = run(["report", str(tmp_path / "run")])
    assert "damaged" not in shown

    own = transformers.AutoTokenizer.from_pretrained(tmp_path / "run/model")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "run/model").eval()
    right = 0
    for prompt, answer in asked()[:10]:
        ids = own(prompt, return_tensors="pt").input_ids
        with torch.no_grad():
            made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=30, do_sample=False, pad_token_id=0)  # fmt: skip
        right += own.decode(made[0, ids.shape[1] :]) == f"{answer}<|end|>"
    assert right >= 8
    words = ["generate", str(tmp_path / "run"), "--temperature", "0", "--prompt", prompt]
    answered = f"{prompt}{own.decode(made[0, ids.shape[1] : -1])}"
    assert run(words).startswith(answered)
    assert "leave it out" in run([*words, "--weights", "last"], code=2)
    compiled = run([*words, "--compile"])
    assert answered in compiled
    assert "--compile is off" in compiled or ", after compiling for " in compiled
    assert "`hotloop generate RUN --prompt TEXT` shows" in run(
        ["predict", words[1], "--text", "a"], code=2
    )


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft asks for it
def test_a_chat_with_an_adapter_is_what_transformers_answers_and_ends_with_its_turn(
    job: list[str], tmp_path: Path, run: Run
) -> None:
    save_decoder("llama", tmp_path / "llama", TEMPLATE)
    job[4] = str(write_chats(tmp_path / "chats.jsonl"))
    job += ["model.lora.rank=8", "train.epochs=6", "--out", str(tmp_path / "run")]
    run(job)
    prompt, out = asked()[0][0], tmp_path / "said.json"
    prompted = ["generate", str(tmp_path / "run"), "--prompt", prompt, "--temperature", "0"]
    run([*prompted, "--tokens", "60", "--json", str(out)])
    (beside,) = json.loads(out.read_text())["texts"]
    run([*job, "model.lora.merge=true"])
    own = transformers.AutoTokenizer.from_pretrained(tmp_path / "run/model")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "llama")
    model = peft.PeftModel.from_pretrained(model, str(tmp_path / "run/model")).eval()
    text = own.apply_chat_template(chat(prompt, "")[:1], tokenize=False, add_generation_prompt=True)
    ids = own(text, return_tensors="pt").input_ids
    made = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=60, do_sample=False, eos_token_id=[0, 2], pad_token_id=0)  # fmt: skip
    assert made[0, -1] == 2  # its turn ends, and nothing else says so
    run([*prompted, "--tokens", "60", "--json", str(out)])
    (said,) = json.loads(out.read_text())["texts"]
    assert said == beside
    assert (said["text"], said["ended"]) == (own.decode(made[0, ids.shape[1] : -1]), "end_of_text")


@pytest.mark.parametrize("template", [TEMPLATE, MARKED_TEMPLATE])
def test_only_what_the_assistant_says_is_learned(template: str, tmp_path: Path) -> None:
    turns = [
        {"role": "system", "content": "be short"},
        *chat("the sky", "blue"),
        *chat("and snow", "white"),
        {"role": "user", "content": "thanks"},
    ]
    path = write_lines(tmp_path / "chats.jsonl", [{"messages": turns}])
    (example,), counts = made(path, template=template)
    own = tokenizer()
    learned = own.decode(example.ids[example.learned])
    assert learned.replace("\n", "") == "blue<|im_end|>white<|im_end|>"
    # What stands behind the last of it is not even read.
    assert own.decode(example.ids).rstrip().endswith("white<|im_end|>")
    assert counts == Counts()


def test_what_the_template_puts_before_a_first_turn_is_not_learned(tmp_path: Path) -> None:
    turns = [{"role": "assistant", "content": "hello there"}, *chat("sky", "blue")]
    path = write_lines(tmp_path / "chats.jsonl", [{"messages": turns}])
    (example,), counts = made(path, template="<|im_start|>system\nbe short<|im_end|>\n" + TEMPLATE)
    learned = tokenizer().decode(example.ids[example.learned])
    assert learned.replace("\n", "") == "hello there<|im_end|>blue<|im_end|>"
    assert counts == Counts()


def test_turn_that_the_template_writes_otherwise_later_is_read_and_not_learned(
    tmp_path: Path,
) -> None:
    """As templates do that drop the reasoning of earlier answers."""
    reasoning = TEMPLATE.replace(
        "{{ m.content }}<|im_end|>",
        "{% if m.role == 'assistant' and loop.last %}<think></think>{% endif %}{{ m.content }}<|im_end|>",
    )
    path = write_lines(
        tmp_path / "chats.jsonl", [{"messages": [*chat("sky", "blue"), *chat("snow", "white")]}]
    )
    (example,), counts = made(path, template=reasoning)
    learned = tokenizer().decode(example.ids[example.learned])
    assert learned == "<think></think>white<|im_end|>\n"
    assert counts.turns == 1
    (note,) = counts.notes(64)
    assert note.startswith("only read")
    assert note.endswith(": 1 assistant turn")


def test_a_chat_may_begin_with_a_call_of_a_tool(tmp_path: Path) -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "look"}}]}
    path = write_lines(tmp_path / "chats.jsonl", [{"messages": [call, *chat("sky", "blue")]}])
    (example,), counts = made(path, template=TEMPLATE)
    assert tokenizer().decode(example.ids[example.learned]) == "blue<|im_end|>\n"
    assert counts.turns == 1


def test_completions_end_with_the_end_of_text_and_prompts_are_not_learned(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"prompt": "sky:", "completion": " blue"}])
    (example,), _ = made(path)
    own = tokenizer()
    assert own.decode(example.ids) == "sky: blue<|end|>"
    assert own.decode(example.ids[example.learned]) == " blue<|end|>"


def test_what_a_model_has_beside_the_same_tokenizer_json_is_not_taken_out_of_the_cache_of_another(
    tmp_path: Path,
) -> None:
    """The token that ends a text, and whether special tokens in one are split."""
    config = config_of(
        write_lines(tmp_path / "a.jsonl", [{"prompt": "sky:", "completion": "<|end|>"}])
    )
    found = []
    for more in ({}, {"eos_token": "<|im_end|>"}, {"split_special_tokens": True}):
        own = tokenizer()
        for name, value in more.items():
            setattr(own, name, value)
        (example,) = examples_of(config, own, "own", read_sources(config).train, Counts())
        found.append(example.ids[example.learned].tolist())
    assert found[:2] == [[0], [0, 2]]
    assert found[2][-1] == 0
    assert len(found[2]) > 2


def test_spaces_of_a_completion_are_learned_where_the_tokenizer_leaves_them_out_of_places(
    tmp_path: Path,
) -> None:
    """A token of spaces alone has none left then."""
    own, completion = tokenizer(), "  blue\n   \U0001f642\U0001f642 in\n "
    own.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    row = {"prompt": "sky: \U0001f642  ", "completion": completion}
    config = config_of(write_lines(tmp_path / "a.jsonl", [row]))
    (example,) = examples_of(config, own, "own", read_sources(config).train, Counts())
    wanted = [*own(completion)["input_ids"], own.eos_token_id]
    assert example.ids[example.learned].tolist() == wanted


def test_completions_that_generate_asks_otherwise_or_that_nothing_ends_are_counted(
    tmp_path: Path,
) -> None:
    own = tokenizer()
    rows = [{"prompt": "sky: ", "completion": "is blue"}, {"prompt": "sky:", "completion": " is"}]
    assert own("sky: is")["input_ids"][:-1] == own("sky:")["input_ids"]
    config = config_of(write_lines(tmp_path / "a.jsonl", rows))
    for _ in range(2):  # the second time from the cache
        counts = Counts()
        examples = examples_of(config, own, "own", read_sources(config).train, counts)
        assert counts == Counts(joined=1)
        assert [each.num_targets for each in examples] == [len(own(" is blue")["input_ids"]) + 1, 2]
    assert "have the completion begin with it: 1 example" in counts.notes(64)[0]
    own.eos_token = None
    counts = Counts()
    examples_of(config, own, "endless", read_sources(config).train, counts)
    assert counts == Counts(joined=1, endless=2)


@pytest.mark.parametrize("choosing", [{"patience": 1}, {"export": "best"}])
def test_choosing_weights_needs_evaluations(choosing: dict[str, Any]) -> None:
    given = {"task": "instructions", "data": {"file": "a.jsonl"}, "model": {"path": "b"}}
    CausalConfig.model_validate({**given, "eval": choosing})
    with pytest.raises(ValueError, match=r"`data.held_out` 0 leaves no example"):
        CausalConfig.model_validate({**given, "eval": choosing, "data": {"file": "a.jsonl", "held_out": 0}})  # fmt: skip
    with pytest.raises(ValueError, match=r"`eval.every_steps` 0 makes none"):
        CausalConfig.model_validate({**given, "eval": {**choosing, "every_steps": 0}})


def test_a_model_that_says_how_to_draw_but_not_that_it_draws_can_be_saved(tmp_path: Path) -> None:
    """Versions of transformers differ in whether they save it."""
    base = save_decoder("llama", tmp_path / "llama")
    (base / "generation_config.json").write_text('{"temperature": 0.6, "top_p": 0.9}')
    loaded = load_decoder(CausalModel(path=str(base)), torch.device("cpu"), print)
    loaded.model.generation_config.validate(strict=True)
    loaded.model.save_pretrained(tmp_path / "saved")
    saved = json.loads((tmp_path / "saved/generation_config.json").read_text())
    assert (saved["temperature"], saved["top_p"], saved["do_sample"]) == (0.6, 0.9, True)


def test_held_out_examples_that_are_trained_on_are_counted(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n % 4}:", "completion": " blue"} for n in range(6)]
    found, _ = made(write_lines(tmp_path / "a.jsonl", rows))
    learner = CausalLearner(model_of("llama"), packed=True, longest=64)
    work = CausalWork(config_of(tmp_path / "a.jsonl"), learner, found[:3], found[3:])
    assert arithmetic(work, None)[-1].endswith("better than they are: 2 examples")


def test_examples_are_cut_or_left_out_and_counted(tmp_path: Path) -> None:
    long = " ".join(["sky"] * 80)
    rows = [
        {"prompt": "sky:", "completion": long},
        {"prompt": long, "completion": " blue"},
        {"prompt": "sky:", "completion": ""},
        {"prompt": "sky:", "completion": " blue"},
    ]
    path = write_lines(tmp_path / "a.jsonl", rows)
    found, counts = made(path, max_tokens=16)
    assert [len(each.ids) for each in found] == [16, len(tokenizer()("sky: blue").input_ids) + 1]
    assert counts == Counts(cut=1, without_target=1)
    assert read_sources(config_of(path)).num_empty == 1


def test_every_token_of_a_long_text_is_predicted_once(tmp_path: Path) -> None:
    text = "the sky is blue\n" * 100
    path = tmp_path / "a.txt"
    path.write_text(text)
    found, _ = made(path, task="text", max_tokens=32, held_out=0.25)
    whole = tokenizer()(read_sources(config_of(path, "text", held_out=0.25)).train[0].completion)
    ids = [*whole.input_ids, 0]
    assert all(len(each.ids) <= 32 for each in found)
    assert np.concatenate([each.ids[each.learned] for each in found]).tolist() == ids[1:]
    held_out = read_sources(config_of(path, "text", held_out=0.25)).held_out[0].completion
    assert len(held_out) == pytest.approx(len(text) / 4, rel=0.05)
    assert text.endswith(held_out)


def test_text_is_learned_on_from_a_file_or_a_column(tmp_path: Path, run: Run) -> None:
    model = save_decoder("gpt2", tmp_path / "gpt2")
    column = write_lines(tmp_path / "a.jsonl", [{"text": a + b} for a, b in asked()])
    plain = tmp_path / "a.txt"
    plain.write_text("\n".join(a + b for a, b in asked()))
    for data in (column, plain):
        out = tmp_path / f"run{data.suffix}"
        words = ["--data", str(data), "--model", str(model), "--out", str(out)]
        run(["train", "--task", "text", *words, *FAST, "train.epochs=3", "model.max_tokens=40"])
        losses = [step.loss for step in read_steps(out / "steps.jsonl")]
        assert losses[-1] < losses[0] - 1
        assert json.loads((out / "task.json").read_text())["task"] == "text"


@pytest.mark.parametrize(("written", "is_same"), [("%Y", True), ("%f", False)])
def test_chats_with_another_date_in_their_template_are_other_data(
    written: str, is_same: bool, tmp_path: Path, run: Run
) -> None:
    template = f"{{{{ strftime_now('{written}') }}}}\n{MARKED_TEMPLATE}"
    model = save_decoder("gpt2", tmp_path / "gpt2", template)
    data = write_chats(tmp_path / "chats.jsonl", 16)
    job = ["train", "--task", "instructions", "--data", str(data), "--model", str(model), *FAST]
    job += ["train.steps=1", "--out", str(tmp_path / "run")]
    run(job)
    said = run(job, code=0 if is_same else 2)
    assert "the chat template writes the date into the examples" in said
    assert ("already finished" if is_same else "holds a run on other data") in said


@pytest.mark.slow
def test_killed_with_minus_9_it_continues_to_the_same_bits(tmp_path: Path, run: Run) -> None:
    model = save_decoder("gpt2", tmp_path / "gpt2", TEMPLATE)  # which has dropout
    data = write_chats(tmp_path / "chats.jsonl", 40)
    job = ["train", "--task", "instructions", "--data", str(data), "--model", str(model), *FAST]
    job += ["train.epochs=3", "eval.every_steps=4", "checkpoint.every_steps=4"]
    job += ["checkpoint.background=false"]
    run([*job, "--out", str(tmp_path / "whole")])
    killed = {
        "arguments": [*job, "--out", str(tmp_path / "cut")],
        "at": "update",
        "nth": 11,
        "signals": ["SIGKILL"],
    }
    program = Path(__file__).parents[1] / "train/interrupted_program.py"
    ended = warm_python.run(
        [str(program), json.dumps(killed)], env=os.environ, cwd=tmp_path, trainer=True
    )
    assert ended.returncode == -9, ended.stderr
    run([*job, "--out", str(tmp_path / "cut")])
    for name in ("model/model.safetensors", "evals.jsonl", "task.json"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert "already finished" in run([*job, "--out", str(tmp_path / "cut")])
    assert "damaged" not in run(["report", str(tmp_path / "cut")])
    assert "holds a run" in run([*job, "data.seed=1", "--out", str(tmp_path / "cut")], code=2)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft asks for it
def test_adapter_alone_is_trained_saved_continued_and_merged(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = save_decoder(
        "gpt2", tmp_path / "gpt2"
    )  # whose linear layers are stored the other way round
    data = write_prompts(tmp_path / "asked.jsonl", 24)
    job = ["train", "--task", "instructions", "--data", str(data), "--model", str(base), *FAST]
    job += ["model.lora.rank=4", "schedule.name=constant", "eval.every_steps=2"]
    said = run([*job, "train.steps=6", "--out", str(tmp_path / "whole")])
    assert re.search(r"\d,\d{3} weights of an adapter are trained, beside [\d,]+,\d{3} that", said)
    run([*job, "train.steps=4", "--out", str(tmp_path / "cut")])
    run([*job, "train.steps=6", "--out", str(tmp_path / "cut")])
    for name in ("model/adapter_model.safetensors", "evals.jsonl"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    stored = load_file(next((tmp_path / "cut/checkpoints").glob("*/model.safetensors")))
    assert stored
    assert all(".lora_" in name for name in stored)

    assert not (tmp_path / "cut/merged").exists()
    run([*job, "train.steps=6", "model.lora.merge=true", "--out", str(tmp_path / "cut")])
    ids = torch.arange(3, 30)[None]
    plain = transformers.AutoModelForCausalLM.from_pretrained(base).eval()
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "cut/merged").eval()
    with torch.no_grad():
        before, after = plain(ids).logits, merged(ids).logits
        adapted = peft.PeftModel.from_pretrained(plain, tmp_path / "cut/model").eval()(ids).logits
    assert (after - before).abs().max() > 0.1
    torch.testing.assert_close(after, adapted, atol=1e-5, rtol=1e-5)

    run([*job, "train.steps=6", "--out", str(tmp_path / "cut")])
    assert (tmp_path / "cut/merged").is_dir()  # of the same weights
    run([*job, "train.steps=8", "--out", str(tmp_path / "cut")])
    assert not (tmp_path / "cut/merged").exists()  # it would answer in place of the adapter

    out = ["--out", str(tmp_path / "other")]
    assert "its linear layers: c_attn, c_fc, c_proj" in run(
        [*job, "model.lora.target=q_proj", *out], code=2
    )
    find, lora = importlib.util.find_spec, "pip install 'hotloop[lora]'"
    quantized = ["model.lora.quantize=4bit"]
    assert any(each.startswith("accelerate") for each in requires("peft") or ())  # peft brings it
    for missing, more, do in (("peft", [], lora), ("peft", quantized, f"{lora} bitsandbytes"), ("bitsandbytes", quantized, f"{lora} bitsandbytes")):  # fmt: skip
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, missing=missing, *rest: None if name == missing else find(name, *rest))  # fmt: skip
        assert run([*job, *more, *out], code=2).endswith(do)


def test_model_that_cannot_be_packed_is_trained_in_buckets_and_says_so(
    job: list[str], tmp_path: Path, run: Run
) -> None:
    job[6] = str(save_decoder("bloom", tmp_path / "bloom"))
    said = run([*job, "train.epochs=1", "--out", str(tmp_path / "run")])
    assert "BloomForCausalLM is not packed: it takes no position ids" in said
    assert (tmp_path / "run/model/model.safetensors").exists()


def config_of(path: Path, task: str = "instructions", **data: Any) -> CausalConfig:
    held_out = data.pop("held_out", 0.0)
    longest = data.pop("max_tokens", 80)
    values = {"file": str(path), "held_out": held_out, **data}
    model = {"path": "DIR", "max_tokens": longest}
    return CausalConfig.model_validate({"task": task, "data": values, "model": model})


def made(
    path: Path, *, template: str | None = None, **settings: Any
) -> tuple[list[Example], Counts]:
    own, counts, config = tokenizer(), Counts(), config_of(path, **settings)
    own.chat_template = template
    return examples_of(config, own, "own", read_sources(config).train, counts), counts


ROW = {"prompt": "a", "completion": "b"}


@pytest.mark.parametrize(
    ("rows", "settings", "wanted"),
    [
        ([{"question": "a"}], {}, r"neither chats \(`messages`\) nor .*\n.*\n.* there: `question`"),
        ([ROW, {"prompt": "a"}], {}, r"no column `completion`\n.*:2"),
        ([{**ROW, "completion": " "}], {}, r"no example has a text to learn"),
        ([{**ROW, "completion": ["b"]}], {}, r"`completion` is list, not text\n.*:1"),
        ([], {}, r"no examples in this file\n.*\n.*it is empty"),
        ([{"messages": "hello"}], {}, r"no chat\n.*:1"),
        ([{"messages": [{"content": "a"}]}], {}, r"has no role"),
        ([{"messages": [{"role": "user", "content": "a"}]}], {}, r"nobody is `assistant`"),
        ([{"messages": [{"role": "assistant", "content": 3}]}], {}, r"is no text"),
        ([{"messages": chat("a", "b")}], {}, r"has no chat template.*\n.*\n.*data.chat_template"),
        ([{"messages": chat("a", "b")}], {"template": "{% if %}"}, r"template is damaged"),
        (
            [{"messages": chat("a", "b")}],
            {"template": "{{ raise_exception('no system') }}"},
            r"does not take this chat: no system\n.*:1",
        ),
        ([{"text": 3}], {"task": "text"}, r"`text` is int, not text"),
        ([ROW], {"held_out": "gone.jsonl"}, r"no such file of examples"),
    ],
)
def test_bad_examples_are_one_clear_error(
    rows: list[dict[str, Any]], settings: dict[str, Any], wanted: str, tmp_path: Path
) -> None:
    path = write_lines(tmp_path / "a.jsonl", rows)
    with pytest.raises(UsageError, match=wanted):
        made(path, **settings)


@pytest.mark.parametrize(
    ("task", "names"), [("instructions", "prompt;completion"), ("text", "text;id")]
)
def test_another_delimiter_than_the_one_that_is_read_by_is_named(
    task: str, names: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"{names}\nsky;blue\n")
    with pytest.raises(UsageError, match=r"only one column .*\n.*:1\n.*`'data.delimiter=;'`"):
        read_sources(config_of(path, task))
    assert len(read_sources(config_of(path, task, delimiter=";")).train) == 1


def test_bad_settings_are_one_clear_error(job: list[str], tmp_path: Path, run: Run) -> None:
    out = ["--out", str(tmp_path / "run")]
    assert "reads at most 160 tokens" in run([*job, "model.max_tokens=200", *out], code=2)
    decoder = ["--model", str(save_decoder("gpt2", tmp_path / "gpt2")), "model.max_tokens=200"]
    labels = ["train", "--task", "sentiment", "--data", str(write_csv(tmp_path / "a.csv"))]
    assert "reads at most 160 tokens" in run([*labels, *decoder, *out], code=2)
    assert "ends before what is learned" in run([*job, "model.max_tokens=2", *out], code=2)
    assert "one step takes 512 examples" in run([*job, "train.microbatch=512", *out], code=2)
    assert "`model.lora.alpha` has no effect" in run([*job, "model.lora.alpha=8", *out], code=2)
    assert "`data.text` has no effect" in run([*job, "data.text=x", *out], code=2)
    quantized = [*job, "model.lora.quantize=4bit", *out]
    assert "set `model.lora.rank`" in run(quantized, code=2)
    job[4] = str(tmp_path / "gone.jsonl")
    assert "no such file of examples" in run([*job, *out], code=2)
    (tmp_path / "a.txt").write_text("text")
    job[4] = str(tmp_path / "a.txt")
    assert "read out of jsonl, csv or tsv" in run([*job, *out], code=2)


def test_config_in_the_docs_is_one(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/FINETUNE.md").read_text()
    (block,) = re.findall(r"```yaml\n(task: instructions.*?)```", page, flags=re.DOTALL)
    path = tmp_path / "chats.yaml"
    path.write_text(block)
    config = load_settings(path, kind=CausalConfig).config
    assert (config.model.lora.rank, config.train.epochs) == (8, 3)
    with pytest.raises(UsageError, match="this is the config of a fine-tuning"):
        load_settings(path)


def test_an_encoder_that_would_read_what_it_is_to_predict_is_refused(
    job: list[str], tmp_path: Path, run: Run
) -> None:
    save_encoder("bert", tmp_path / "bert")
    job[6] = str(tmp_path / "bert")
    said = run([*job, "--out", str(tmp_path / "run")], code=2)
    assert "BertLMHeadModel is no decoder as it is: its tokens read those behind them" in said
    assert not (tmp_path / "run/model").exists()


def test_a_task_that_is_none_is_named_with_the_one_that_was_meant(job: list[str], run: Run) -> None:
    job[2] = "instruction"
    assert "no task `instruction` did you mean instructions?" in run(job, code=2)


def test_an_adapter_is_not_predicted_with(job: list[str], tmp_path: Path, run: Run) -> None:
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter/adapter_config.json").write_text("{}")
    said = run(["predict", str(tmp_path / "adapter"), "--text", "a"], code=2)
    assert "this is an adapter of a decoder" in said


def test_a_task_without_data_or_model_says_which_options_it_needs(run: Run) -> None:
    assert "--task text needs --data FILE and --model DIR beside it" in run(["train", "--task", "text"], code=2)  # fmt: skip
