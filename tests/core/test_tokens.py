"""What a batch of tokens refuses."""

from dataclasses import replace

import pytest
import torch

from tether.core.examples import tokens_of
from tether.core.tokens import LOG_PROBS


@pytest.mark.parametrize("name", LOG_PROBS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_log_probs_in_16_bits_are_never_subtracted(name, dtype):
    tokens, logp = tokens_of(log_ratio=[0.1, 0.3], advantage=[1.0, 1.0])
    values = logp.detach()[:, None] if name == "top_k_behavior" else logp.detach()
    replace(tokens, **{name: values})
    replace(tokens, **{name: values.double()})
    with pytest.raises(ValueError, match=rf"log-probs must be float32 or float64.*{name} is {str(dtype)[6:]}"):
        replace(tokens, **{name: values.to(dtype)})
