from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hotloop.core.config import OptimizerConfig
from hotloop.models.decoder import Decoder
from hotloop.models.shape import DecoderShape
from hotloop.probe.foreign_process import describe_optimizer
from hotloop.train.optimizer import Muon, build_optimizer, orthogonalize

SHAPE = DecoderShape(
    vocabulary=50, context=16, layers=2, width=32, heads=4, kv_heads=2, hidden=48,
    norm="rmsnorm", positions="rotary", mlp="swiglu",
)  # fmt: skip


def decoder() -> Decoder:
    torch.manual_seed(0)
    return Decoder(SHAPE)


def build(model: Decoder, precision: str = "fp32", **settings: object) -> torch.optim.Optimizer:
    values = {"name": "muon", "fused": False, **settings}
    return build_optimizer(model, OptimizerConfig.model_validate(values), precision=precision)


def steps(model: Decoder, *optimizers: torch.optim.Optimizer, num: int = 3) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(num):
        for p in model.parameters():
            p.grad = torch.randn(p.shape, generator=generator)
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_singular_values_become_one_and_singular_vectors_stay(dtype: torch.dtype) -> None:
    matrices = torch.randn(3, 16, 40, generator=torch.Generator().manual_seed(0)) * 7
    found = orthogonalize(matrices.to(dtype)).float()
    values = torch.linalg.svdvals(found)
    assert float(values.min()) > 0.6
    assert float(values.max()) < 1.3
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    inside = left.mT @ found @ right.mT  # diagonal where the vectors are the same
    off = inside - torch.diag_embed(inside.diagonal(dim1=1, dim2=2))
    assert float(off.abs().max()) < (1e-4 if dtype == torch.float32 else 0.05)


def test_a_batch_gives_what_each_matrix_gives_alone() -> None:
    matrices = torch.randn(4, 8, 20) * torch.tensor([1e-6, 1.0, 10.0, 1e6]).view(4, 1, 1)
    together = orthogonalize(matrices)
    for index in range(4):
        alone = orthogonalize(matrices[index : index + 1])[0]
        assert torch.allclose(together[index], alone, atol=1e-4)
    assert torch.isfinite(orthogonalize(torch.zeros(1, 4, 4))).all()


def test_steps_are_those_of_torchs_own_muon_and_adamw() -> None:
    ours, theirs = decoder(), decoder()
    settings = {"learning_rate": 0.02, "weight_decay": 0.1, "beta2": 0.95}
    optimizer = build(ours, "bf16", **settings)
    split = {id(p) for p, _ in theirs.block_matrices()}
    # Where several matrices stand in one, torch's cannot take them apart: those are compared below.
    whole = [p for p, rows in theirs.block_matrices() if not rows]
    reference = torch.optim.Muon(
        whole, lr=0.02, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    others = [p for p in theirs.parameters() if id(p) not in split]
    adamw = torch.optim.AdamW(
        [
            {"params": [p for p in others if p.ndim > 1]},
            {"params": [p for p in others if p.ndim == 1], "weight_decay": 0.0},
        ],
        lr=0.02,
        weight_decay=0.1,
        betas=(0.9, 0.95),
    )
    before = {name: p.detach().clone() for name, p in ours.named_parameters()}
    steps(ours, optimizer)
    steps(theirs, reference, adamw)
    muon_names = {name for name, p in theirs.named_parameters() if any(p is w for w in whole)}
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        if "qkv" in name:
            continue
        moved = float((b - before[name]).detach().norm())
        assert moved > 0
        error = float((a - b).detach().norm())
        assert error < (2e-2 if name in muon_names else 1e-6) * moved, name


def test_queries_keys_and_values_are_orthogonalized_apart() -> None:
    model = decoder()
    qkv = model.blocks[0].attention.qkv.weight  # type: ignore[union-attr]
    before = qkv.detach().clone()  # type: ignore[operator,union-attr]
    steps(model, build(model, learning_rate=0.1, weight_decay=0.0, momentum=0.0), num=1)
    moved = (before - qkv).detach()  # type: ignore[operator]
    for part, longer in zip(moved.split((32, 16, 16)), (32, 32, 32), strict=True):
        values = torch.linalg.svdvals(part) / (0.1 * 0.2 * longer**0.5)
        assert float(values.min()) > 0.3
        assert float(values.max()) < 1.3


def test_only_matrices_of_the_blocks_are_orthogonalized() -> None:
    model = decoder()
    optimizer = build(model)
    assert isinstance(optimizer, Muon)
    names = {id(p): name for name, p in model.named_parameters()}
    matrices, *others = ({names[id(p)] for p in g["params"]} for g in optimizer.param_groups)
    assert matrices.union(*others) == set(names.values())
    assert matrices == {
        f"blocks.{i}.{part}.weight"
        for i in range(2)
        for part in ("attention.qkv", "attention.out", "gate", "up", "down")
    }
    steps(model, optimizer, num=1)
    slots = {names[id(p)]: set(slots) for p, slots in optimizer.state.items()}
    assert slots["blocks.0.up.weight"] == {"momentum"}
    assert slots["tokens.weight"] == {"step", "exp_avg", "exp_avg_sq"}


def test_embeddings_of_the_values_are_updated_by_adamw() -> None:
    torch.manual_seed(0)
    model = Decoder(replace(SHAPE, value_embeddings=True))
    optimizer = build(model)
    names = {id(p): name for name, p in model.named_parameters()}
    matrices, others, _ = ({names[id(p)] for p in g["params"]} for g in optimizer.param_groups)
    assert "value_tokens.1.weight" in others
    assert "blocks.1.attention.value_gate.weight" in matrices
    steps(model, optimizer, num=1)
    table = model.get_parameter("value_tokens.1.weight")
    assert set(optimizer.state[table]) == {"step", "exp_avg", "exp_avg_sq"}


@pytest.mark.parametrize("shape", [(8, 8), (24, 8), (8, 40), (2, 32)])
def test_a_batch_is_orthogonalized_as_torch_does_one_by_one(shape: tuple[int, int]) -> None:
    """torch's own update of a weight of zero, without momentum, is its orthogonalized gradient."""
    gradients = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    theirs = [torch.nn.Parameter(torch.zeros(shape)) for _ in gradients]
    for p, gradient in zip(theirs, gradients, strict=True):
        p.grad = gradient.clone()
    torch.optim.Muon(theirs, lr=1.0, momentum=0.0, nesterov=False, weight_decay=0.0).step()
    size = max(1, shape[0] / shape[1]) ** 0.5
    wide = gradients if shape[0] <= shape[1] else gradients.mT
    ours = orthogonalize(wide.bfloat16()).float()
    ours = ours if shape[0] <= shape[1] else ours.mT
    for mine, p in zip(ours, theirs, strict=True):
        their = -p.detach() / size
        assert float((mine - their).norm()) < 2e-2 * float(their.norm())


def test_one_product_per_shape_whatever_the_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    from hotloop.train import optimizer

    batches: list[torch.Size] = []
    real = optimizer.orthogonalize

    def counted(batch: torch.Tensor) -> torch.Tensor:
        batches.append(batch.shape)
        return real(batch)

    monkeypatch.setattr(optimizer, "orthogonalize", counted)
    model = decoder()
    steps(model, build(model), num=1)
    # queries and out; keys and values; gate, up and (turned) down
    assert sorted(batches) == [(4, 16, 32), (4, 32, 32), (6, 32, 48)]


def test_settings_reach_the_optimizer_they_name() -> None:
    model = decoder()
    sgd = build(model, name="sgd", nesterov=True, momentum=0.8, weight_decay=0.2)
    group = sgd.param_groups[0]
    assert (group["momentum"], group["nesterov"], group["weight_decay"]) == (0.8, True, 0.2)
    assert describe_optimizer(sgd) == "SGD"
    assert build(model, name="sgd").param_groups[0]["momentum"] == 0.9
    assert build(model).param_groups[0]["momentum"] == 0.95
    assert describe_optimizer(build(model, fused=True)) == "Muon(fused)"


@pytest.mark.parametrize("name", ["adamw", "sgd", "muon"])
@pytest.mark.parametrize("fused", [True, False])
def test_norms_and_biases_are_not_decayed_and_everything_else_is(name: str, fused: bool) -> None:
    """With gradients of zero and no momentum, what moves a weight is its decay alone."""
    model = decoder()
    optimizer = build(model, name=name, learning_rate=0.1, weight_decay=0.5, fused=fused)
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(1.0)
            p.grad = torch.zeros_like(p)
    optimizer.step()
    for each, p in model.named_parameters():
        expected = 0.95 if p.ndim >= 2 else 1.0
        assert torch.allclose(p, torch.full_like(p, expected)), each
