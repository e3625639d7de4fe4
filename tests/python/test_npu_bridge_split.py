"""hccl.split.api: what is checked, and what is kept. None of it joins a job."""

import pytest

WORLD = "hccl_world_group"


@pytest.fixture
def split():
    """The module's functions, over no strategies."""
    from hccl import _strategies
    from hccl.split import api

    _strategies.forget_all()
    yield api
    _strategies.forget_all()


def strategy(group=WORLD):
    from hccl import _strategies

    return _strategies.strategy(group)


def test_by_index(split):
    assert strategy() is None
    split.set_split_strategy_by_idx([20, 100, 159])
    assert strategy() == ("index", (20, 100, 159))
    split.set_split_strategy_by_idx(range(8))
    assert strategy() == ("index", (0, 1, 2, 3, 4, 5, 6, 7)), "a second call replaces the first"


def test_by_size(split):
    split.set_split_strategy_by_size([60, 20, 20])
    assert strategy() == ("size", (60, 20, 20))
    split.set_split_strategy_by_size((96.54, 3.46))
    assert strategy() == ("size", (96.54, 3.46))
    split.set_split_strategy_by_size([100 / 3] * 3)
    split.set_split_strategy_by_size([12.5] * 8)
    split.set_split_strategy_by_size([100])
    assert strategy() == ("size", (100,))


def test_by_size_wins_in_either_order(split):
    split.set_split_strategy_by_idx(idxList=[1, 2], group="a")
    split.set_split_strategy_by_size(dataSizeList=[50, 50], group="a")
    split.set_split_strategy_by_size([50, 50], "b")
    split.set_split_strategy_by_idx([1, 2], "b")
    assert strategy("a") == strategy("b") == ("size", (50, 50))


def test_each_group_has_its_own(split):
    split.set_split_strategy_by_idx([3], "a")
    split.set_split_strategy_by_idx([4], "b")
    assert (strategy("a"), strategy("b"), strategy()) == (("index", (3,)), ("index", (4,)), None)


@pytest.mark.parametrize(
    "indices, words",
    [
        ([], ["1 to 8", "0"]),
        (list(range(9)), ["1 to 8", "9"]),
        ([1, 1], ["ascending", "[1, 1]"]),
        ([2, 1], ["ascending", "[2, 1]"]),
        ([-1, 3], ["from 0", "[-1, 3]"]),
        ([1.0], ["integer", "1.0"]),
        ([True], ["integer", "True"]),
        (["1"], ["integer", "'1'"]),
        ([1 << 63], ["indices of gradients"]),
        ("123", ["list", "'123'"]),
        (5, ["list", "5"]),
        (None, ["list", "None"]),
    ],
)
def test_bad_indices(split, indices, words):
    split.set_split_strategy_by_idx([7], "g")
    with pytest.raises(ValueError) as caught:
        split.set_split_strategy_by_idx(indices, "g")
    for word in words + ["set_split_strategy_by_idx", "'g'", "idxList"]:
        assert word in str(caught.value)
    assert strategy("g") == ("index", (7,)), "a refused call changes nothing"


@pytest.mark.parametrize(
    "shares, words",
    [
        ([], ["1 to 8", "0"]),
        ([12.5] * 7 + [6.25] * 2, ["1 to 8", "9"]),
        ([60, 20], ["sum to 100", "80"]),
        ([60, 60], ["sum to 100", "120"]),
        ([100.001], ["up to 100"]),
        ([100, 0], ["above 0", "0"]),
        ([110, -10], ["above 0", "110"]),
        ([float("nan"), 50], ["above 0", "nan"]),
        ([float("inf")], ["above 0", "inf"]),
        ([True] * 2, ["numbers", "True"]),
        (["100"], ["numbers", "'100'"]),
        ("100", ["list", "'100'"]),
        (100, ["list", "100"]),
    ],
)
def test_bad_shares(split, shares, words):
    split.set_split_strategy_by_size([50, 50], "g")
    with pytest.raises(ValueError) as caught:
        split.set_split_strategy_by_size(shares, "g")
    for word in words + ["set_split_strategy_by_size", "'g'", "dataSizeList"]:
        assert word in str(caught.value)
    assert strategy("g") == ("size", (50, 50)), "a refused call changes nothing"


@pytest.mark.parametrize("group, word", [("", "0 bytes"), ("g" * 128, "128 bytes"), (None, "None"), (3, "3")])
def test_bad_group(split, group, word):
    for call in (
        lambda: split.set_split_strategy_by_idx([1], group),
        lambda: split.set_split_strategy_by_size([100], group),
    ):
        with pytest.raises(ValueError, match=word):
            call()


def lifetime_body(rank, size):
    from hccl import _strategies
    from hccl.manage.api import create_group, destroy_group
    from hccl.split.api import set_split_strategy_by_idx, set_split_strategy_by_size

    set_split_strategy_by_idx([5], "g")
    create_group("g", 1, [0])
    assert _strategies.strategy("g") == ("index", (5,))
    set_split_strategy_by_size([100], "g")
    destroy_group("g")
    assert _strategies.strategy("g") is None


def test_a_strategy_lives_until_its_group_is_destroyed(ranks):
    ranks(1, lifetime_body)
