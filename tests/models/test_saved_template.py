"""A chat template and its special tokens are saved and exported to the last byte: another one is another policy."""

import pytest

from tests.models.small import small
from tether.cli.export import check_model
from tether.models.loading import load_tokenizer, save_model

TEMPLATES = {
    "blanks and new lines": "{{ bos_token }}{% for turn in messages %}\n  {{ turn.content }} \n{% endfor %}\n\n",
    "tabs": "{{ messages[0].content }}\t\n\t{{ eos_token }}\t",
    "other scripts": "{# \u00e9 \u4e2d \u2028 \U0001f600 #}<\uff5cUser\uff5c>{{ messages[0].content }}",
    "quotes and slashes": "{{ '\\n' + \"\\\\boxed{}\" + messages[0]['content'] }}",
}

# A carriage return is not among them: transformers reads the file as text, where "\r\n" becomes "\n".


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_a_template_comes_back_to_the_byte_after_each_of_two_saves(tmp_path, template):
    loaded = small()
    loaded.tokenizer.chat_template = template
    before = loaded.tokenizer.special_tokens_map
    for name in ("first", "second"):
        folder = save_model(loaded, tmp_path / name)
        check_model(folder)
        again = load_tokenizer(str(folder))
        assert again.chat_template == template
        assert again.special_tokens_map == before
        said = [{"role": "user", "content": "1+1"}]
        assert again.apply_chat_template(said, tokenize=False) == loaded.tokenizer.apply_chat_template(
            said, tokenize=False
        )
        loaded.tokenizer.chat_template = again.chat_template
