"""Models of a few thousand parameters."""

from pathlib import Path

import torch

from tether.models.loading import LoadedModel, pin_experts
from tether.models.tiny import CONTEXT, build_moe, build_tokenizer

SHAPE = {"hidden_size": 16, "num_hidden_layers": 1, "head_dim": 8, "moe_intermediate_size": 8, "num_experts": 4}


def small(**changes) -> LoadedModel:
    torch.manual_seed(0)
    model = build_moe(**SHAPE, **changes)
    pin_experts(model)
    return LoadedModel(
        model=model.eval(),
        tokenizer=build_tokenizer(),
        source="small",
        eos_ids=(1,),
        pad_id=0,
        context=CONTEXT,
    )


def write(folder: Path, loaded: LoadedModel | None = None) -> Path:
    """A folder as any Hugging Face model has it."""
    loaded = loaded or small()
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder


def logits(loaded: LoadedModel, text: str = "4+3*5=") -> torch.Tensor:
    with torch.no_grad():
        return loaded.model(input_ids=torch.tensor([loaded.tokenizer.encode(text)])).logits
