"""The gradient split strategies that `hccl.split.api` was given, by the name of the group, which need not exist."""

_by_index = {}
_by_size = {}


def set_by_index(group, last_indices):
    """Keeps the index of each segment's last gradient."""
    _by_index[group] = tuple(last_indices)


def set_by_size(group, percentages):
    """Keeps each segment's share of the bytes, in percent."""
    _by_size[group] = tuple(percentages)


def strategy(group):
    """What holds for `group`: ``("size", percentages)``, ``("index", last_indices)``, or None where nothing was set.

    By size wins over by index, whichever was set last.
    """
    if group in _by_size:
        return "size", _by_size[group]
    if group in _by_index:
        return "index", _by_index[group]
    return None


def forget(group):
    """Drops what was set for `group`."""
    _by_index.pop(group, None)
    _by_size.pop(group, None)
