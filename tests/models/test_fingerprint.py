"""One fingerprint for the same bytes, another for any change."""

from concurrent.futures import ThreadPoolExecutor

import torch
from hypothesis import given
from hypothesis import strategies as st

from tether.models.fingerprint import fingerprint

DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.uint8])


@st.composite
def weights(draw):
    names = draw(st.lists(st.text("abc._", min_size=1, max_size=6), min_size=1, max_size=5, unique=True))
    tensors = {}
    for name in names:
        shape = draw(st.lists(st.integers(0, 4), max_size=3))
        values = torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
        tensors[name] = values.to(draw(DTYPES))
    return tensors


@given(weights(), st.randoms(use_true_random=False))
def test_order_of_the_mapping_does_not_matter(tensors, random):
    names = list(tensors)
    random.shuffle(names)
    assert fingerprint({name: tensors[name] for name in names}) == fingerprint(tensors)


@given(weights())
def test_copies_have_the_fingerprint_of_the_original(tensors):
    assert fingerprint({name: tensor.clone() for name, tensor in tensors.items()}) == fingerprint(tensors)


@given(st.integers(1, 4), st.integers(1, 4), DTYPES)
def test_strides_do_not_matter(rows, columns, dtype):
    tensor = torch.arange(rows * columns).reshape(rows, columns).to(dtype)
    assert fingerprint({"w": tensor.T}) == fingerprint({"w": tensor.T.contiguous()})
    assert fingerprint({"w": tensor.repeat(1, 2)[:, :columns]}) == fingerprint({"w": tensor})


def test_any_change_gives_another():
    base = {"a": torch.zeros(4), "b": torch.ones(2, 3)}
    variants = [
        {"a": torch.zeros(4)},
        {"a": torch.zeros(4), "c": torch.ones(2, 3)},
        {"a": torch.ones(2, 3), "b": torch.zeros(4)},
        {"a": torch.zeros(4), "b": torch.ones(3, 2)},
        {"a": torch.zeros(4), "b": torch.ones(6)},
        {"a": torch.zeros(4, dtype=torch.int32), "b": torch.ones(2, 3)},
        {"a": torch.tensor([0.0, 0.0, 0.0, -0.0]), "b": torch.ones(2, 3)},
        {"a": torch.zeros(4), "b": torch.ones(2, 3) + 2**-23},
    ]
    assert len({fingerprint(each) for each in [base, *variants]}) == 1 + len(variants)


def test_names_and_values_cannot_run_into_each_other():
    assert fingerprint({"ab": torch.zeros(1)}) != fingerprint({"a": torch.zeros(1), "b": torch.zeros(0)})


def test_gradients_scalars_and_not_a_number_are_no_obstacle():
    tensor = torch.tensor(float("nan"), requires_grad=True)
    assert fingerprint({"w": tensor}) == fingerprint({"w": tensor.detach().clone()})


def test_threads_do_not_matter(monkeypatch):
    tensors = {"a": torch.arange(300.0), "b": torch.ones(7, dtype=torch.bfloat16), "c": torch.zeros(0)}
    alone = fingerprint(tensors)
    monkeypatch.setattr("tether.models.fingerprint.WORTH_A_THREAD", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    started = []
    pool = ThreadPoolExecutor
    monkeypatch.setattr("tether.models.fingerprint.ThreadPoolExecutor", lambda n: started.append(n) or pool(n))
    assert fingerprint(tensors) == alone
    assert started == [3]


def test_a_tensor_with_two_names_is_two_equal_tensors():
    one = torch.arange(4.0)
    assert fingerprint({"a": one, "b": one}) == fingerprint({"a": one, "b": one.clone()})
    assert fingerprint({"a": one, "b": one}) != fingerprint({"a": one})


def test_a_name_cannot_pose_as_two():
    one = torch.ones(1)
    line = '", "torch.float32", [1], "'
    assert fingerprint({f"a{line}": one}) != fingerprint({"a": one})
