import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from tests.engines.tiny import build
from tether.engines.attention import NAME, grouped_attention, use_grouped_attention


def stock(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    key, value = (t.repeat_interleave(groups, dim=1) for t in (key, value))
    return scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2)


@pytest.mark.parametrize("rows", [1, 24])  # few heads, and many
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("mask", ["none", "seen", "added"])
def test_one_query_attends_as_the_stock_kernel_does(rows: int, groups: int, mask: str) -> None:
    torch.manual_seed(0)
    query = torch.randn(rows, 2 * groups, 1, 16)
    key, value = torch.randn(rows, 2, 9, 16), torch.randn(rows, 2, 9, 16)
    seen = torch.rand(rows, 1, 1, 9) > 0.4
    seen[..., -1] = True
    given = {"none": None, "seen": seen, "added": torch.zeros(rows, 1, 1, 9).masked_fill(~seen, -torch.inf)}[mask]
    out, _ = grouped_attention(nn.Module(), query, key, value, given)
    torch.testing.assert_close(out, stock(query, key, value, given))


def test_several_queries_attend_causally() -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 2, 5, 16) for _ in range(3))
    causal = torch.ones(5, 5, dtype=torch.bool).tril()[None, None]
    out, _ = grouped_attention(nn.Module(), query, key, value, causal.expand(2, 1, 5, 5))
    torch.testing.assert_close(out, stock(query, key, value, causal))


def test_only_models_with_the_stock_kernel_are_switched() -> None:
    switched, left = build("moe"), build("eager")
    use_grouped_attention(switched)
    use_grouped_attention(switched)
    use_grouped_attention(left)
    assert switched.config._attn_implementation == NAME
    assert left.config._attn_implementation == "eager"
