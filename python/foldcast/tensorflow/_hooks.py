"""What ends a MonitoredSession together with the ranks."""

from __future__ import annotations

from typing import Any, Union

import tensorflow as tf

import foldcast

_WORLD_GROUP = "hccl_world_group"


class EndWithGroup(tf.compat.v1.train.SessionRunHook):
    """Ends a MonitoredSession, or an Estimator's training, when a group is over.

    TensorFlow takes an AbortedError, which an op raises when a rank has died, for something that passes: it makes a new
    session and runs the step again, and again, for ever. With this hook the new session is not made; what is raised is a
    `foldcast.GroupAbortedError` that says who died and how.

    Parameters
    ----------
    group : str or Group, optional
        The group: that of all ranks by default.
    """

    def __init__(self, group: Union[str, foldcast.Group] = _WORLD_GROUP) -> None:
        self._group = group

    def after_create_session(self, session: Any, coord: Any) -> None:
        group = self._group if isinstance(self._group, foldcast.Group) else foldcast.group(self._group)
        ended = group.ended
        if ended is not None:
            raise foldcast.GroupAbortedError.about(
                f"rank {foldcast.rank()}: no session is made any more: group {group.name!r} is over: {ended}",
                group=group.name,
            )
