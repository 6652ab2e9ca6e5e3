"""Each fix that acts on a GPU, in a script: it says that it was applied, and the script trains the same losses.

`pytest tests/gpu -m gpu`; with `HOTLOOP_TEST_DEVICE=cpu` on a CPU, as `gpu_or_cpu` says.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from gpu_scripts import run_script

from gpu_or_cpu import ON_A_GPU, ON_GPU

pytestmark = ON_A_GPU

LAYERS = """
def main():
    SETUP
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = torch.randn(64, 64, device=device), torch.randn(64, 64, device=device)
    losses = []
    for step in range(12):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
    print(json.dumps([each.item() for each in losses]))
main()
"""
IMAGES = """
def main():
    SETUP
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 16, 3, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x = torch.randn(16, 3, 16, 16, device=device)
    y = torch.randint(10, (16,), device=device)
    losses = []
    for step in range(12):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    print(json.dumps([each.item() for each in losses]))
main()
"""
ATTENTION = """
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.all, self.out = nn.Linear(128, 384), nn.Linear(128, 128)
    def forward(self, x):
        q, k, v = self.all(x).view(*x.shape[:2], 3, 2, 64).permute(2, 0, 3, 1, 4)
        made = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(made.transpose(1, 2).flatten(2))
def main():
    SETUP
    model = Attention().to(device, DTYPE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x = torch.randn(4, 128, 128, device=device, dtype=DTYPE)
    losses = []
    for step in range(12):
        optimizer.zero_grad()
        loss = (model(x).float() - x.float()).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    print(json.dumps([each.item() for each in losses]))
main()
"""
IN_BF16, IN_FP32 = (ATTENTION.replace("DTYPE", f"torch.{each}") for each in ("bfloat16", "float32"))
DETERMINISTIC = "torch.use_deterministic_algorithms(True)"
CASES = {
    "bf16": (LAYERS, "precision", "bf16", 2e-2, "Sequential"),
    "fp16": (LAYERS, "precision", "fp16", 5e-3, "Sequential"),
    "tf32": (LAYERS, "precision", "tf32", 5e-3, "matrix products and convolutions"),
    "bf16 over images": (IMAGES, "precision", "bf16", 5e-2, "Sequential"),
    "fused AdamW": (LAYERS, "fused_optimizer", True, 1e-5, "AdamW"),
    "fused SGD": (IMAGES, "fused_optimizer", True, 2e-3, "SGD"),
    "compile": (LAYERS, "compile", True, 1e-4, "Sequential"),
    "channels_last": (IMAGES, "channels_last", True, 2e-2, "2 convolutions of Sequential"),
    "cudnn_benchmark": (
        *(IMAGES, "cudnn_benchmark", True, 2e-2),
        "convolutions from the second step on",
    ),
    "determinism": (
        LAYERS.replace("SETUP", DETERMINISTIC),
        *("determinism", False, 1e-5, "use_deterministic_algorithms"),
    ),
    "cuDNN's attention": (IN_BF16, "sdpa_backend", "cudnn", 2e-2, "Attention"),
}
ALSO_ON_A_CPU = {"precision", "fused_optimizer", "compile", "channels_last", "determinism"}


@pytest.mark.parametrize("case", CASES)
def test_a_fix_is_applied_and_losses_stay_within_its_tolerance(tmp_path: Path, case: str) -> None:
    script, name, value, tolerance, where = CASES[case]
    script = script.replace("SETUP", "pass")
    env = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    plain = run_script(tmp_path, script, env=env).printed
    ran = run_script(tmp_path, script, fixes={name: value}, env=env)
    assert ran.complaints == ""
    assert ran.printed == pytest.approx(plain, rel=tolerance)
    assert plain[-1] <= plain[0]
    if ON_GPU or name in ALSO_ON_A_CPU:
        assert where in ran.applied, ran.said
        assert ran.refused == []


REFUSALS: dict[str, tuple[str, str, Any, str]] = {
    "the script autocasts": (
        LAYERS.replace(
            "loss = (model(x)",
            "with torch.autocast(device): made = model(x)\n        loss = (made.float()",
        ),
        *("precision", "bf16", "Sequential: the script autocasts it"),
    ),
    "the script has a scaler": (
        LAYERS.replace("loss.backward()", "scaler.scale(loss).backward()")
        .replace("SETUP", "scaler = torch.amp.GradScaler(device)")
        .replace("optimizer.step()", "scaler.step(optimizer); scaler.update()"),
        *(
            "precision",
            "fp16",
            "its loss cannot be scaled for fp16: the script has a gradient scaler",
        ),
    ),
    "the script chose its optimizer's kernel": (
        LAYERS.replace("lr=1e-3", "lr=1e-3, foreach=False"),
        *("fused_optimizer", True, "AdamW: the script chose {'foreach': False}"),
    ),
    "the script sets cudnn.benchmark": (
        IMAGES.replace("SETUP", "torch.backends.cudnn.benchmark = False"),
        *("cudnn_benchmark", True, "the script sets cudnn.benchmark = False at train.py"),
    ),
    "the script asks for deterministic algorithms": (
        IMAGES.replace("SETUP", "torch.backends.cudnn.deterministic = True"),
        *("cudnn_benchmark", True, "the script asks for deterministic algorithms"),
    ),
    "fp32 is nothing for cuDNN's attention": (
        IN_FP32,
        *("sdpa_backend", "cudnn", "cudnn cannot do it"),
    ),
    "no attention at all": (
        LAYERS,
        *("sdpa_backend", "cudnn", "Sequential does not call scaled_dot_product_attention"),
    ),
    "nobody knows its blocks": (
        LAYERS,
        *("checkpointing", True, "Sequential has no gradient_checkpointing_enable()"),
    ),
    "the script compiles": (
        LAYERS.replace("optimizer =", "model = torch.compile(model, backend='eager'); optimizer ="),
        *("compile", True, "OptimizedModule: the script compiles it"),
    ),
}
GPU_ALONE = {"cudnn_benchmark", "sdpa_backend"}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_fix_that_cannot_act_says_why_and_changes_nothing(tmp_path: Path, case: str) -> None:
    script, name, value, why = REFUSALS[case]
    script = script.replace("SETUP", "pass")
    plain = run_script(tmp_path, script).printed
    ran = run_script(tmp_path, script, fixes={name: value})
    # Where loss scaling finds out late, its trial is over; else the script is what it was.
    if name != "precision" or value != "fp16":
        # cuDNN sums as it comes.
        assert ran.printed == pytest.approx(plain, rel=5e-3 if "Conv2d" in script else 1e-5)
        assert ran.applied == []
    if ON_GPU or name not in GPU_ALONE:
        assert any(why in each for each in ran.refused), ran.said


def test_stale_reads_give_true_losses_of_some_steps_ago(tmp_path: Path) -> None:
    script = """
model, optimizer = build()
x = torch.randn(256, 64, device=device)
read, truth = [], []
for step in range(30):
    busy(0.003)
    loss = learn(model, optimizer, x)
    read.append(loss.item())
    truth.append(loss.detach().clone())
print(json.dumps([read, torch.stack(truth).tolist()]))
"""
    ran = run_script(tmp_path, script, fixes={"deferred_reads": True})
    read, truth = ran.printed
    if not ON_GPU:
        assert read == truth
        return
    assert any(each.startswith("train.py:") for each in ran.applied), ran.said
    places = [truth.index(each) for each in read]
    assert places == sorted(places)
    assert all(0 <= step - place <= 64 for step, place in enumerate(places))
    assert any(place < step for step, place in enumerate(places))


WAITS = """
model, optimizer = build()
x = torch.randn(256, 64, device=device)
hosts, losses = [], []
for step in range(12):
    loss = learn(model, optimizer, x)
    losses.append(loss.item())
    start = time.perf_counter()
    busy(0.02)
    hosts.append(time.perf_counter() - start)
    synchronize()
print(json.dumps([losses, hosts]))
"""


def test_without_its_variable_no_kernel_is_waited_for(tmp_path: Path) -> None:
    env = {"CUDA_LAUNCH_BLOCKING": "1"}
    plain, blocked = run_script(tmp_path, WAITS, env=env).printed
    ran = run_script(tmp_path, WAITS, fixes={"debug_environment": False}, env=env)
    losses, free = ran.printed
    assert losses == plain
    assert (ran.applied, ran.refused) == (["CUDA_LAUNCH_BLOCKING"], [])
    if ON_GPU:
        assert median(free) < 0.5 * median(blocked)


COPIED = """
torch.manual_seed(0)
model, optimizer = build()
data = DataLoader(TensorDataset(torch.randn(24 * 256, 64)), batch_size=256, num_workers=WORKERS)
losses = []
for (batch,) in data:
    x = batch.to(device)
    WRITE
    loss = learn(model, optimizer, x)
    losses.append(loss.detach())
print(json.dumps([each.item() for each in losses]))
"""


@pytest.mark.parametrize(("workers", "more"), [(0, {}), (2, {}), (0, {"loader_workers": 2})])
def test_pinned_batches_are_copied_without_a_wait(
    tmp_path: Path, workers: int, more: dict[str, Any]
) -> None:
    script = COPIED.replace("WORKERS", str(workers)).replace("WRITE", "pass")
    plain = run_script(tmp_path, script).printed
    ran = run_script(tmp_path, script, fixes={"pinned_copies": True, **more}, watched=True)
    assert ran.printed == plain
    if ON_GPU:
        assert "batches of TensorDataset are pinned" in ran.applied
        assert "copies to the GPU are not waited for" in ran.applied
        assert more or ran.refused == []
        assert any(copy.pageable is False for copy in ran.census.copies)


def test_a_script_that_writes_into_its_copied_batch_is_left_as_it_is(tmp_path: Path) -> None:
    script = COPIED.replace("WORKERS", "0").replace("WRITE", "kept = batch; batch.zero_()")
    plain = run_script(tmp_path, script).printed
    ran = run_script(tmp_path, script, fixes={"pinned_copies": True})
    assert ran.printed == plain
    if ON_GPU:
        assert "the script writes into a batch that it has copied" in ran.refused


def test_fixes_together_train_alike_and_nothing_waits_for_the_gpu(tmp_path: Path) -> None:
    """Those that are kept together in the end, watched, where waiting is an error from the fourth step on."""
    script = (
        LAYERS.replace("SETUP", "pass")
        .replace(
            "        optimizer.zero_grad()",
            "        if step == 4 and on_gpu: torch.cuda.set_sync_debug_mode('error')\n"
            "        optimizer.zero_grad()",
        )
        .replace(
            "    print(", "    if on_gpu: torch.cuda.set_sync_debug_mode('default')\n    print("
        )
    )
    plain = run_script(tmp_path, script).printed
    fixes = {"precision": "bf16", "fused_optimizer": True, "gc_schedule": 4}
    ran = run_script(tmp_path, script, fixes=fixes, watched=True)
    assert "failed" not in ran.complaints
    assert ran.printed == pytest.approx(plain, rel=2e-2)
    assert {"Sequential", "AdamW"} <= set(ran.applied), ran.said


def test_files_saved_in_the_background_hold_the_weights_of_their_step(tmp_path: Path) -> None:
    script = """
model, optimizer = build()
x = torch.randn(256, 64, device=device)
sums = []
for step in range(12):
    learn(model, optimizer, x)
    if step % 4 == 3:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{step}.pt")
        sums.append(sum(each.double().sum().item() for each in model.state_dict().values()))
print(json.dumps(sums))
"""

    ran = run_script(tmp_path, script, fixes={"background_saves": True})
    for number, truth in zip((3, 7, 11), ran.printed, strict=True):
        held = torch.load(ran.directory / f"{number}.pt", map_location="cpu")
        assert sum(each.double().sum().item() for each in held["model"].values()) == pytest.approx(
            truth
        )
        assert held["optimizer"]["state"][0]["step"].item() == number + 1
    assert "a save to a path" in ran.applied, ran.said


def test_a_model_of_transformers_is_checkpointed_to_the_same_losses(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    script = """
from transformers import BertConfig, BertForSequenceClassification
config = BertConfig(
    vocab_size=100, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128,
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)
model = BertForSequenceClassification(config).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
ids, labels = torch.randint(100, (8, 32), device=device), torch.randint(2, (8,), device=device)
losses = []
for step in range(8):
    optimizer.zero_grad()
    loss = model(input_ids=ids, labels=labels).loss
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
print(json.dumps([each.item() for each in losses]))
"""
    plain = run_script(tmp_path, script).printed
    fixes = {"checkpointing": True, "attention": "sdpa"}
    ran = run_script(tmp_path, script, fixes=fixes)
    assert ran.printed == pytest.approx(plain, rel=1e-3)
    assert ran.applied == ["BertForSequenceClassification"]
    assert ran.refused == ["BertForSequenceClassification: it computes attention by sdpa already"]
