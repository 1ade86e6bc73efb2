"""Low-rank adapters (LoRA, arXiv:2106.09685): a model whose layers are frozen and get a small trained part beside them.

Here alone is said which tensors of a model travel to the engines: all, or those of its adapter.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from tether.errors import ConfigError, ModelError
from tether.models.conversion import convert_weights
from tether.models.fingerprint import fingerprint

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BASE: Final = "base_fingerprint"
"""Name under which the fingerprint of the frozen weights travels beside an adapter, as 32 bytes."""
TRIAL_SHARE: Final = 0.25
"""Of a layer's output, what the adapter of a trial adds to it."""
_OURS, _BASE_LAYER, _NAME = ".lora_", ".base_layer.", ".default."
_PREFIX = "base_model.model."
"""Which peft puts before every name in a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """A linear layer ``W x`` becomes ``W x + (alpha / rank) B A x``, with ``A [rank, in]`` and ``B [out, rank]``.

    ``A`` starts at random, ``B`` at 0, so that the model starts as its base.

    >>> Lora(rank=0)
    Traceback (most recent call last):
    tether.errors.ConfigError: model.lora_rank must be at least 1 where there is an adapter; got 0
    """

    rank: int
    alpha: float = 16.0
    targets: tuple[str, ...] = ()
    """Last parts of the names of the layers that get one, such as q_proj; empty: every linear layer but head and
    routers."""

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ConfigError(f"model.lora_rank must be at least 1 where there is an adapter; got {self.rank}")
        if not 0 < self.alpha <= 1e6:
            raise ConfigError(f"model.lora_alpha must lie in (0, 1e6]; got {self.alpha}")
        if find_spec("peft") is None:
            raise ConfigError(
                "model.lora_rank needs the package peft, which is not installed; pip install 'tether-rl[lora]', or "
                "set model.lora_rank = 0"
            )


def adapt(model: PreTrainedModel, lora: Lora, *, dtype: torch.dtype, seed: int = 0) -> None:
    """Give a model an adapter, in place, and freeze everything else; its outputs stay the same at first.

    Args:
        model: as it was read; layers, names and files of its base stay what they are.
        lora: rank, scale and layers.
        dtype: in which engines hold the base, for its fingerprint.
        seed: of ``A``; torch's global random state is left as it was.
    """
    from peft import LoraConfig, inject_adapter_in_model

    layers = _targets(model, lora)
    base = fingerprint(model.state_dict(), dtype)
    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=layers, task_type="CAUSAL_LM")
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("error")  # peft warns where it does something else than was asked
        torch.manual_seed(seed)
        try:
            inject_adapter_in_model(config, model)
        except Exception as error:  # of a library that knows some models better than others
            raise ModelError(f"peft cannot adapt this model ({type(error).__name__}: {error}); {_WAY_OUT}") from error
    adapted = {name.partition(_OURS)[0] for name in _names(model)}
    if adapted != layers:
        odd = sorted(adapted ^ layers)[0]
        raise ModelError(
            f"peft must adapt the layers it was asked to; it adapted {len(adapted)} and was asked for {len(layers)}, "
            f"{odd!r} makes a difference; {_WAY_OUT}"
        )
    place = next(model.parameters()).device
    model.register_buffer(
        BASE, torch.tensor(list(bytes.fromhex(base)), dtype=torch.uint8, device=place), persistent=False
    )


_WAY_OUT = "choose other model.lora_targets, or train all weights with model.lora_rank = 0"


def is_adapted(model: nn.Module) -> bool:
    """Whether it has an adapter."""
    return BASE in model._buffers


def published(model: nn.Module) -> dict[str, Tensor]:
    """The tensors that travel to the engines, live, by name: every one of the state dict; or, of a model with an
    adapter, those of the adapter and the fingerprint of the base that they belong to."""
    state: dict[str, Tensor] = model.state_dict(keep_vars=True)
    if not is_adapted(model):
        return state
    return {**{name: tensor for name, tensor in state.items() if _OURS in name}, BASE: model.get_buffer(BASE)}


def trial(model: nn.Module) -> dict[str, Tensor]:
    """An adapter for a look at an engine: the model's own, with a ``B`` that makes a difference; the model stays.

    A fresh adapter changes nothing, so an engine that ignores adapters answers like one that has it. This one adds
    about ``TRIAL_SHARE`` of what its layer gives: the entries of ``B [out, rank]`` are normal, of standard deviation
    ``TRIAL_SHARE |W| / (alpha / rank |A| sqrt(out))`` with Frobenius norms, so that ``alpha / rank |B A|`` is that
    share of ``|W|`` on average.
    """
    from peft.tuners.lora import LoraLayer

    tensors = published(model)
    numbers = torch.Generator().manual_seed(0)
    for name, layer in model.named_modules():
        if isinstance(layer, LoraLayer):
            a, b = (f"{name}{_OURS}{part}{_NAME}weight" for part in "AB")
            down, weight = tensors[a].detach().float(), layer.get_base_layer().weight.detach().float()
            size = TRIAL_SHARE * weight.norm() / (layer.scaling["default"] * down.norm() * weight.shape[0] ** 0.5)
            drawn = torch.randn(tensors[b].shape, generator=numbers).to(down.device)
            tensors[b] = (size * drawn).to(tensors[b].dtype)
    return tensors


def check_still(model: nn.Module) -> None:
    """Raise ``ModelError`` if the frozen weights are not what they were when the adapter was made."""
    if not is_adapted(model):
        return
    began = _hex(model.get_buffer(BASE).cpu())
    if began not in (ended := [base_fingerprint(model, dtype) for dtype in (torch.float32, torch.bfloat16)]):
        raise ModelError(
            f"the base of an adapter must stay as it is; it had fingerprint {began[:12]} and has {ended[0][:12]} in "
            f"float32, {ended[1][:12]} in bfloat16: something wrote into frozen weights, so nothing is saved"
        )


def check_base(model: nn.Module, received: Mapping[str, Tensor]) -> None:
    """Refuse an adapter that was trained on another base than this model's."""
    if not is_adapted(model) or BASE not in received:
        return  # the names of the tensors tell
    own, other = model.get_buffer(BASE).cpu(), received[BASE].cpu()
    if not torch.equal(own, other):
        raise ModelError(
            "an adapter must meet the weights that it was trained on; the trainer's base has fingerprint "
            f"{_hex(other)[:12]} in the engine's dtype, that of this process {_hex(own)[:12]}: let both read the same "
            "model.path, with trainer and model in float32 if the engine is"
        )


def whole(model: nn.Module, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Published weights and, where they are an adapter, this model's base beside them in the same number format."""
    if not is_adapted(model):
        return weights
    check_base(model, weights)
    dtype = next(tensor.dtype for tensor in weights.values() if tensor.is_floating_point())
    base = {name: p.detach() for name, p in model.state_dict(keep_vars=True).items() if name not in weights}
    return {**{name: p.to(dtype) if p.is_floating_point() else p for name, p in base.items()}, **weights}


def base_fingerprint(model: nn.Module, dtype: torch.dtype) -> str:
    """Of the frozen weights as they are now, in a number format; that of a model without adapter is of all weights."""
    state = {name: tensor for name, tensor in model.state_dict().items() if _OURS not in name}
    return fingerprint({name.replace(_BASE_LAYER, "."): tensor for name, tensor in state.items()}, dtype)


def plain(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """A model as any Hugging Face folder holds it: adapter merged (in float32), weights in ``dtype``.

    The model itself where there is nothing to do, else a copy.
    """
    if not is_adapted(model):
        if model.dtype == dtype:
            return model
        model = copy.deepcopy(model)
    else:
        from peft.tuners.lora import LoraLayer

        model = copy.deepcopy(model)
        convert_weights(model, torch.float32)
        for name, module in list(model.named_modules()):
            if isinstance(module, LoraLayer):
                module.merge()
                model.set_submodule(name, module.get_base_layer())
        del model._buffers[BASE], model.peft_config
    convert_weights(model, dtype)
    return model


def save_adapter(model: PreTrainedModel, folder: Path, of: Mapping[str, Tensor] | None = None) -> None:
    """Write the adapter alone as peft does, for ``PeftModel.from_pretrained(base, folder)``: the model's own, or one
    that was published."""
    from safetensors.torch import save_file

    folder.mkdir()
    config: Any = model.peft_config["default"]
    config = copy.copy(config)
    config.base_model_name_or_path = None  # a path on this machine means nothing elsewhere
    config.inference_mode = True
    config.target_modules = sorted(config.target_modules)
    config.save_pretrained(folder)
    held = published(model) if of is None else of
    tensors = {_PREFIX + name.replace(_NAME, "."): held[name].detach() for name in held if name != BASE}
    save_file(tensors, folder / "adapter_model.safetensors")


def _targets(model: PreTrainedModel, lora: Lora) -> set[str]:
    """Names of the layers to adapt: those that peft's ``all-linear`` means, without routers.

    peft itself would give an adapter to routers and to experts as well, where transformers holds them as parameters of
    modules of their own: what replays the routes counts on the routers' form, and for experts all weights of a layer
    would be computed anew in each forward pass.
    """
    head = model.get_output_embeddings()
    linear = {name for name, module in model.named_modules() if isinstance(module, nn.Linear) and module is not head}
    linear = {name for name in linear if not _is_router(_last(name))}
    if not lora.targets:
        if not linear:
            raise ModelError(
                f"an adapter needs linear layers; {type(model).__name__} has none that can have one: train all weights "
                "with model.lora_rank = 0"
            )
        return linear
    known = {_last(name) for name in linear}
    if wrong := [target for target in lora.targets if target not in known]:
        raise ModelError(
            f"model.lora_targets must be linear layers that can have an adapter, {', '.join(sorted(known))}; got "
            f"{wrong[0]!r}{_reason(model, wrong[0])}"
        )
    return {name for name in linear if _last(name) in lora.targets}


def _reason(model: PreTrainedModel, target: str) -> str:
    """Why a name that the model has is none that can have an adapter."""
    if _is_router(target):
        return ": routers are not adapted, since the routes of the rollouts would not be those of the base"
    if any(_last(name) == target and p.dim() == 3 for name, p in model.named_parameters()):
        return ": the experts of this model are one tensor and no linear layers; train all weights to change them"
    if any(_last(name) == target for name, _ in model.named_modules()):
        return ": embeddings, norms and the head have none"
    return ""


def _is_router(part: str) -> bool:
    return part == "gate" or part.endswith("_gate") or "router" in part


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _names(model: nn.Module) -> list[str]:
    """Of the trained parameters; those that are no part of an adapter would be none of ours."""
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def _hex(digest: Tensor) -> str:
    return bytes(digest.tolist()).hex()
