"""What a script writes in its loop is left out but for every k-th line; all else is as it was."""

from __future__ import annotations

from typing import Any

TRAIN = """
import json, logging, sys, torch
torch.manual_seed(0)
IMPORTS
logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
log = logging.getLogger("train")
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(16, 8), torch.randn(16, 4)
for n in range(5):
    print("setup", n)
losses = []
for step in range(STEPS):
    optimizer.zero_grad()
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    LOOP
END
sys.stdout.write(json.dumps(losses) + "\\n")
"""


def script(loop: str, *, imports: str = "", end: str = "", steps: int = 21) -> str:
    text = TRAIN.replace("IMPORTS", imports).replace("LOOP", loop).replace("END", end)
    return text.replace("STEPS", str(steps))


def starting(output: str, word: str) -> list[int]:
    return [int(line.split()[1]) for line in output.splitlines() if line.startswith(word)]


def test_every_tenth_line_of_each_place_is_written_and_the_losses_stay(run_foreign: Any) -> None:
    text = script('print("printed", step); log.info("logged %d", step)')
    plain = run_foreign(text)
    ran = run_foreign(text, {"fewer_logs": 10})
    assert starting(plain.out, "printed") == starting(plain.out, "logged") == list(range(21))
    assert starting(ran.out, "setup") == [0, 1, 2, 3, 4]
    assert starting(ran.out, "printed") == starting(ran.out, "logged") == [0, 10, 20]
    assert ran.printed == plain.printed
    assert ran.applied == ["print at script.py:19", "logging at script.py:19"]


def test_what_goes_into_a_file_of_the_script_is_all_written(run_foreign: Any) -> None:
    text = script(
        'print(step, file=open("kept.txt", "a")); print("x", file=sys.stderr)',
        end='losses.append(len(open("kept.txt").readlines()))',
    )
    ran = run_foreign(text, {"fewer_logs": 7})
    assert ran.printed[-1] == 21
    assert ran.err.count("x") == 3


def test_progress_bar_draws_less_and_counts_all(run_foreign: Any) -> None:
    text = script(
        "bar.update(); bar.set_postfix(loss=loss.item())",
        imports="from tqdm import tqdm; bar = tqdm(total=21, mininterval=0, miniters=1)",
        end="losses.append(bar.n)",
    )
    plain = run_foreign(text)
    ran = run_foreign(text, {"fewer_logs": 10})
    assert ran.printed == plain.printed
    assert plain.printed[-1] == 21
    assert plain.err.count("/21 [") > 40
    assert ran.err.count("/21 [") < 10
    assert "tqdm.refresh at script.py:19" in ran.applied


def test_scalars_for_tensorboard_are_fewer(run_foreign: Any) -> None:
    text = script(
        'writer.add_scalar("loss", loss.item(), step)',
        imports='from torch.utils.tensorboard import SummaryWriter; writer = SummaryWriter("logs")',
        end="""
writer.close()
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator("logs"); events.Reload()
losses.append([e.step for e in events.Scalars("loss")])""",
    )
    assert run_foreign(text).printed[-1] == list(range(21))
    ran = run_foreign(text, {"fewer_logs": 10})
    assert ran.printed[-1][-3:] == [0, 10, 20][-3:]
    assert ran.applied == ["SummaryWriter.add_scalar at script.py:19"]


def test_script_that_writes_nothing_was_not_changed(run_foreign: Any) -> None:
    assert run_foreign(script("pass"), {"fewer_logs": 10}).said == []
