"""The gradient split strategies that `hccl.split.api` was given, by the name of the group, which need not exist.

`foldcast` gets them as well: it cuts the gradients of a graph when TensorFlow compiles it.
"""

from foldcast import _foldcast

_by_index = {}
_by_size = {}


def set_by_index(group, last_indices):
    """Keeps the index of each segment's last gradient."""
    _by_index[group] = tuple(last_indices)
    _hand_over(group)


def set_by_size(group, percentages):
    """Keeps each segment's share of the bytes, in percent."""
    _by_size[group] = tuple(percentages)
    _hand_over(group)


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
    _hand_over(group)


def forget_all():
    """Drops everything."""
    for group in list({**_by_index, **_by_size}):
        forget(group)


def _hand_over(group):
    _foldcast._set_split_strategy(group, _by_index.get(group), _by_size.get(group))
