"""The matrix products of one training step, by shape: what the arithmetic cannot do without."""

from __future__ import annotations

from dataclasses import dataclass

from hotloop.models.shape import DecoderShape


@dataclass(frozen=True, slots=True)
class Product:
    """(m x k) times (k x n), `batch` of them at once, `count` times in a step."""

    name: str
    kind: str
    """`forward`, `input gradient` or `weight gradient` of a linear layer, or of `scores` and `mixing`."""
    m: int
    k: int
    n: int
    count: float
    batch: int = 1

    @property
    def flops(self) -> float:
        """Of all of them in a step."""
        return 2.0 * self.m * self.k * self.n * self.batch * self.count


def step_products(shape: DecoderShape, windows: int) -> tuple[Product, ...]:
    """Of `windows` full windows: forward, and the gradients of inputs and weights.

    Attention's products are dense here and count half: a causal model needs no score of the future.
    Products of value embeddings' gates are left out, they are too small to matter.
    """
    tokens, width = windows * shape.context, shape.width
    linears = {
        "qkv": (width, width + 2 * shape.kv_width, shape.layers),
        "attention out": (width, width, shape.layers),
        "up": (width, shape.inner_width, shape.layers * (2 if shape.mlp == "swiglu" else 1)),
        "down": (shape.inner_width, width, shape.layers),
        "vocabulary": (width, shape.vocabulary, 1),
    }
    products: list[Product] = []
    for name, (inner, outer, count) in linears.items():
        products += [
            Product(name, "forward", tokens, inner, outer, count),
            Product(name, "input gradient", tokens, outer, inner, count),
            Product(name, "weight gradient", outer, tokens, inner, count),
        ]
    length, depth, batch = shape.context, shape.head_width, windows * shape.heads
    half = shape.layers / 2
    products += [
        # q k^T forward, and the gradient of the weights from that of the output: the same shape
        Product("scores", "forward", length, depth, length, 2 * half, batch),
        # weights v forward, and the gradients of q, k and v
        Product("mixing", "forward", length, length, depth, 4 * half, batch),
    ]
    return tuple(products)
