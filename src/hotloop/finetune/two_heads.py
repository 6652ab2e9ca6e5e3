"""One encoder with a head for the whole text and one for its words, made of two classes of transformers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn


class _Computed(nn.Module):
    """Stands where a model has its encoder, and gives what that of the other one computed."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: Tensor | None = None

    def forward(self, *arguments: object, **named: object) -> Any:
        from transformers.modeling_outputs import BaseModelOutput

        return BaseModelOutput(last_hidden_state=self.hidden)


class TwoHeads(nn.Module):
    """Computes the encoder once. `logits` of its output are those of the texts, `token_logits` those of the tokens."""

    def __init__(self, sequence: Any, token: Any) -> None:
        super().__init__()
        self.sequence, self.token = sequence, token
        self._computed = _Computed()
        setattr(token, token.base_model_prefix, self._computed)
        # before that of `Classifier`, which leaves one token of each example
        sequence.base_model.register_forward_hook(self._keep)

    @property
    def base_model(self) -> Any:
        return self.sequence.base_model

    def get_input_embeddings(self) -> Any:
        return self.sequence.get_input_embeddings()

    def _keep(self, base: object, arguments: object, output: Any) -> None:
        self._computed.hidden = output.last_hidden_state

    def forward(self, input_ids: Tensor, **named: Tensor) -> SimpleNamespace:
        try:
            logits = self.sequence(input_ids=input_ids, **named).logits
            token_logits = self.token(input_ids=input_ids).logits
        finally:
            self._computed.hidden = None
        return SimpleNamespace(logits=logits, token_logits=token_logits)

    @contextmanager
    def whole_token_model(self) -> Iterator[Any]:
        """The model of the tokens with the encoder in it, as its class has it: without what only texts need."""
        base, name = self.sequence.base_model, self.token.base_model_prefix
        pooler = getattr(base, "pooler", None)
        setattr(self.token, name, base)
        try:
            if pooler is not None:
                base.pooler = None
            yield self.token
        finally:
            if pooler is not None:
                base.pooler = pooler
            setattr(self.token, name, self._computed)
