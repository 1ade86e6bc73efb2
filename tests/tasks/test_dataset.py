"""The task ``dataset``: each problem once an epoch, in shares, never a held-out one, the same for the same index."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.files import SAMPLES, sums, write
from tether.data.source import Source
from tether.errors import ConfigError, DataError
from tether.tasks.dataset import Dataset
from tether.tasks.task import Task


def dataset(*sources: Source, **options) -> Dataset:
    return Dataset(sources=sources, reward="number", **options)


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> tuple[str, str]:
    """Two files with 150 problems each, a third of them the same."""
    home = tmp_path_factory.mktemp("two")
    return write(home / "low.jsonl", sums(150)), write(home / "high.parquet", sums(150, start=100))


def texts(task: Dataset, split, count: int, seed: int = 0) -> list[str]:
    return [task.problem(split, seed, index).text for index in range(count)]


def test_it_is_a_task_whose_reward_decides_what_is_right(two):
    task = Dataset(path=two[0], reward="number")
    assert isinstance(task, Task)
    assert (task.reward, task.criterion) == ("number", "number")
    assert Dataset(path=two[0]).reward == "math"


def test_an_epoch_asks_every_problem_once_and_the_next_in_another_order(two):
    task = Dataset(path=two[0])
    n = task.size("train")
    first, second = texts(task, "train", n), [task.problem("train", 0, n + i).text for i in range(n)]
    assert len(set(first)) == n
    assert sorted(first) == sorted(second)
    assert first != second
    assert first != texts(task, "train", n, seed=1)


def test_without_weights_every_problem_of_every_source_is_asked_once_an_epoch(two):
    task = dataset(*(Source(path=path) for path in two))
    n = task.size("train")
    assert len(set(texts(task, "train", n))) == n


@pytest.fixture(scope="module")
def anew(two) -> list[Dataset]:
    """One task, made twice."""
    return [dataset(*(Source(path=path) for path in two)) for _ in range(2)]


@given(st.integers(0, 5000), st.integers(0, 3), st.sampled_from(["train", "heldout"]))
def test_a_problem_is_the_same_for_the_same_index_in_a_task_made_anew(anew, index, seed, split):
    one, other = anew
    assert one.problem(split, seed, index) == other.problem(split, seed, index)


def test_weights_are_the_shares_of_the_prompts(two):
    task = dataset(Source(path=two[0], weight=3.0), Source(path=two[1], weight=1.0), heldout_share=0.0)
    keys = [task.problem("train", 0, index).key.partition("/")[0] for index in range(400)]
    assert keys.count("low") == 300
    assert [keys[n : n + 4].count("high") for n in range(0, 400, 4)] == [1] * 100


def test_a_problem_that_two_sources_have_is_asked_from_the_first(two):
    task = dataset(*(Source(path=path) for path in two), heldout_share=0.0)
    assert [len(part) for part in task.pool.train] == [150, 100]
    assert task.pool.censuses[1].num_repeated == 50
    assert task.size("train") == 250


def test_no_text_is_in_both_splits_whatever_the_blanks_and_the_case(tmp_path, two):
    rows = [{"question": f"  WHAT is\n{n} +  1?", "answer": str(n + 1)} for n in range(150)]
    task = dataset(Source(path=two[0]), Source(path=write(tmp_path / "loud.jsonl", rows)))
    assert task.size("train") + task.size("heldout") == 150
    asked = {split: {t.casefold() for t in texts(task, split, 2 * task.size(split))} for split in ("train", "heldout")}
    assert not asked["train"] & asked["heldout"]
    assert 5 <= task.size("heldout") <= 40


def test_what_a_held_out_file_has_is_never_trained_on(two):
    task = dataset(Source(path=two[0]), heldout=(Source(path=two[1]),))
    assert (task.size("train"), task.size("heldout")) == (100, 150)
    assert not set(texts(task, "train", 100)) & set(texts(task, "heldout", 150))
    assert any("50 problems are held out, and are not trained on" in notice for notice in task.notices())


def test_an_evaluation_of_a_finite_set_asks_every_problem_once(two):
    task = Dataset(path=two[0], heldout_share=1.0)
    assert len(set(texts(task, "heldout", 150, seed=3))) == task.size("heldout") == 150
    alone = Dataset(heldout=(Source(path=two[0]),))
    assert alone.size("heldout") == 150
    for one in (task, alone):
        with pytest.raises(DataError, match=r"no problems left to train on; give task\.path or task\.sources"):
            one.problem("train", 0, 0)
    with pytest.raises(DataError, match=r"or hold out fewer: 150 are, by task\.heldout or"):
        Dataset(path=two[0], heldout=(Source(path=two[0]),)).problem("train", 0, 0)


def test_no_held_out_problem_is_an_error_that_says_how_to_have_some(two):
    with pytest.raises(
        DataError, match=r"no held-out problems .*set task\.heldout_share above 0, or set eval\.prompts=0"
    ):
        Dataset(path=two[0], heldout_share=0.0).problem("heldout", 0, 0)


def test_a_source_with_a_weight_and_nothing_left_is_refused(two):
    task = dataset(Source(path=two[0], weight=1.0), Source(path=two[0], weight=1.0))
    with pytest.raises(DataError, match=r"has weight 1 and no problem left to train on"):
        task.problem("train", 0, 0)


def test_keys_say_the_source_and_the_row_and_are_stable(two):
    task = dataset(Source(path=str(SAMPLES / "aime-upper.jsonl"), name="ours"), heldout_share=0.0)
    assert {task.problem("train", 0, index).key for index in range(5)} == {f"ours/ours-I-{n}" for n in range(1, 6)}
    one, other = Dataset(path=two[0]), Dataset(path=two[0], heldout_share=0.5)
    keys = [{e.text: e.key for part in (*task.pool.train, task.pool.heldout) for e in part} for task in (one, other)]
    assert keys[0] == keys[1]
    assert len(set(keys[0].values())) == 150


def test_a_name_that_two_rows_share_does_not_make_two_problems_one(tmp_path):
    rows = [{"id": "x", **row} for row in sums(3)]
    task = Dataset(path=write(tmp_path / "a.jsonl", rows), heldout_share=0.0)
    keys = [task.problem("train", 0, index).key for index in range(3)]
    assert len(set(keys)) == 3
    assert "a/x" in keys


def test_two_files_of_one_name_have_keys_of_their_own(tmp_path):
    paths = [write(tmp_path / name / "train.jsonl", sums(2, start=n)) for name, n in (("a", 0), ("b", 50))]
    task = dataset(*(Source(path=path) for path in paths), heldout_share=0.0)
    assert [census.label for census in task.pool.censuses] == ["train", "train-2"]
    with pytest.raises(ConfigError, match="need names of their own; 'same' is there twice"):
        dataset(*(Source(path=path, name="same") for path in paths)).size("train")


def test_conflicting_references_keep_the_first_and_are_counted_with_examples(tmp_path):
    rows = [{"question": "1 + 1?", "answer": answer} for answer in ("2", "3", "2", "4")]
    task = Dataset(path=write(tmp_path / "a.jsonl", rows), heldout_share=0.0)
    assert task.problem("train", 0, 0).reference == "2"
    (notice,) = [notice for notice in task.notices() if "another reference" in notice]
    assert "2 problems came again with another reference, the first was kept: '2' at " in notice
    assert "a.jsonl, line 1, '3' at" in notice


def test_dapo_repeats_its_problems_and_each_is_there_once_with_or_without_its_instruction(tmp_path):
    path = SAMPLES / "dapo-math.jsonl"
    kept = dataset(Source(path=str(path)), heldout_share=0.0)
    bare = dataset(Source(path=str(path)), heldout_share=0.0, instruction="drop")
    rows = [
        {"prompt": bare.problem("train", 0, n).text, "answer": bare.problem("train", 0, n).reference} for n in (0, 1)
    ]
    more = dataset(Source(path=str(path)), Source(path=write(tmp_path / "bare.jsonl", rows)), heldout_share=0.0)
    assert kept.size("train") == bare.size("train") == more.size("train") == 12
    assert [census.num_repeated for census in more.pool.censuses] == [12, 2]
    assert not any("another reference" in notice for notice in more.notices())
    assert "Answer: $Answer" in kept.problem("train", 0, 0).text
    assert "Answer" not in bare.problem("train", 0, 0).text


def test_few_rows_are_mentioned_once_for_what_is_trained_on(tmp_path):
    few = write(tmp_path / "few.jsonl", sums(2))
    rest = write(tmp_path / "rest.jsonl", sums(200, start=2))
    assert dataset(Source(path=few), heldout=(Source(path=rest),)).notices() == (
        f"{few} has only 2 rows; check that it is the whole file",
    )
    assert dataset(Source(path=rest), heldout=(Source(path=few),)).notices() == ()


def test_a_bad_row_stops_the_start_or_is_dropped_and_counted(tmp_path):
    rows = [*sums(150), {"question": "?", "answer": None}, {"question": "!"}]
    path = write(tmp_path / "a.jsonl", rows)
    with pytest.raises(
        DataError, match=r"a\.jsonl, line 151: answer must be .* null; mend the row .*task\.bad_rows=drop"
    ):
        Dataset(path=path).size("train")
    task = Dataset(path=path, bad_rows="drop")
    assert task.size("train") + task.size("heldout") == 150
    (notice,) = task.notices()
    assert "2 of 152 rows dropped; the first: " in notice
    assert "line 151" in notice


def test_a_suffix_follows_the_problem_and_does_not_make_it_another_one(two):
    plain, more = Dataset(path=two[0]), Dataset(path=two[0], suffix="Answer with a number.")
    assert more.problem("train", 0, 7).text == f"{plain.problem('train', 0, 7).text}\n\nAnswer with a number."
    assert more.problem("train", 0, 7).key == plain.problem("train", 0, 7).key


def test_a_change_of_the_file_is_another_fingerprint(tmp_path):
    path = write(tmp_path / "a.jsonl", sums(150))
    before = Dataset(path=path).pool.fingerprint
    assert Dataset(path=path).pool.fingerprint == before
    write(tmp_path / "a.jsonl", [*sums(149), {"question": "What is 149 + 1?", "answer": "151"}])
    assert Dataset(path=path).pool.fingerprint != before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"needs path = FILE or sources"),
        ({"path": "a", "sources": (Source(path="b"),)}, r"and not both; got path 'a' and 1 sources"),
        ({"path": "a", "sources": (Source(path="b"),), "heldout": (Source(path="c"),)}, "and not both"),
        ({"sources": (Source(path="a", weight=1.0), Source(path="b"))}, "a weight each, or none has one"),
        ({"path": "a", "heldout_share": 1.5}, r"heldout_share must lie in 0 \.\. 1; got 1\.5"),
        ({"path": "a", "system": "s", "chat": False}, r"needs chat = true"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_is_read(options, message):
    with pytest.raises(ConfigError, match=message):
        Dataset(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": ""}, "a source needs a path"),
        ({"path": "a", "weight": 0.0}, "must lie above 0"),
        ({"path": "a", "name": "x/y"}, "must have no slash"),
    ],
)
def test_a_source_that_cannot_work_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Source(**options)


def words(problem) -> int:
    """Tokens of a toy tokenizer that adds two of its own."""
    return len(problem.text.split()) + 2


@pytest.fixture
def uneven(tmp_path) -> str:
    """Problems of five words, and two of twelve."""
    rows = [*sums(150), *({"question": f"{n} words " * 5 + "in all", "answer": "1"} for n in range(2))]
    return write(tmp_path / "uneven.jsonl", rows)


def test_problems_that_are_too_long_stop_the_start_with_their_number_and_the_way_out(uneven):
    task = Dataset(path=uneven, heldout_share=0.0)
    with pytest.raises(DataError, match=r"2 of 152 train problems .* at .*line 151; .*set task\.too_long=drop") as told:
        task.fitting("train", words, 7)
    assert "engine.max_tokens" in str(told.value)


def test_problems_that_are_too_long_are_dropped_and_counted_where_asked(uneven):
    task = Dataset(path=uneven, heldout_share=0.0, too_long="drop")
    fitted = task.fitting("train", words, 7)
    assert (task.size("train"), fitted.size("train")) == (152, 150)
    assert "2 of 152 train problems" in fitted.notices()[-1]
    assert all(words(fitted.problem("train", 0, index)) <= 7 for index in range(300))
    assert task.fitting("train", words, 100) is task


def test_held_out_problems_are_measured_too(uneven):
    task = Dataset(path=uneven, heldout_share=1.0, too_long="drop")
    assert task.fitting("heldout", words, 7).size("heldout") == 150


def test_texts_that_cannot_be_too_long_are_not_encoded(two):
    calls = []
    task = Dataset(path=two[0], heldout_share=0.0)
    assert task.fitting("train", lambda problem: calls.append(problem.text) or words(problem), 1000) is task
    assert calls == ["What is 0 + 1?"]
