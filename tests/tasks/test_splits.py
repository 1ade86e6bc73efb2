"""The split of a text: decided by the text alone, one in eight held out."""

import random

from tether.tasks.splits import hash_number, is_heldout


def test_held_out_is_one_text_in_eight():
    source = random.Random(0)
    texts = [str(source.random()) for _ in range(4000)]
    assert 400 < sum(map(is_heldout, texts)) < 600


def test_number_of_a_text_never_changes():
    assert hash_number("4+3*5=") == 5852322943398200027
