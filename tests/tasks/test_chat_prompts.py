"""Prompts in a model's chat format: its template, once, and a clear word where there is none."""

from dataclasses import dataclass

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tether.errors import DataError
from tether.tasks.prompts import PromptSource
from tether.tasks.task import Problem, Split

TEMPLATE = (
    "{{ bos_token }}{% for turn in messages %}{% if turn.role == 'system' and turn.content == 'shout' %}"
    "{{ raise_exception('no shouting') }}{% endif %}"
    "<{{ turn.role }}>{{ turn.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
SPECIALS = ["[BOS]", "[EOS]", "<system>", "<user>", "<assistant>"]
BOS, EOS, SYSTEM, USER, ASSISTANT = range(5)


def tokenizer(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """One id a letter; like Llama's, it puts [BOS] in front of whatever it encodes."""
    vocabulary = {token: i for i, token in enumerate([*SPECIALS, *"abcdefg?"])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(""), "isolated")
    core.add_special_tokens(SPECIALS)
    core.post_processor = processors.TemplateProcessing(single="[BOS] $A", special_tokens=[("[BOS]", BOS)])
    made = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="[BOS]", eos_token="[EOS]", unk_token="?")
    made.chat_template = template
    return made


@dataclass(frozen=True)
class Says:
    """One text, in a chat or plain."""

    chat: bool = True
    system: str = ""
    reward: str = "exact"

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        return Problem(text="abc", reference="", demonstration="", chat=self.chat, system=self.system)


def ids(task: Says, encoder, room: int = 20) -> tuple[int, ...]:
    source = PromptSource(("says", task), encoder, eos_ids=(EOS,), room=room, split="train", seed=0)
    return source(0).token_ids


def test_the_template_is_applied_once_with_one_bos_and_ends_where_the_model_speaks():
    encoder = tokenizer()
    a, b, c = encoder.convert_tokens_to_ids(["a", "b", "c"])
    assert encoder.encode("a") == [BOS, a]
    assert ids(Says(), encoder) == (BOS, USER, a, b, c, EOS, ASSISTANT)


def test_the_system_speaks_first_where_the_problem_says_so():
    encoder = tokenizer()
    a, b, c, d, e = encoder.convert_tokens_to_ids(list("abcde"))
    assert ids(Says(system="de"), encoder) == (BOS, SYSTEM, d, e, EOS, USER, a, b, c, EOS, ASSISTANT)


def test_a_problem_that_is_no_chat_is_encoded_as_it_is():
    encoder = tokenizer()
    assert ids(Says(chat=False), encoder) == (BOS, *encoder.convert_tokens_to_ids(["a", "b", "c"]))


class Bare:
    """A tokenizer that knows nothing of chats."""

    def encode(self, text: str) -> list[int]:
        return [1]


@pytest.mark.parametrize("encoder", [tokenizer(None), Bare()], ids=["no template", "no chats"])
def test_a_chat_is_refused_where_the_model_has_no_template(encoder):
    with pytest.raises(DataError, match=r"task 'says' asks .* has no chat template; .* or set task\.chat=false"):
        ids(Says(), encoder)


def test_what_a_template_refuses_is_said_with_the_roles():
    with pytest.raises(DataError, match=r"roles system, user: no shouting; leave out task\.system"):
        ids(Says(system="shout"), tokenizer())


def test_the_template_counts_against_the_room():
    assert len(ids(Says(), tokenizer(), room=7)) == 7
    with pytest.raises(DataError, match=r"has 7 tokens, more than the 6 "):
        ids(Says(), tokenizer(), room=6)
