import asyncio
import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch

from tether.engines.torch import Torch, TorchEngine
from tether.pipeline.snapshot import _NUMPY, _RECORDS
from tether.ports import GenerationRequest, Publication
from tether.records import Completion, Truncation
from tether.weights.memory import MemoryStore

VOCABULARY = 24
CONTEXT = 64


@dataclass(frozen=True)
class Ready:
    """A model as the loader would hand it over."""

    model: Any
    eos_ids: tuple[int, ...] = (1,)
    pad_id: int = 0
    context: int = CONTEXT


@dataclass
class ManualClock:
    """Counts what is spent, and lets a test act at every yield."""

    at_yield: Callable[[int], Any] | None = None
    spent: list[tuple[str, float]] = field(default_factory=list)

    def now(self) -> float:
        return sum(amount for _, amount in self.spent)

    async def spend(self, what: str, amount: float = 1.0) -> None:
        await self.until(self.due(what, amount))

    def due(self, what: str, amount: float = 1.0) -> float:
        self.spent.append((what, amount))
        return self.now()

    def free(self) -> AbstractContextManager[None]:
        return nullcontext()

    async def quiet(self, *, last: bool = False) -> None:
        await asyncio.sleep(0)

    async def until(self, moment_s: float) -> None:
        if self.at_yield is not None:
            action = self.at_yield(len(self.spent))
            if action is not None:
                await action
        await asyncio.sleep(0)


class NumberedStore(MemoryStore):
    """Its publications are numbered one by one."""

    def __init__(self, dtype: str, keep: int = 4) -> None:
        super().__init__(dtype, keep)
        self.count = 0

    def publish(self, version: int, weights: Mapping[str, torch.Tensor]) -> Publication:
        self.count += 1
        return replace(super().publish(version, weights), number=self.count - 1)


async def ask(engine: TorchEngine, asked: Sequence[GenerationRequest]) -> list[Completion]:
    """All at once, each under an id of its own."""
    ids = [r.id for r in asked]
    unique = asked if len(set(ids)) == len(ids) else [replace(r, id=f"{i}:{r.id}") for i, r in enumerate(asked)]
    return await asyncio.gather(*map(engine.generate, unique))


def sample(engine: TorchEngine, asked: Sequence[GenerationRequest]) -> list[Completion]:
    """``ask`` in an event loop of its own, which must be left without a task."""

    async def main() -> list[Completion]:
        done = await ask(engine, asked)
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1, "the engine's task goes on without work"
        return done

    return asyncio.run(main())


def build(kind: str = "moe", seed: int = 0, sharpness: float = 4.0) -> Any:
    """A small random model whose distributions are far from uniform."""
    import transformers as hf

    shape = {"vocab_size": VOCABULARY, "eos_token_id": 1, "pad_token_id": 0, "bos_token_id": None}
    body = {
        **shape,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "max_position_embeddings": CONTEXT,
    }
    experts = {"moe_intermediate_size": 48, "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True}
    torch.manual_seed(seed)
    match kind:
        case "moe":
            model = hf.Qwen3MoeForCausalLM(hf.Qwen3MoeConfig(**body, **experts))
        case "eager":
            model = hf.Qwen3MoeForCausalLM(hf.Qwen3MoeConfig(**body, **experts))
            model.set_attn_implementation("eager")
        case "plain-gates":
            model = hf.Qwen3MoeForCausalLM(hf.Qwen3MoeConfig(**body, **experts | {"norm_topk_prob": False}))
        case "some-dense":
            config = hf.Qwen3MoeConfig(**body, **experts | {"num_experts_per_tok": 3}, mlp_only_layers=[1])
            model = hf.Qwen3MoeForCausalLM(config)
        case "mixtral":
            model = hf.MixtralForCausalLM(hf.MixtralConfig(**body, num_local_experts=4, num_experts_per_tok=2))
        case "olmoe":
            model = hf.OlmoeForCausalLM(hf.OlmoeConfig(**body, num_experts=200, num_experts_per_tok=4))
        case "gpt-oss":
            sizes = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": CONTEXT}
            sizes["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e4}
            model = hf.GptOssForCausalLM(hf.GptOssConfig(**body, **sizes))
        case "deepseek":
            model = hf.DeepseekV3ForCausalLM(_deepseek(shape))
        case "noisy-gates":
            model = hf.PhimoeForCausalLM(hf.PhimoeConfig(**body, num_local_experts=4))
        case "tied":
            model = hf.Qwen3ForCausalLM(hf.Qwen3Config(**body, tie_word_embeddings=True))
        case "sliding":
            model = hf.MistralForCausalLM(hf.MistralConfig(**body, sliding_window=6))
        case "gpt2":
            model = hf.GPT2LMHeadModel(hf.GPT2Config(**shape, n_embd=64, n_layer=2, n_head=2, n_positions=CONTEXT))
        case _:
            raise AssertionError(kind)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(sharpness)
    return model.eval()


def _deepseek(shape: Mapping[str, Any]) -> Any:
    import transformers as hf

    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": None, "kv_lora_rank": 16}
    heads |= {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
    experts = {
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 0,
    }
    sizes = {"hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 16, "num_hidden_layers": 3}
    return hf.DeepseekV3Config(**shape, **heads, **experts, **sizes, max_position_embeddings=CONTEXT)


def engine_of(model: Any, *, clock: ManualClock | None = None, store: Any = None, **options: Any) -> TorchEngine:
    eos_ids, pad_id = options.pop("eos_ids", (1,)), options.pop("pad_id", 0)
    context = options.pop("context", CONTEXT)
    return TorchEngine(
        Ready(model, eos_ids, pad_id, context),
        Torch(**options),
        store=store or NumberedStore("float32"),
        clock=clock or ManualClock(),
    )


def requests(
    count: int, *, temperature: float = 1.0, max_tokens: int = 20, alternatives: int = 0
) -> list[GenerationRequest]:
    """Prompts of many lengths, some with the end-of-sequence and the padding id inside."""
    numbers = torch.Generator().manual_seed(5)
    made = []
    for i in range(count):
        length = int(torch.randint(1, 14, (), generator=numbers))
        ids = torch.randint(0, VOCABULARY, (length,), generator=numbers)
        made.append(
            GenerationRequest(
                id=f"r{i}",
                prompt_ids=tuple(ids.tolist()),
                seed=1000 + i,
                max_tokens=max_tokens - i % 3,
                temperature=temperature,
                alternatives=alternatives,
            )
        )
    return made


CUTS = (Truncation(), Truncation(top_p=0.8), Truncation(top_k=5), Truncation(top_p=0.95, min_p=0.02))
"""Some of them cut nothing."""


def truncated(asked: Sequence[GenerationRequest]) -> list[GenerationRequest]:
    """Each sampled among other ids; every third does not want to know them."""
    return [replace(r, truncation=CUTS[i % len(CUTS)], kept=i % 3 != 1) for i, r in enumerate(asked)]


def state(model: Any) -> Mapping[str, torch.Tensor]:
    return dict(model.state_dict())


def assert_same(got: list[Completion], expected: list[Completion]) -> None:
    for one, other in zip(got, expected, strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        assert one.finish == other.finish
        np.testing.assert_allclose(one.logp, other.logp, atol=1e-5)
        np.testing.assert_allclose(one.entropy, other.entropy, atol=1e-5)


def plain_forward(model: Any, request: GenerationRequest, completion: Completion) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of the sampled ids and entropies from one forward of the unpadded sequence, without a cache."""
    ids = torch.tensor([[*request.prompt_ids, *completion.token_ids.tolist()]])
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0, len(request.prompt_ids) - 1 : -1]
    logp = torch.log_softmax(logits.float() / request.temperature, -1)
    chosen = logp.gather(-1, torch.from_numpy(completion.token_ids).long()[:, None])[:, 0]
    return chosen, -(logp.exp() * logp).sum(-1)


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    """As a checkpoint is written and read: data alone, and these records."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    with torch.serialization.safe_globals([*_RECORDS, *_NUMPY]):
        loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def bits(completion: Completion) -> dict[str, Any]:
    values = {field.name: getattr(completion, field.name) for field in fields(completion)}
    if completion.kept is not None:
        values["kept"] = (completion.kept.ids.tolist(), completion.kept.starts.tolist())
    return {n: (v.dtype, v.shape, v.tobytes()) if isinstance(v, np.ndarray) else v for n, v in values.items()}


def assert_equal_bits(got: list[Completion], expected: list[Completion]) -> None:
    assert [bits(one) for one in got] == [bits(one) for one in expected]
