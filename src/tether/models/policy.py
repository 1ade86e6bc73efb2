"""The model being trained, as the trainer sees it: rows of ids in, log-probabilities of the sampled tokens out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor, nn

from tether.core.logprobs import Entropy, sampled_logp
from tether.core.rule import PolicyTokens
from tether.core.support import KeptIds, lost_mass, supported_logp
from tether.errors import ModelError
from tether.models.finite import check_finite_weights
from tether.models.loading import LoadedModel
from tether.models.lora import published
from tether.models.routers import Routers, replayable
from tether.models.sharing import PromptSharing, SharePrompt, attention_mask, sharing_of
from tether.records import Truncation

HEAD_TOLERANCE = 1e-3
"""Largest difference, relative to the largest logit, between our head and the model's own logits at load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInputs:
    """Rows padded on the right, and where in them the ``T`` sampled tokens are predicted.

    A row is a prompt and one completion of it, or a prompt and several, one after the other. With one, causal attention
    serves as it is: a token never sees what stands to its right, so padding needs no mask. With several, ``position``
    and ``branch`` say where each token stands in its own sequence and what it sees; the first tokens of all are
    predicted from the prompt's last position.
    """

    input_ids: Int64[Tensor, "B L"]
    row: Int64[Tensor, "T"]
    """Row of the position that predicts the token."""
    column: Int64[Tensor, "T"]
    """Column of the position that predicts the token: that of the token before it in its own sequence."""
    ids: Int64[Tensor, "T"]
    """The sampled tokens."""
    position: Int64[Tensor, "B L"] | None = None
    """Place of each token in its own sequence; ``None`` where no row holds more than one completion."""
    branch: Int64[Tensor, "B L"] | None = None
    """0 in the prompt, 1, 2, ... in its completions, -1 in padding: a token sees the prompt and its own branch."""
    experts: Int[Tensor, "B L layers k"] | None = None
    """What the routers choose; -1 (``NO_EXPERT``) anywhere in a token's set: their own choice. ``None``: always."""
    kept: KeptIds | None = None
    """What the softmax of each sampled token runs over; ``None``: always the whole vocabulary."""
    truncation: Truncation | None = None
    """What the tokens were sampled under if that is not replayed; the mass it cuts away then comes with the entropy."""

    def only(self, wanted: Bool[Tensor, "T"]) -> ModelInputs:
        """Some of the sampled tokens, in the same rows."""
        kept = None if self.kept is None else self.kept.select(wanted)
        row, column, ids = (x[wanted] for x in (self.row, self.column, self.ids))
        return replace(self, row=row, column=column, ids=ids, kept=kept)


class Policy:
    """A causal LM whose sampled-token log-probabilities are differentiable.

    Dropout is switched off: a ratio against the engine's numbers means nothing if the trainer rolls dice. Mixture
    models get no load-balance loss. At construction the hidden states and the output head are checked against the
    model's own logits, so that a model that does more to its logits than we know of is refused, not mistrained. Whether
    its routers can be overruled is tried as well.

    Args:
        loaded: the model.
        gradient_checkpointing: recompute layers in backward.
        share_prompt: whether rows may hold several completions; ``on`` refuses a model that cannot.
    """

    def __init__(
        self, loaded: LoadedModel, *, gradient_checkpointing: bool = False, share_prompt: SharePrompt = "auto"
    ) -> None:
        self.loaded = loaded
        self.model: nn.Module = loaded.model
        _without_dropout(self.model)
        if gradient_checkpointing:
            loaded.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.model.train()
        self._backbone: Any = loaded.model.base_model
        self._head = _head_of(loaded)
        self.vocabulary = int(loaded.model.get_output_embeddings().weight.shape[0])
        _check_head(loaded, self._head)
        self.sharing, self.apart_because = _sharing(loaded, share_prompt)
        self._routers, self.unroutable_because = _routers(loaded)

    @property
    def device(self) -> torch.device:
        """Where its parameters are."""
        return next(self.model.parameters()).device

    @property
    def routers(self) -> Routers:
        """Its routers; ``ModelError`` with the reason if they cannot be overruled."""
        if self._routers is None:
            raise ModelError(
                f"routes are replayed in a mixture of experts whose routers can be overruled; {self.loaded.source!r} "
                f"cannot: {self.unroutable_because}; take a preset without -r3 or -r2 (algorithm.replay = [])"
            )
        return self._routers

    def __call__(self, inputs: ModelInputs, *, temperature: float, entropy: Entropy = "detached") -> PolicyTokens:
        """Log-probability (float32, nats) and entropy of every sampled token, at the sampling temperature."""
        hidden = self._hidden(inputs)
        # completions that share a prompt share the position that predicts their first token: the gradient adds up
        # there, by index_select in a fixed order, by an index of two tensors as the threads come
        place = inputs.row * hidden.shape[1] + inputs.column
        picked: Float[Tensor, "T H"] = hidden.flatten(0, 1).index_select(0, place)
        how: dict[str, Any] = {"temperature": temperature, "vocabulary": self.vocabulary}
        if inputs.kept is None:
            logp, h = sampled_logp(picked, inputs.ids, self._head, entropy=entropy, **how)
        else:
            logp, h = supported_logp(picked, (inputs.ids, inputs.kept), self._head, entropy=entropy, **how)
        if inputs.truncation is None or entropy == "none":
            return PolicyTokens(logp, h)
        return PolicyTokens(logp, h, lost_mass=lost_mass(picked, inputs.truncation, self._head, **how))

    @torch.no_grad()
    def routes(self, inputs: ModelInputs) -> Int[Tensor, "B L layers k"]:
        """The experts that its own routers choose; routes that the inputs bring are not replayed."""
        with self.routers.recording() as chosen:
            self._hidden(replace(inputs, experts=None))
        return self.routers.joined(chosen, inputs.input_ids.shape)

    def _hidden(self, inputs: ModelInputs) -> Float[Tensor, "B L H"]:
        layout: dict[str, Tensor] = {}
        if inputs.position is not None and inputs.branch is not None:
            layout = {
                "position_ids": inputs.position,
                "attention_mask": attention_mask(self.loaded.model, inputs.branch),
            }
        if inputs.experts is not None:
            return self.routers.hidden(inputs.experts, input_ids=inputs.input_ids, use_cache=False, **layout)
        hidden: Tensor = self._backbone(input_ids=inputs.input_ids, use_cache=False, **layout).last_hidden_state
        return hidden

    def weights(self) -> dict[str, Tensor]:
        """What travels to the engines, by name, refused if not finite; live tensors, copied by whoever keeps them."""
        weights = published(self.model)
        check_finite_weights(weights, "the model being trained")
        return weights


def _sharing(loaded: LoadedModel, setting: SharePrompt) -> tuple[PromptSharing | None, str]:
    """How the model shares prompts, or nothing and the reason."""
    if setting == "off":
        return None, ""
    try:
        return sharing_of(loaded.model), ""
    except ModelError as error:
        if setting == "on":
            raise ModelError(
                f"trainer.share_prompt = on needs a model whose completions can share a row; {loaded.source!r} cannot: "
                f"{error}; take auto or off"
            ) from error
        return None, f"completions do not share their prompt in training: {error}"


def _routers(loaded: LoadedModel) -> tuple[Routers | None, str]:
    """Routers that can be overruled, or nothing and the reason."""
    try:
        return replayable(loaded.model), ""
    except ModelError as error:
        return None, str(error)


def _without_dropout(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "dropout", "jitter_noise"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def _head_of(loaded: LoadedModel) -> Callable[[Tensor], Tensor]:
    """The output layer with the scalings that families of models apply to logits."""
    config = loaded.model.config
    layer = loaded.model.get_output_embeddings()
    if layer is None:
        raise ModelError(f"model {loaded.source!r} has no output layer; tether trains causal language models")
    divide = float(getattr(config, "logits_scaling", None) or 1.0)  # Granite
    multiply = float(getattr(config, "logit_scale", None) or 1.0)  # Cohere
    cap = getattr(config, "final_logit_softcapping", None)  # Gemma

    def head(hidden: Tensor) -> Tensor:
        logits: Tensor = layer(hidden)
        if multiply != divide:
            logits = logits * (multiply / divide)
        return torch.tanh(logits / cap) * cap if cap else logits

    return head


@torch.no_grad()
def _check_head(loaded: LoadedModel, head: Callable[[Tensor], Tensor]) -> None:
    ids = torch.tensor([[loaded.eos_ids[0], loaded.pad_id]], device=next(loaded.model.parameters()).device)
    own = loaded.model(input_ids=ids, use_cache=False).logits.float()
    ours = head(loaded.model.base_model(input_ids=ids, use_cache=False).last_hidden_state).float()
    gap, scale = float((own - ours).abs().max()), float(own.abs().max())
    if not gap <= HEAD_TOLERANCE * max(scale, 1.0):
        raise ModelError(
            f"model {loaded.source!r} changes its logits after the output layer in a way tether does not know "
            f"(largest difference {gap:.3g} at logits up to {scale:.3g}), so its log-probabilities would be wrong; "
            "use a model whose logits are head(hidden states), softcapped or scaled at most"
        )
