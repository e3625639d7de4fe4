"""hccl.manage.api: groups and ranks, on real ranks."""


def refused(call, *words):
    """`call` raises a ValueError whose text has every one of `words`; returns the text."""
    try:
        call()
    except ValueError as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"{missing} not in: {error}"
        return str(error)
    raise AssertionError(f"not refused; expected an error with {words}")


def world_body(rank, size):
    from hccl.manage import api

    assert (api.get_rank_id(), api.get_rank_size()) == (rank, size)
    assert (api.get_local_rank_id(), api.get_local_rank_size()) == (rank, size)
    world = "hccl_world_group"
    assert (api.get_rank_id(world), api.get_rank_size(group=world)) == (rank, size)
    assert [api.get_world_rank_from_group_rank(world, place) for place in range(size)] == list(range(size))
    assert [api.get_group_rank_from_world_rank(place, world) for place in range(size)] == list(range(size))


def test_world(ranks):
    for size in (1, 3):
        ranks(size, world_body)


def groups_body(rank, size):
    import foldcast
    import numpy as np
    from hccl.manage import api

    # Two disjoint groups of one name; the list is in no order, and of what numpy and Python call integers.
    half = [2, 0] if rank % 2 == 0 else np.array([3, 1])
    api.create_group("half", 2, half)
    assert api.get_rank_size("half") == 2
    assert api.get_rank_id("half") == rank // 2
    assert (api.get_local_rank_size("half"), api.get_local_rank_id("half")) == (2, rank // 2)
    assert [api.get_world_rank_from_group_rank("half", place) for place in (0, 1)] == sorted(half)
    assert [api.get_group_rank_from_world_rank(member, "half") for member in sorted(half)] == [0, 1]
    own = foldcast.allreduce(np.array([10.0**rank]), group="half").tolist()

    # A group of some ranks, which the others never hear of, overlapping the one above.
    if rank < 3:
        api.create_group("low", 3, range(3))
        low = foldcast.allreduce(np.array([10.0**rank]), group="low").tolist()
        assert low == [111.0]
    else:
        refused(lambda: api.get_rank_size("low"), "'low'")

    # A destroyed group's name is free.
    api.destroy_group("half")
    refused(lambda: api.get_rank_id("half"), "'half'")
    api.create_group("half", 4, [3, 2, 1, 0])
    assert api.get_rank_id("half") == rank
    everyone = foldcast.allreduce(np.array([10.0**rank]), group="half").tolist()
    return own + everyone


def test_groups(ranks):
    job = ranks(4, groups_body)
    assert job.results == [[101.0, 1111.0], [1010.0, 1111.0]] * 2


def one_list_of_groups_body(rank, size):
    import foldcast
    from hccl.manage import api

    foldcast.new_group([1], name="other")
    assert api.get_rank_size("other") == 1
    assert api.get_world_rank_from_group_rank("other", 0) == 1
    assert api.get_group_rank_from_world_rank(1, "other") == 0
    if rank == 0:
        refused(lambda: api.get_rank_id("other"), "rank 0", "get_rank_id", "'other'", "[1]")
        refused(lambda: api.get_local_rank_id("other"), "rank 0", "get_local_rank_id", "'other'", "[1]")
    else:
        assert api.get_rank_id("other") == 0
    refused(lambda: api.create_group("other", 1, [rank]), "'other'", "not in use", "[1]")
    api.destroy_group("other")
    refused(lambda: api.get_rank_size("other"), "'other'")


def test_groups_of_foldcast_are_known(ranks):
    ranks(2, one_list_of_groups_body)


def refusals_body(rank, size):
    from hccl.manage import api

    me = f"rank {rank}: "
    api.create_group("mine", 1, [rank])
    create, world = api.create_group, "hccl_world_group"
    for call, words in [
        (lambda: create("g", 3, [0, 1]), ["rank_num", "expected 2", "[0, 1]", "got 3"]),
        (lambda: create("g", 0, []), ["rank_ids", "at least one", "empty"]),
        (lambda: create("g", 3, [0, 1, 0]), ["rank_ids", "once", "[0]"]),
        (lambda: create("g", 2, [0, 2]), ["rank_ids", "0 to 1", "[2]"]),
        (lambda: create("g", 2, [-1, 0]), ["rank_ids", "0 to 1", "[-1]"]),
        (lambda: create("g", 1, [1 - rank]), ["rank_ids", f"rank {rank}", f"[{1 - rank}]"]),
        (lambda: create("mine", 1, [rank]), ["'mine'", "not in use", "destroy_group"]),
        (lambda: create(world, 2, [0, 1]), [world, "exists"]),
        (lambda: create("", 2, [0, 1]), ["1 to 127 bytes", "0 bytes"]),
        (lambda: create("\u00e9" * 64, 2, [0, 1]), ["1 to 127 bytes", "128 bytes"]),
        (lambda: create("a\0b", 2, [0, 1]), ["without a zero byte", "3 bytes"]),
        (lambda: create("\ud800", 2, [0, 1]), ["UTF-8"]),
        (lambda: create(7, 2, [0, 1]), ["string", "got 7"]),
        (lambda: create(None, 2, [0, 1]), ["string", "None"]),
        (lambda: create("g", "2", [0, 1]), ["rank_num", "integer", "'2'"]),
        (lambda: create("g", 2.0, [0, 1]), ["rank_num", "integer", "2.0"]),
        (lambda: create("g", 2, [0, 1.0]), ["rank_ids", "integer", "1.0"]),
        (lambda: create("g", 2, [False, True]), ["rank_ids", "integer", "False"]),
        (lambda: create("g", 2, "01"), ["rank_ids", "list", "'01'"]),
        (lambda: create("g", 2, 2), ["rank_ids", "list", "got 2"]),
        (lambda: api.destroy_group(world), [world, "cannot be destroyed"]),
        (lambda: api.destroy_group("absent"), ["'absent'", world, "create_group"]),
        (lambda: api.get_rank_size("absent"), ["'absent'", world, "create_group"]),
        (lambda: api.get_rank_size(["g"]), ["string", "['g']"]),
        (lambda: api.get_rank_id("absent"), ["'absent'", world, "create_group"]),
        (lambda: api.get_local_rank_size("absent"), ["'absent'", world, "create_group"]),
        (lambda: api.get_local_rank_id("absent"), ["'absent'", world, "create_group"]),
        (lambda: api.get_world_rank_from_group_rank("absent", 0), ["'absent'", world, "create_group"]),
        (lambda: api.get_world_rank_from_group_rank(world, 2), ["group_rank_id", "0 to 1", "got 2"]),
        (lambda: api.get_world_rank_from_group_rank(world, -1), ["group_rank_id", "0 to 1", "got -1"]),
        (lambda: api.get_world_rank_from_group_rank(world, None), ["group_rank_id", "integer", "None"]),
        (lambda: api.get_group_rank_from_world_rank(0, "absent"), ["'absent'", world, "create_group"]),
        (lambda: api.get_group_rank_from_world_rank(1 - rank, "mine"), ["world_rank_id", f"[{rank}]"]),
        (lambda: api.get_group_rank_from_world_rank("0", "mine"), ["world_rank_id", "integer", "'0'"]),
    ]:
        refused(call, me, *words)

    # Nothing of it made or ended a group.
    refused(lambda: api.get_rank_size("g"), "'g'")
    assert api.get_rank_size("mine") == 1
    api.create_group("g" * 127, 2, [1, 0])
    assert api.get_rank_id("g" * 127) == rank


def test_refusals(ranks):
    ranks(2, refusals_body)


def star_body(rank, size):
    names = {}
    exec("from hccl.manage.api import *\nfrom hccl.split.api import *", names)
    names.pop("__builtins__")
    return sorted(names)


def test_star_imports(ranks):
    assert ranks(1, star_body).results == [
        [
            "create_group",
            "destroy_group",
            "get_group_rank_from_world_rank",
            "get_local_rank_id",
            "get_local_rank_size",
            "get_rank_id",
            "get_rank_size",
            "get_world_rank_from_group_rank",
            "set_split_strategy_by_idx",
            "set_split_strategy_by_size",
        ]
    ]


def signatures_body(rank, size):
    import inspect

    from hccl.manage import api

    return [str(inspect.signature(getattr(api, name))) for name in api.__all__]


def test_signatures(ranks):
    of_a_group = ["(group='hccl_world_group')"] * 4
    expected = (
        ["(group, rank_num, rank_ids)", "(group)"] + of_a_group + ["(group, group_rank_id)", "(world_rank_id, group)"]
    )
    assert ranks(1, signatures_body).results == [expected]


def no_job_body(rank, size):
    import os
    import sys

    from hccl.manage import api

    # `ranks` started this process as a rank; what is set here counts, because nothing has joined the job yet.
    for name in ("RANK", "RANK_ID"):
        os.environ[name] = "5"
    text = refused(api.get_rank_id, "5")
    assert "tensorflow" not in sys.modules
    return text


def test_a_job_that_cannot_be_joined_is_a_value_error(ranks):
    ranks(1, no_job_body)


def other_failures_body(rank, size):
    import foldcast
    from hccl.manage import api

    def late():
        raise foldcast.DeadlineError("nobody came")

    foldcast.rank = late
    for name, arguments in [
        ("get_rank_id", []),
        ("create_group", ["g", 1, [0]]),
        ("get_group_rank_from_world_rank", [0, "g"]),
    ]:
        try:
            getattr(api, name)(*arguments)
        except ValueError as error:
            assert name in str(error) and "nobody came" in str(error), error
            assert isinstance(error.__cause__, foldcast.DeadlineError)
        else:
            raise AssertionError(f"{name} did not fail")


def test_failures_of_other_kinds_become_value_errors(ranks):
    ranks(1, other_failures_body)
