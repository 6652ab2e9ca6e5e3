"""What a loader's worker does is never a step, whatever it computes with."""

from __future__ import annotations

import json

import pytest

TRANSFORMS = """
class Crop(torch.nn.Module):
    def forward(self, image):
        top, left = torch.randint(0, 5, (2,)).tolist()
        return torch.nn.functional.pad(image, (2, 2, 2, 2))[:, top : top + 8, left : left + 8]
class Flip(torch.nn.Module):
    def forward(self, image): return image.flip(-1) if torch.rand(1) < 0.5 else image
TRANSFORM = torch.nn.Sequential(Crop(), Flip())
class Images(torch.utils.data.Dataset):
    def __len__(self): return 640
    def __getitem__(self, index): return Flip()(TRANSFORM(torch.ones(3, 8, 8)))
def main():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(Images(), batch_size=32, num_workers=2, multiprocessing_context="{context}")
    time.sleep(1)  # workers are far ahead of the first update
    for epoch in range({epochs}):
        for x in loader:
            optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
    print("its end")
if __name__ == "__main__": main()
"""


@pytest.mark.at_once(1)
@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize("steps", [12, 40])
def test_transforms_that_are_modules_are_no_steps(run, context: str, steps: int) -> None:  # type: ignore[no-untyped-def]
    source = TRANSFORMS.format(context=context, epochs=40)
    ended = run(source, env={"HOTLOOP_DOCTOR_STOP": str(steps)})
    assert "its end" not in ended.out
    assert ended.clock["boundary"] == "optimizer"
    assert ended.clock["stopped"]
    assert len(ended.counted) == steps
    assert all(record.host["backward"] > 0 for record in ended.steps)


@pytest.mark.at_once(1)
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_every_update_is_a_step_and_nothing_else_is(run, context: str) -> None:  # type: ignore[no-untyped-def]
    ended = run(TRANSFORMS.format(context=context, epochs=1))
    assert ended.out == "its end\n"
    assert len(ended.steps) == 20
    assert [note for note in ended.census.notes if "no profile" not in note] == []
    assert [use.num_workers for use in ended.census.loaders] == [2]


def test_a_pool_that_computes_features_is_not_the_training(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
import multiprocessing
MODEL = build()[0]
def features(seed): return float(MODEL(torch.full((1, 8), float(seed))))
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool: found = pool.map(features, range(400))
    train(*build(), 20)
""")
    assert len(ended.steps) == 20
    assert ended.clock["boundary"] == "optimizer"


@pytest.mark.usefixtures("without_compiler")
def test_another_program_that_only_goes_forward_does_not_take_the_place_of_the_training(
    run,
) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
import subprocess
if len(sys.argv) > 1:
    model, _ = build()
    for _ in range(100): model(torch.ones(4, 8))
else:
    subprocess.run([sys.executable, "train.py", "features"], check=True)
    train(*build(), 20)
""")
    assert [record.step for record in ended.steps] == list(range(20))
    assert ended.clock["boundary"] == "optimizer"


@pytest.mark.parametrize(
    "before",
    [
        "for _ in range(200): model(torch.ones(4, 8))",
        "for _ in range(300): loss_of(model).backward()",
    ],
)
def test_a_script_is_not_ended_before_its_first_update(run, before: str) -> None:  # type: ignore[no-untyped-def]
    ended = run(
        f"model, optimizer = build()\n{before}\nprint(len(train(model, optimizer, 100)))",
        env={"HOTLOOP_DOCTOR_STOP": "12"},
    )
    assert ended.clock["stopped"]
    assert ended.clock["boundary"] == "optimizer"
    assert len(ended.counted) == 12


def test_updates_by_hand_count_for_the_end(run) -> None:  # type: ignore[no-untyped-def]
    ended = run(
        """
model = torch.nn.Linear(8, 1)
for _ in range(10**6):
    loss_of(model).backward()
    with torch.no_grad():
        for p in model.parameters(): p.sub_(p.grad, alpha=0.01); p.grad = None
""",
        env={"HOTLOOP_DOCTOR_STOP": "12"},
    )
    assert ended.clock["stopped"]
    assert len(ended.counted) == 12


@pytest.mark.usefixtures("without_compiler")
def test_other_processes_that_train_without_a_rank_are_counted(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
import torch.multiprocessing as mp
def work(rank, first):
    while rank and not first.is_set(): time.sleep(0.01)
    model, optimizer = build()
    for step in range(30 + 10 * rank):
        train(model, optimizer, 1); first.set()
if __name__ == "__main__":
    mp.spawn(work, args=(mp.get_context("spawn").Event(),), nprocs=3)
""")
    assert len(ended.steps) == 30
    others = [
        json.loads(path.read_text())["steps"] for path in ended.directory.glob("other-*.json")
    ]
    assert sorted(others) == [40, 50]


def test_a_daemon_takes_along_what_the_doctor_left_for_it(run) -> None:  # type: ignore[no-untyped-def]
    ended = run("""
directory = os.environ["HOTLOOP_DOCTOR"]
os.mkdir(directory + "/path")
train(*build(), 20)
with open(directory + "/doctor.json", "w") as file: json.dump({"left_running": [os.getpid()]}, file)
""")
    left = {path.name for path in ended.directory.iterdir()}
    (memory,) = (name for name in left if name.startswith("memory-"))
    found = {"doctor.json", "imports.json", "steps-0.jsonl", "census-0.json", "clock-0.json"}
    assert left - {memory} == found
