import dataclasses
import random
from typing import Any

import pytest
import torch

from tests.engines.tiny import Ready, assert_equal_bits, bits, build, requests, through_a_file, truncated
from tether.engines.decoding import RowBatch
from tether.engines.rows import Decodable
from tether.errors import ModelError
from tether.models.loading import load_model
from tether.models.routers import find_routers, routing_of
from tether.ports import GenerationRequest
from tether.records import Completion

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def asked(count: int, *, routing: bool = False) -> list[GenerationRequest]:
    """Mixed prompts, limits, temperatures, truncations, alternatives; every third prompt is that of the one before."""
    made = requests(count, max_tokens=24)
    for i in range(2, count, 3):
        made[i] = dataclasses.replace(made[i], prompt_ids=made[i - 1].prompt_ids)
    return truncated(
        [
            dataclasses.replace(
                r,
                max_tokens=r.max_tokens - i % 5 * 4,
                temperature=1.0 + i % 2 / 4,
                alternatives=i % 3,
                routing=routing and i % 4 != 1,
            )
            for i, r in enumerate(made)
        ]
    )


def advance(batch: RowBatch, version: int, most: int) -> list[Completion]:
    """One block; those that ended in it."""
    return [draft.completion() for draft in batch.advance(version, most).ended]


def finish(batch: RowBatch, blocks: list[int], version: int) -> list[Completion]:
    """Decode to the end in blocks of the given sizes, the last of them again and again; a version a block."""
    done: list[Completion] = []
    while batch.drafts:
        done += advance(batch, version, blocks.pop(0) if len(blocks) > 1 else blocks[0])
        version += 1
    return done


def begun(loaded: Decodable, given: list[GenerationRequest]) -> RowBatch:
    return RowBatch.of(loaded, given, find_routers(loaded.model) if is_mixture(loaded.model) else None)


def restored(loaded: Decodable, state: dict[str, Any]) -> RowBatch:
    batch = RowBatch(loaded, find_routers(loaded.model) if is_mixture(loaded.model) else None)
    batch.restore(state)
    return batch


def is_mixture(model: Any) -> bool:
    return routing_of(model) is not None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["moe", "sliding", "gpt2", "eager"])
@pytest.mark.parametrize("count", [1, 3, 17])
def test_a_restored_batch_goes_on_to_the_same_bits(kind: str, count: int, dtype: str) -> None:
    """Saved before the first token, and at random later positions; rows have been dropped by then, or not."""
    model = build(kind).to(DTYPES[dtype])
    numbers = random.Random(f"{kind} {count} {dtype}")
    given = asked(count, routing=kind in ("moe", "eager"))
    for cut in (0, *numbers.sample(range(1, 8), 3)):
        blocks = [numbers.randint(1, 4) for _ in range(40)]
        undisturbed = begun(Ready(model), given)
        expected = finish(undisturbed, list(blocks), 0)

        saved = begun(Ready(model), given)
        before: list[Completion] = []
        done = 0
        while done < cut and saved.drafts:
            before += advance(saved, done, blocks[done])
            done += 1
        state = through_a_file(saved.state())
        assert_equal_bits(before + finish(restored(Ready(model), state), blocks[done:], done), expected)
        assert_equal_bits(before + finish(saved, blocks[done:], done), expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_embedded_model_goes_on_to_the_same_bits_after_rows_were_dropped(dtype: str) -> None:
    loaded = load_model("tiny-moe", dtype=dtype)
    prompt = tuple(loaded.tokenizer("4+3=").input_ids)
    given = [
        GenerationRequest(id=str(i), prompt_ids=prompt[i % 3 :], seed=i, max_tokens=4 + 2 * i, temperature=9.0)
        for i in range(16)
    ]
    expected = finish(RowBatch.of(loaded, given), [4], 0)
    batch = RowBatch.of(loaded, given)
    before = [one for version in range(3) for one in advance(batch, version, 4)]
    state = through_a_file(batch.state())
    assert 0 < len(state["device"]["starts"]) < len(given)
    assert_equal_bits(before + finish(restored(loaded, state), [4], 3), expected)


def test_a_saved_state_shares_nothing_with_the_batch() -> None:
    given = asked(5)
    batch = RowBatch.of(Ready(build("sliding")), given)
    batch.advance(0, 3)
    state, kept = batch.state(), through_a_file(batch.state())
    finish(batch, [3], 1)
    for one, other in zip(state["drafts"], kept["drafts"], strict=True):
        assert bits(one["request"].so_far) == bits(other["request"].so_far)
    for one, other in zip(state["device"]["cache"], kept["device"]["cache"], strict=True):
        assert torch.equal(one["keys"], other["keys"])
    twins = [restored(Ready(build("sliding")), state) for _ in range(2)]
    assert_equal_bits(finish(twins[0], [3], 1), finish(twins[1], [3], 1))


def test_a_finished_batch_can_be_saved_too() -> None:
    given = asked(4)
    batch = begun(Ready(build("moe")), given)
    finish(batch, [5], 0)
    assert restored(Ready(build("moe")), through_a_file(batch.state())).drafts == []


def test_a_saved_batch_refuses_another_format_and_another_model() -> None:
    batch = begun(Ready(build("moe")), asked(4))
    batch.advance(0, 3)
    state = batch.state()
    with pytest.raises(ModelError, match=r"they have torch.float32, the model torch.bfloat16: .* engine.dtype"):
        restored(Ready(build("moe").to(torch.bfloat16)), state)
    with pytest.raises(ModelError, match="its cache has 3 layers, the model 2"):
        restored(Ready(build("gpt2")), state)
