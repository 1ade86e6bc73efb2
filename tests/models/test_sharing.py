"""Which models may see several completions in a row, and what a token of such a row sees."""

from __future__ import annotations

import pytest
import torch

from tests.pipeline.small import loaded_of
from tether.errors import ModelError
from tether.models import sharing
from tether.models.fingerprint import fingerprint
from tether.models.policy import ModelInputs, Policy
from tether.models.sharing import PromptSharing, branch_mask, sharing_of


@pytest.mark.parametrize("kind", ["moe", "tied", "eager", "gpt2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_models_with_full_attention_share(kind, dtype):
    assert sharing_of(loaded_of(kind).model.to(dtype)).token_cost > 0


def test_a_model_with_a_window_does_not_and_the_policy_says_why():
    policy = Policy(loaded_of("sliding"))
    assert policy.sharing is None
    assert "DynamicSlidingWindowLayer" in policy.apart_because


def test_on_refuses_a_model_that_cannot():
    with pytest.raises(ModelError, match=r"share_prompt = on needs .*SlidingWindow.*; take auto or off"):
        Policy(loaded_of("sliding"), share_prompt="on")


def test_off_shares_nothing():
    policy = Policy(loaded_of(), share_prompt="off")
    assert policy.sharing is None
    assert policy.apart_because == ""


def test_an_attention_that_takes_no_mask_is_refused():
    model = loaded_of().model
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ModelError, match="flash_attention_2"):
        sharing_of(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ignored", ["attention_mask", "position_ids"])
def test_a_model_that_ignores_what_the_layout_says_is_found(monkeypatch, dtype, ignored):
    loaded = loaded_of("tied")
    loaded.model.to(dtype)
    forward = loaded.model.base_model.forward

    def without(**inputs):
        inputs.pop(ignored, None)
        return forward(**inputs)

    monkeypatch.setattr(loaded.model.base_model, "forward", without)
    with pytest.raises(ModelError, match="not the same when completions share a row"):
        sharing_of(loaded.model)


def test_a_model_that_breaks_on_the_layout_is_found(monkeypatch):
    def broken(model):
        raise IndexError("too many indices")

    monkeypatch.setattr(sharing, "_probe", broken)
    policy = Policy(loaded_of())
    assert policy.sharing is None
    assert "IndexError: too many indices" in policy.apart_because


def test_padding_sees_something_and_is_seen_by_no_one():
    mask = branch_mask(torch.tensor([[0, 0, 1, 2, -1, -1]]))[0]
    assert mask[4, :2].all()
    assert not mask[:4, 4:].any()


def test_long_completions_of_short_prompts_stay_apart():
    cheap, dear = PromptSharing(token_cost=256.0), PromptSharing(token_cost=16384.0)
    assert cheap.completions_per_row(20, 1000.0) == 1
    assert cheap.completions_per_row(20, 20.0) > 1
    assert dear.completions_per_row(20, 20.0) > cheap.completions_per_row(20, 20.0)
    assert cheap.completions_per_row(20, 0.0) >= 1


def test_a_gradient_that_several_tokens_share_is_the_same_to_the_last_bit_whatever_the_threads_do():
    policy = Policy(loaded_of(), share_prompt="off")
    length, num_tokens = 32, 2048
    ids = torch.arange(4 * length).view(4, length) % 20
    column = torch.arange(num_tokens) % 3  # hundreds of tokens a position
    inputs = ModelInputs(input_ids=ids, row=torch.arange(num_tokens) % 4, column=column, ids=column + 5)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        seen = set()
        for _ in range(20):
            policy.model.zero_grad()
            policy(inputs, temperature=1.0).logp.sum().backward()
            seen.add(fingerprint({name: p.grad for name, p in policy.model.named_parameters()}))
    finally:
        torch.set_num_threads(before)
    assert len(seen) == 1
