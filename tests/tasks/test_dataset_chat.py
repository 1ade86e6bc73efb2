"""Problems of files in a model's chat format: its template once, one BOS, a row's own system message."""

import pytest

from tests.data.files import write
from tether.data.source import Source
from tether.errors import DataError
from tether.tasks.dataset import Dataset
from tether.tasks.prompts import PromptSource

from .test_chat_prompts import ASSISTANT, BOS, EOS, SYSTEM, USER, tokenizer


def said(*turns: tuple[str, str]) -> dict:
    return {"prompt": [{"role": role, "content": content} for role, content in turns], "answer": "g"}


def prompts(path: str, *, room: int = 40, **options) -> PromptSource:
    task = Dataset(sources=(Source(path=path),), heldout_share=0.0, reward="exact", **options)
    return PromptSource(("dataset", task), tokenizer(), eos_ids=(EOS,), room=room, split="train", seed=0)


def letters(text: str) -> tuple[int, ...]:
    return tuple(tokenizer().convert_tokens_to_ids(list(text)))


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
@pytest.mark.parametrize("row", [said(("user", "abc")), {"prompt": "abc", "answer": "g"}], ids=["messages", "text"])
def test_a_text_and_a_list_of_messages_make_the_same_prompt_with_one_bos(tmp_path, row, ending):
    prompt = prompts(write(tmp_path / f"a.{ending}", [row]))(0)
    assert prompt.token_ids == (BOS, USER, *letters("abc"), EOS, ASSISTANT)
    assert prompt.text == "abc"
    assert prompt.problem.startswith("dataset/a/")


def test_a_system_message_of_a_row_goes_before_that_of_the_task(tmp_path):
    path = write(tmp_path / "a.jsonl", [said(("system", "de"), ("user", "abc"))])
    assert prompts(path, system="g")(0).token_ids == (
        BOS,
        SYSTEM,
        *letters("de"),
        EOS,
        USER,
        *letters("abc"),
        EOS,
        ASSISTANT,
    )
    path = write(tmp_path / "b.jsonl", [said(("user", "abc"))])
    assert prompts(path, system="g")(0).token_ids == (
        BOS,
        SYSTEM,
        *letters("g"),
        EOS,
        USER,
        *letters("abc"),
        EOS,
        ASSISTANT,
    )


def test_without_a_chat_the_text_alone_is_encoded(tmp_path):
    path = write(tmp_path / "a.jsonl", [said(("user", "abc"))])
    assert prompts(path, chat=False)(0).token_ids == (BOS, *letters("abc"))
    path = write(tmp_path / "b.jsonl", [said(("system", "de"), ("user", "abc"))])
    with pytest.raises(DataError, match=r"have a system message, which needs a chat; set task\.chat=true"):
        prompts(path, chat=False)


def test_the_template_counts_when_problems_are_measured_before_the_start(tmp_path):
    path = write(tmp_path / "a.jsonl", [said(("user", "abc")), said(("user", "abcdefg"))])
    assert len(prompts(path, room=11)(0).token_ids) <= 11
    with pytest.raises(DataError, match=r"1 of 2 train problems make a prompt that is longer"):
        prompts(path, room=10)
    short = prompts(path, room=10, too_long="drop")
    assert {short(index).text for index in range(4)} == {"abc"}
    assert "1 of 2 train problems" in short.notices[-1]
