"""Weights in another number format."""

import torch

from tether.models.conversion import convert_weights
from tether.models.loading import load_model


def test_a_converted_model_is_the_model_loaded_in_that_format():
    converted, loaded = load_model("tiny-moe").model, load_model("tiny-moe", dtype="bfloat16").model
    convert_weights(converted, torch.bfloat16)
    assert converted.dtype == torch.bfloat16
    for named in ("named_parameters", "named_buffers"):
        one, other = (dict(getattr(model, named)()) for model in (converted, loaded))
        assert one.keys() == other.keys()
        for name in one:
            assert one[name].dtype == other[name].dtype, name
            assert torch.equal(one[name], other[name]), name
    assert converted.get_output_embeddings().weight is converted.get_input_embeddings().weight
