"""Groups and ranks of the job, as training scripts ask for them.

Every function joins the job first if the process has not done so, and every failure is a ValueError. A group's ranks
are its members' world ranks in ascending order, whatever order they were given in; a *group rank* is a place in that
list. Groups made with `foldcast.new_group` are known here too, and those made here are known to `foldcast` and to
`hccl_ops.allreduce`: there is one list of groups in a process.
"""

import foldcast

from hccl import _strategies
from hccl._checks import WORLD_GROUP, described, failures_are_value_errors, group_name, integer, items, refusal

__all__ = [
    "create_group",
    "destroy_group",
    "get_rank_size",
    "get_rank_id",
    "get_local_rank_size",
    "get_local_rank_id",
    "get_world_rank_from_group_rank",
    "get_group_rank_from_world_rank",
]


@failures_are_value_errors
def create_group(group, rank_num, rank_ids):
    """Makes the group `group` of the `rank_num` world ranks in `rank_ids`. Only its members call this.

    Never waits: the members meet when the group is first used. The name must not be in use in this process; other ranks
    may use it for another group that has no member in common with this one.
    """
    call = _call("create_group", group)
    name = group_name(call, group)
    ranks = _ranks(call, rank_ids)
    count = integer(call, "rank_num", rank_num)
    if count != len(ranks):
        raise refusal(call, "rank_num", f"{len(ranks)}, the length of rank_ids {ranks}", count)
    if foldcast.rank() not in ranks:
        raise refusal(
            call,
            "rank_ids",
            f"a list with the caller, rank {foldcast.rank()}, in it",
            ranks,
            "only the members of a group create it",
        )
    if name == WORLD_GROUP:
        raise refusal(call, "group", "a name of your own", repr(name), "the world group exists from the start")
    existing = _find(name)
    if existing is not None:
        raise refusal(
            call,
            "group",
            "a name that is not in use",
            f"{name!r}, a group of ranks {list(existing.ranks)}",
            "destroy_group frees a name",
        )
    foldcast.new_group(ranks, name=name)


@failures_are_value_errors
def destroy_group(group):
    """Ends the group `group` in this process, frees its name and forgets its split strategy.

    The world group cannot be destroyed, nor a group on which ops of this process have not ended.
    """
    call = _call("destroy_group", group)
    name = group_name(call, group)
    if name == WORLD_GROUP:
        raise refusal(call, "group", "a group made by create_group", repr(name), "the world group cannot be destroyed")
    _existing(call, name).destroy()
    _strategies.forget(name)


@failures_are_value_errors
def get_rank_size(group=WORLD_GROUP):
    """The number of ranks in `group`."""
    return len(_members(_call("get_rank_size", group), group))


@failures_are_value_errors
def get_rank_id(group=WORLD_GROUP):
    """The calling rank's place in `group`, from 0: its group rank."""
    call = _call("get_rank_id", group)
    return _own_place(call, _members(call, group))


@failures_are_value_errors
def get_local_rank_size(group=WORLD_GROUP):
    """The number of ranks of `group` that run on the calling rank's host."""
    return len(_on_this_host(_members(_call("get_local_rank_size", group), group)))


@failures_are_value_errors
def get_local_rank_id(group=WORLD_GROUP):
    """The calling rank's place, from 0, among the ranks of `group` that run on its host."""
    call = _call("get_local_rank_id", group)
    return _own_place(call, _on_this_host(_members(call, group)))


@failures_are_value_errors
def get_world_rank_from_group_rank(group, group_rank_id):
    """The world rank of the member of `group` at place `group_rank_id`."""
    call = _call("get_world_rank_from_group_rank", group)
    members = _members(call, group)
    place = integer(call, "group_rank_id", group_rank_id)
    if not 0 <= place < len(members):
        raise refusal(call, "group_rank_id", f"0 to {len(members) - 1}", place)
    return members[place]


@failures_are_value_errors
def get_group_rank_from_world_rank(world_rank_id, group):
    """The place in `group`, from 0, of the world rank `world_rank_id`."""
    call = _call("get_group_rank_from_world_rank", group)
    members = _members(call, group)
    rank = integer(call, "world_rank_id", world_rank_id)
    if rank not in members:
        raise refusal(call, "world_rank_id", f"a member of the group, one of {members}", rank)
    return members.index(rank)


def _call(function, group):
    """The call as messages name it. Asking for the rank joins the job, so every function does this first."""
    return described(function, group, foldcast.rank())


def _find(name):
    """The group called `name`, or None."""
    try:
        return foldcast.group(name)
    except foldcast.NotInGroupError:
        return None


def _existing(call, name):
    """The group called `name`."""
    found = _find(name)
    if found is None:
        known = f"{WORLD_GROUP!r} or a group that exists in this process"
        raise refusal(call, "group", known, repr(name), "create_group makes one")
    return found


def _members(call, group):
    """The world ranks of `group`, ascending."""
    return list(_existing(call, group_name(call, group)).ranks)


def _ranks(call, rank_ids):
    """The members in ascending order, each a rank of the world and there once."""
    ranks = sorted(integer(call, "rank_ids", rank) for rank in items(call, "rank_ids", rank_ids))
    if not ranks:
        raise refusal(call, "rank_ids", "at least one rank", "an empty list")
    world = foldcast.size()
    outside = [rank for rank in ranks if not 0 <= rank < world]
    if outside:
        raise refusal(call, "rank_ids", f"ranks 0 to {world - 1} of a world of {world}", outside)
    twice = sorted({rank for rank, following in zip(ranks, ranks[1:]) if rank == following})
    if twice:
        raise refusal(call, "rank_ids", "each rank once", f"{twice} more than once")
    return ranks


def _own_place(call, ranks):
    """The calling rank's place in `ranks`."""
    if foldcast.rank() not in ranks:
        raise refusal(call, "group", f"a group with the caller, rank {foldcast.rank()}, in it", f"one of ranks {ranks}")
    return ranks.index(foldcast.rank())


def _on_this_host(ranks):
    """Those of `ranks` that run on this host. A host's ranks are a block: launchers number them host by host."""
    first = foldcast.rank() - foldcast.local_rank()
    return [rank for rank in ranks if first <= rank < first + foldcast.local_size()]
