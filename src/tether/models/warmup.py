"""Supervised pre-training of an embedded model: it learns the form of an answer, and part of the substance.

What it is taught comes from above as ``Lessons``; they err on purpose, so that reinforcement learning finds something
to teach and a signal to teach it with.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Int64
from torch import Tensor
from torch.nn import functional

from tether.errors import ModelError
from tether.models.catalog import EMBEDDED
from tether.models.loading import LoadedModel, pin_experts, save_model, together
from tether.models.modelcard import Syllabus, model_card
from tether.models.tiny import CONTEXT, build_tokenizer

BATCH: Final = 64
"""Lessons an update."""
CHECK_EVERY: Final = 100
"""Updates between two exams."""
CHECK_QUESTIONS: Final = 512
FINAL_QUESTIONS: Final = 2048
"""Questions of the exam whose figures are reported."""
WELL_FORMED: Final = 0.99
"""Least share of answers of the right form when the warm-up stops."""
MAX_ANSWER: Final = 64
"""Tokens after which an answer counts as one that never ends."""


Lesson = tuple[str, str]
"""A question and an answer to it, without the end-of-sequence token."""


@runtime_checkable
class Lessons(Protocol):
    """What a model is taught and examined in; every method gives the same result for the same arguments."""

    @property
    def syllabus(self) -> Syllabus:
        """All of it in words."""
        ...

    def lesson(self, seed: int, index: int) -> Lesson:
        """A question of the training split and an answer to imitate."""
        ...

    def exam(self, index: int) -> Lesson:
        """A held-out question and its right answer."""
        ...

    def is_right(self, answer: str, response: str) -> bool:
        """Whether a response is worth as much as the right answer."""
        ...


class Marks(NamedTuple):
    """Outcome of an exam; shares of all questions."""

    right: float
    well_formed: float
    """Ended by themselves, and as long as the right answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupProgress:
    """Where a warm-up is."""

    step: int
    num_steps: int
    """Most updates there may be."""
    loss: float
    marks: Marks | None
    """At temperature 1, at the updates where an exam was held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupResult:
    """What a warm-up made."""

    folder: Path
    num_parameters: int
    num_steps: int
    """Updates made."""
    accuracy: float
    """Held-out, at temperature 1."""
    greedy_accuracy: float
    well_formed: float
    """Share of answers at temperature 1 that end by themselves and have the right length."""
    is_reached: bool
    """Whether it stopped because the target was reached, and not because its steps were spent."""
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupOptions:
    """Which model, and for how long."""

    model: str = "tiny-moe"
    """An embedded one, by name."""
    seed: int = 0
    """Of weights and lessons."""
    steps: int = 1000
    """Most updates."""
    target: float = 0.25
    """Held-out accuracy at temperature 1 to stop at."""

    def __post_init__(self) -> None:
        if self.model not in EMBEDDED:
            raise ModelError(f"no embedded model {self.model!r}; there are {', '.join(EMBEDDED)}")
        if self.steps < 1 or not 0 < self.target < 1:
            raise ModelError(
                f"a warm-up needs steps >= 1 and a target between 0 and 1; got {self.steps} and {self.target}"
            )

    def lr(self, step: int) -> float:
        """Rises over 50 updates, stays, and falls to a twentieth over the last 40 % of the steps."""
        falling = (self.steps - step) / (0.4 * self.steps)
        return EMBEDDED[self.model].peak_lr * min(1.0, step / 50) * min(1.0, max(0.05, falling))


def run_warmup(
    lessons: Lessons, options: WarmupOptions, *, out: Path, progress: Callable[[WarmupProgress], None] | None = None
) -> WarmupResult:
    """Train a new model until it knows enough, and write it to ``out``.

    It stops at the first exam, one every 100 updates, with an accuracy at temperature 1 of at least the target and
    99 % well-formed answers. It computes on one thread, so that the same seed gives the same weights, byte for byte,
    on machines with the same kind of processor; torch's global random state is left as it was.
    """
    if Path(out).exists():
        raise ModelError(f"a model is written to a new folder; {out} exists; choose another, or remove it")
    started = time.perf_counter()
    with _one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        loaded = new_model(options.model)
        num_steps, is_reached = _train(loaded, lessons, options, progress)
        sampled = exam(loaded, lessons, count=FINAL_QUESTIONS, temperature=1.0)
        greedy = exam(loaded, lessons, count=FINAL_QUESTIONS, temperature=0.0)
    loaded.model.eval()
    num_parameters = sum(p.numel() for p in loaded.model.parameters())
    facts = {
        "parameters": f"{num_parameters:,}",
        "updates": f"{num_steps} of {BATCH} lessons, seed {options.seed}, one thread",
        "held-out accuracy, temperature 1": f"{sampled.right:.3f}",
        "held-out accuracy, greedy": f"{greedy.right:.3f}",
        "well-formed answers, temperature 1": f"{sampled.well_formed:.3f}",
    }
    return WarmupResult(
        folder=save_model(loaded, out, card=model_card(options.model, lessons.syllabus, facts)),
        num_parameters=num_parameters,
        num_steps=num_steps,
        accuracy=sampled.right,
        greedy_accuracy=greedy.right,
        well_formed=sampled.well_formed,
        is_reached=is_reached,
        duration_s=time.perf_counter() - started,
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums of several threads depend on how many there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def new_model(name: str) -> LoadedModel:
    """An untrained embedded model, from torch's global random state."""
    model, tokenizer = EMBEDDED[name].build(), build_tokenizer()
    pin_experts(model)
    return together(model, tokenizer, source=name, context=CONTEXT)


def _train(
    loaded: LoadedModel, lessons: Lessons, options: WarmupOptions, progress: Callable[[WarmupProgress], None] | None
) -> tuple[int, bool]:
    """Updates made, and whether the target was reached."""
    model = loaded.model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr(1), betas=(0.9, 0.98), weight_decay=0.01)
    for step in range(1, options.steps + 1):
        ids, labels = batch(loaded, [lessons.lesson(options.seed, step * BATCH + i) for i in range(BATCH)])
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), labels[:, 1:].flatten())
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = options.lr(step)
        optimizer.step()
        is_exam = step % CHECK_EVERY == 0
        marks = exam(loaded, lessons, count=CHECK_QUESTIONS, temperature=1.0) if is_exam else None
        if progress is not None:
            progress(WarmupProgress(step=step, num_steps=options.steps, loss=float(loss.detach()), marks=marks))
        if marks is not None and marks.right >= options.target and marks.well_formed >= WELL_FORMED:
            return step, True
    return options.steps, False


def batch(loaded: LoadedModel, lessons: Sequence[Lesson]) -> tuple[Int64[Tensor, "B L"], Int64[Tensor, "B L"]]:
    """Ids and labels, padded on the right; the labels are -100 except at the answer and its end."""
    rows = [
        (loaded.tokenizer.encode(question), [*loaded.tokenizer.encode(answer), loaded.tokenizer.eos_token_id])
        for question, answer in lessons
    ]
    width = max(len(question) + len(answer) for question, answer in rows)
    ids = torch.full((len(rows), width), loaded.pad_id)
    labels = torch.full((len(rows), width), -100)
    for row, (question, answer) in enumerate(rows):
        end = len(question) + len(answer)
        ids[row, :end] = torch.tensor(question + answer)
        labels[row, len(question) : end] = torch.tensor(answer)
    return ids, labels


def exam(loaded: LoadedModel, lessons: Lessons, *, count: int, temperature: float) -> Marks:
    """Marks for the first ``count`` held-out questions; samples come from a generator of their own."""
    questions = [lessons.exam(index) for index in range(count)]
    responses = respond(loaded, [question for question, _ in questions], temperature=temperature)
    ended = [(answer, r) for (_, answer), r in zip(questions, responses, strict=True) if r is not None]
    right = sum(lessons.is_right(answer, response) for answer, response in ended)
    well_formed = sum(len(response) == len(answer) for answer, response in ended)
    return Marks(right / count, well_formed / count)


@torch.no_grad()
def respond(loaded: LoadedModel, questions: Sequence[str], *, temperature: float) -> list[str | None]:
    """A sampled response to each question; None where it did not end by itself. 0 is greedy.

    Questions of one length are answered together, so that nothing needs padding.
    """
    generator = torch.Generator().manual_seed(0)
    encoded = [loaded.tokenizer.encode(question) for question in questions]
    alike: defaultdict[int, list[int]] = defaultdict(list)
    for place, ids in enumerate(encoded):
        alike[len(ids)].append(place)
    responses: list[str | None] = [None] * len(questions)
    for places in alike.values():
        rows = _continue(loaded, torch.tensor([encoded[place] for place in places]), temperature, generator)
        for place, row in zip(places, rows, strict=True):
            ends = [column for column, token in enumerate(row) if token in loaded.eos_ids]
            if ends:
                responses[place] = str(loaded.tokenizer.decode(row[: ends[0]]))
    return responses


def _continue(
    loaded: LoadedModel, ids: Int64[Tensor, "B L"], temperature: float, generator: torch.Generator
) -> list[list[int]]:
    """Sampled ids of every row, until each has ended or is too long; what follows an end means nothing."""
    cache = None
    columns: list[Tensor] = []
    has_ended = torch.zeros(len(ids), dtype=torch.bool)
    ends = torch.tensor(loaded.eos_ids)
    while len(columns) < MAX_ANSWER and not has_ended.all():
        output = loaded.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache, logits = output.past_key_values, output.logits[:, -1].float()
        if temperature == 0:
            sampled = logits.argmax(-1)
        else:
            sampled = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)[:, 0]
        has_ended |= torch.isin(sampled, ends)
        columns.append(sampled)
        ids = sampled[:, None]
    rows: list[list[int]] = torch.stack(columns, dim=1).tolist()
    return rows
