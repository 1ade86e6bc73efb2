from dataclasses import dataclass, replace

import pytest

from tether.errors import DataError
from tether.tasks.prompts import PromptSource
from tether.tasks.task import Problem, Split

END, PAD = 9, 0


@dataclass(frozen=True)
class Letters:
    """Texts of chosen lengths."""

    texts: tuple[str, ...] = ("ab", "abc", "b")
    reward: str = "exact"

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        text = self.texts[(index + seed) % len(self.texts)]
        return Problem(text=text, reference=split, demonstration="")


@dataclass(frozen=True)
class Encoder:
    """One id a letter, and what some tokenizers put around a text."""

    front: tuple[int, ...] = ()
    back: tuple[int, ...] = ()

    def encode(self, text: str) -> list[int]:
        return [*self.front, *(1 + "abcdefg".index(letter) for letter in text), *self.back]


def source(task: Letters | None = None, *, encoder: Encoder | None = None, room: int = 8, **at) -> PromptSource:
    where = {"split": "train", "seed": 0, **at}
    return PromptSource(("letters", task or Letters()), encoder or Encoder(), eos_ids=(END,), room=room, **where)


def test_a_prompt_is_the_same_for_the_same_split_seed_and_index():
    assert source()(1) == source()(1)
    assert source()(1).id == "letters/train/0/1"
    assert source(split="heldout", seed=4)(1).id == "letters/heldout/4/1"


def test_a_prompt_carries_text_ids_and_reference():
    prompt = source()(1)
    assert (prompt.text, prompt.token_ids, prompt.reference) == ("abc", (1, 2, 3), "train")


def test_a_prompt_says_which_problem_it_asks_and_how_often_others_were_right():
    class Rated(Letters):
        def problem(self, split: Split, seed: int, index: int) -> Problem:
            return replace(super().problem(split, seed, index), key="7f3a", pass_rate=0.25)

    prompt = source(Rated())(1)
    assert (prompt.problem, prompt.pass_rate) == ("letters/7f3a", 0.25)
    assert (source()(1).problem, source()(1).pass_rate) == ("", None)


def test_ids_differ_between_splits_seeds_and_indices():
    ids = {source(split=s, seed=n)(i).id for s in ("train", "heldout") for n in (0, 1) for i in range(5)}
    assert len(ids) == 20


@pytest.mark.parametrize("back", [(END,), (END, END)])
def test_an_end_of_sequence_that_the_tokenizer_appends_is_taken_off(back):
    assert source(encoder=Encoder(back=back))(0).token_ids == (1, 2)


def test_specials_in_front_stay_and_an_end_inside_stays():
    assert source(encoder=Encoder(front=(END, 8)))(0).token_ids == (END, 8, 1, 2)


def test_a_prompt_that_just_fits_is_taken_and_one_longer_is_refused_with_the_way_out():
    assert len(source(room=3)(1).token_ids) == 3
    with pytest.raises(DataError, match=r"letters/train/0/1 has 3 tokens, more than the 2 .*lower engine.max_tokens"):
        source(room=2)(1)


def test_the_appended_end_does_not_count_against_the_room():
    assert source(room=3, encoder=Encoder(back=(END,)))(1).token_ids == (1, 2, 3)


def test_an_answer_as_long_as_the_context_leaves_no_room():
    with pytest.raises(DataError, match=r"engine\.max_tokens leaves -8 tokens of the model's context to the prompt"):
        source(room=-8)


@pytest.mark.parametrize("encoder", [Encoder(), Encoder(back=(END,))])
def test_a_prompt_without_tokens_is_refused(encoder):
    with pytest.raises(DataError, match="letters/train/0/0 has no tokens"):
        source(Letters(texts=("",)), encoder=encoder)(0)


def test_a_text_that_the_tokenizer_cannot_read_is_refused_with_the_way_out():
    with pytest.raises(DataError, match=r"it refuses 'xyz' of task 'letters' \(.*\): take another task"):
        source(Letters(texts=("xyz",)))(0)
