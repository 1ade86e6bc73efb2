"""The embedded models: one id a character, one shape each, and what their cards promise."""

import json
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tether.cli.warmup import course_of
from tether.models.catalog import EMBEDDED, folder_of
from tether.models.loading import load_model, load_tokenizer
from tether.models.tiny import ALPHABET, build_tokenizer
from tether.models.warmup import exam

NAMES = list(EMBEDDED)
TOKENIZER = load_tokenizer("tiny-moe")
EXAMINED = [name if name == "tiny-moe" else pytest.param(name, marks=pytest.mark.long) for name in NAMES]
each = pytest.mark.parametrize("name", NAMES)


def figures(name):
    return dict(re.findall(r"^\| (.+?) \| (.+?) \|$", (folder_of(name) / "README.md").read_text(), flags=re.M))


@given(st.text(ALPHABET, max_size=40))
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


@each
def test_shipped_tokenizer_is_the_one_that_code_builds(name):
    shipped, built = load_tokenizer(name), build_tokenizer()
    assert shipped.get_vocab() == built.get_vocab()
    assert shipped.backend_tokenizer.to_str() == built.backend_tokenizer.to_str()
    assert shipped.padding_side == "left"


@each
def test_shipped_folder_is_whole_small_and_inside_the_package(name):
    names = {file.name for file in folder_of(name).iterdir()}
    assert names == {
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(file.stat().st_size for file in folder_of(name).iterdir()) < 2_000_000


@each
def test_shipped_shape_is_the_one_that_code_builds(name):
    loaded, built = load_model(name), EMBEDDED[name].build()
    assert loaded.model.config.to_diff_dict() | {"dtype": None, "_name_or_path": None, "architectures": None} == (
        built.config.to_diff_dict() | {"dtype": None, "_name_or_path": None, "architectures": None}
    )
    assert [(n, p.shape) for n, p in loaded.model.named_parameters()] == [
        (n, p.shape) for n, p in built.named_parameters()
    ]


@each
def test_config_says_what_engines_need(name):
    config = json.loads((folder_of(name) / "config.json").read_text())
    assert config["head_dim"] == 32
    assert (config["pad_token_id"], config["eos_token_id"]) == (0, 1)


def test_mixture_and_dense_model_are_of_one_size_but_for_the_router():
    moe, dense = (EMBEDDED[name].build() for name in ("tiny-moe", "tiny-dense"))
    router = sum(p.numel() for n, p in moe.named_parameters() if n.endswith("mlp.gate.weight"))
    assert router == 3 * 8 * 64
    assert sum(p.numel() for p in moe.parameters()) - router == sum(p.numel() for p in dense.parameters())


def test_models_of_one_task_do_not_share_weights_with_those_of_the_other():
    weights = {(folder_of(name) / "model.safetensors").read_bytes() for name in NAMES}
    assert len(weights) == len(NAMES)


@pytest.mark.parametrize("name", EXAMINED)
def test_it_errs_often_enough_to_learn_and_knows_the_form(name):
    loaded, course = load_model(name), course_of(EMBEDDED[name].task)
    sampled = exam(loaded, course, count=512, temperature=1.0)
    greedy = exam(loaded, course, count=256, temperature=0.0)
    assert 0.10 <= sampled.right <= 0.40
    assert greedy.right <= 0.45
    assert sampled.well_formed >= 0.97


@torch.no_grad()
@pytest.mark.parametrize("name", EXAMINED)
def test_right_token_is_seldom_thought_impossible(name):
    loaded, task = load_model(name), course_of(EMBEDDED[name].task).pupil.task
    probabilities = []
    for index in range(60):
        problem = task.problem("heldout", 5, index)
        ids = torch.tensor([loaded.tokenizer.encode(problem.text + problem.demonstration)])
        chosen = loaded.model(input_ids=ids).logits.softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
        step = 2 if "," in problem.demonstration else 1  # commas are no choice
        probabilities.append(chosen[len(problem.text) - 1 :: step])
    assert (torch.cat(probabilities) < 0.02).float().mean() < 0.02


@each
def test_card_has_figures_within_the_bands(name):
    card = figures(name)
    assert card["parameters"] == f"{sum(p.numel() for p in load_model(name).model.parameters()):,}"
    assert 0.25 <= float(card["held-out accuracy, temperature 1"]) <= 0.40
    assert float(card["held-out accuracy, greedy"]) <= 0.45
    assert float(card["well-formed answers, temperature 1"]) >= 0.98


@pytest.mark.long
@each
def test_figures_of_the_card_are_those_of_the_weights(name):
    loaded, course = load_model(name), course_of(EMBEDDED[name].task)
    sampled = exam(loaded, course, count=2048, temperature=1.0)
    card = figures(name)
    assert float(card["held-out accuracy, temperature 1"]) == pytest.approx(sampled.right, abs=0.03)
    assert float(card["well-formed answers, temperature 1"]) == pytest.approx(sampled.well_formed, abs=0.005)


@each
def test_card_says_which_lessons_it_had(name):
    card = " ".join((folder_of(name) / "README.md").read_text().split())
    syllabus = course_of(EMBEDDED[name].task).syllabus
    assert f"# {name} " in card
    assert syllabus.subject in card
    assert syllabus.errors in card
