"""The embedded model: one id a character, and what its model card promises."""

import json
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tether.models import tiny_moe
from tether.models.loading import EMBEDDED, load_model, load_tokenizer
from tether.models.warmup import exam
from tether.tasks.arithmetic import Arithmetic, Pupil

FOLDER = EMBEDDED["tiny-moe"]
TOKENIZER = load_tokenizer("tiny-moe")


@given(st.text(tiny_moe.ALPHABET, max_size=40))
def test_every_character_is_one_id_and_comes_back(text):
    ids = TOKENIZER.encode(text)
    assert len(ids) == len(text)
    assert TOKENIZER(text)["input_ids"] == ids
    assert TOKENIZER.decode(ids) == text
    assert not {TOKENIZER.pad_token_id, TOKENIZER.eos_token_id} & set(ids)


@pytest.mark.parametrize("text", ["a", "4 + 3", "4+3=\n", "é"])
def test_unknown_character_is_refused(text):
    with pytest.raises(Exception, match="WordLevel"):
        TOKENIZER.encode(text)


def test_end_is_not_padding_and_vanishes_from_text_when_asked():
    assert TOKENIZER.pad_token_id != TOKENIZER.eos_token_id
    ids = [*TOKENIZER.encode("0,5"), TOKENIZER.eos_token_id]
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == "0,5"
    assert TOKENIZER.decode(ids) == "0,5<eos>"


def test_shipped_tokenizer_is_the_one_that_code_builds():
    built = tiny_moe.build_tokenizer()
    assert TOKENIZER.get_vocab() == built.get_vocab()
    assert TOKENIZER.backend_tokenizer.to_str() == built.backend_tokenizer.to_str()
    assert TOKENIZER.padding_side == "left"


def test_shipped_folder_is_whole_and_small():
    names = {file.name for file in FOLDER.iterdir()}
    assert names == {
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 3_000_000


def test_shipped_shape_is_the_one_that_code_builds():
    loaded = load_model("tiny-moe")
    built = tiny_moe.build_model()
    assert loaded.model.config.to_diff_dict() | {"dtype": None, "_name_or_path": None, "architectures": None} == (
        built.config.to_diff_dict() | {"dtype": None, "_name_or_path": None, "architectures": None}
    )
    assert [(n, p.shape) for n, p in loaded.model.named_parameters()] == [
        (n, p.shape) for n, p in built.named_parameters()
    ]


def test_config_says_what_engines_need():
    config = json.loads((FOLDER / "config.json").read_text())
    assert config["head_dim"] == 32
    assert config["num_experts_per_tok"] == 2
    assert config["output_router_logits"] is False
    assert (config["pad_token_id"], config["eos_token_id"]) == (0, 1)


def test_it_errs_often_enough_to_learn_and_knows_the_form():
    loaded = load_model("tiny-moe")
    lessons = Pupil(task=Arithmetic())
    sampled = exam(loaded, lessons, count=512, temperature=1.0)
    greedy = exam(loaded, lessons, count=256, temperature=0.0)
    assert 0.10 <= sampled.right <= 0.40
    assert greedy.right <= 0.45
    assert sampled.well_formed >= 0.97


@torch.no_grad()
def test_right_value_is_seldom_thought_impossible():
    loaded = load_model("tiny-moe")
    task = Arithmetic()
    probabilities = []
    for index in range(60):
        problem = task.problem("heldout", 5, index)
        ids = torch.tensor([loaded.tokenizer.encode(problem.text + problem.demonstration)])
        chosen = loaded.model(input_ids=ids).logits.softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
        probabilities.append(chosen[len(problem.text) - 1 :: 2])
    assert (torch.cat(probabilities) < 0.02).float().mean() < 0.02


def test_model_card_has_the_figures_of_the_weights():
    card = (FOLDER / "README.md").read_text()
    figures = dict(re.findall(r"^\| (.+?) \| (.+?) \|$", card, flags=re.M))
    loaded = load_model("tiny-moe")
    assert figures["parameters"] == f"{sum(p.numel() for p in loaded.model.parameters()):,}"
    assert 0.10 <= float(figures["held-out accuracy, temperature 1"]) <= 0.40
    assert float(figures["held-out accuracy, greedy"]) <= 0.45
    pupil = Pupil(task=Arithmetic())
    assert f"unsure of {100 * pupil.unsure:g} %" in card
    assert f"with probability {pupil.skill:g}," in card


def test_weights_lie_inside_the_package():
    assert FOLDER.is_relative_to(Path(tiny_moe.__file__).parent)
