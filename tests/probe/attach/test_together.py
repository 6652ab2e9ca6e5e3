from __future__ import annotations

from hotloop.probe.attach.step_profiler import FIRST_STEP, STEPS


def test_gradients_that_are_sent_inside_the_pass_backward_are_seen(run) -> None:  # type: ignore[no-untyped-def]
    ended = run(f"""
import torch.distributed
torch.distributed.init_process_group(
    "gloo", init_method="file://" + os.path.abspath("group"), rank=0, world_size=1)
model, _ = build()
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
train(model, optimizer, {FIRST_STEP + STEPS + 2})
torch.distributed.destroy_process_group()
""")
    census = ended.census
    assert census.parallel == "DistributedDataParallel"
    assert census.profiled_communication_s is not None
    assert 0 <= census.profiled_communication_s <= census.profiled_step_s
    assert not any(use.name.startswith("gloo:") for use in census.operators)


def test_the_wait_of_the_profiled_steps_is_theirs(run) -> None:  # type: ignore[no-untyped-def]
    census = run(f"""
model, optimizer = build()
class Rows(torch.utils.data.Dataset):
    def __len__(self): return {FIRST_STEP + STEPS + 30}
    def __getitem__(self, index):
        time.sleep(0.05 if {FIRST_STEP - 3} < index < {FIRST_STEP + STEPS + 3} else 0.001)
        return torch.ones(8)
for x in torch.utils.data.DataLoader(Rows()):
    optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
""").census
    assert census.profiled_wait_s is not None
    assert 0.05 <= census.profiled_wait_s <= census.profiled_step_s
    (loader,) = census.loaders
    assert loader.wait_s < 0.05


def test_training_alone_sends_nothing(run) -> None:  # type: ignore[no-untyped-def]
    census = run(f"train(*build(), {FIRST_STEP + STEPS + 2})").census
    assert "operators" in census.seen
    assert census.profiled_communication_s is None
    assert census.profiled_busy_s is None
    assert census.ddp is None
