"""Hooks for the sessions of training: the broadcast of all variables from one rank."""

import foldcast
import tensorflow as tf
from hccl._checks import integer, refusal
from hccl.manage.api import get_rank_size

from npu_bridge.hccl import hccl_ops

__all__ = [
    "NPUBroadcastGlobalVariablesHook",
    "NPUCheckpointSaverHook",
    "NpuEmptyHook",
    "broadcast_global_variables",
    "npu_hooks_append",
]

_v1 = tf.compat.v1


def broadcast_global_variables(root_rank, index=0):
    """An op that gives all global variables of the default graph the values that they have on rank `root_rank`.

    They are those that exist now, the same and in the same order on every rank. `index` names a device and does nothing.
    """
    return broadcast_variables(_v1.global_variables(), checked_root("broadcast_global_variables", root_rank))


def checked_root(call, root_rank):
    """`root_rank` as a rank in the group of all ranks."""
    root = integer(call, "root_rank", root_rank)
    size = get_rank_size()
    if not 0 <= root < size:
        raise refusal(call, "root_rank", f"a rank from 0 to {size - 1}", root)
    return root


def broadcast_variables(variables, root):
    """An op that gives the variables their values of rank `root`; does it at once in eager mode."""
    variables = list(variables)
    if not variables or foldcast.size() == 1:
        return tf.no_op()
    with tf.name_scope("npu_broadcast"):
        # Identity ops, so that no product refuses a variable as the op's input.
        sent = [_as_numbers(variable.name, tf.identity(tf.convert_to_tensor(variable))) for variable in variables]
        received = hccl_ops.broadcast(sent, root)
        values = [_from_numbers(value, variable) for value, variable in zip(received, variables)]
        return tf.group(*[variable.assign(value) for variable, value in zip(variables, values)])


# What is moved keeps its bits, so a type that is not moved goes as numbers of the same bits.
_MOVED_AS = {"bool": tf.uint8, "complex64": tf.float32, "complex128": tf.float64}


def _as_numbers(name, value):
    dtype = value.dtype.base_dtype
    if dtype == tf.bool:
        return tf.cast(value, tf.uint8)
    if dtype.is_complex:
        return tf.bitcast(value, _MOVED_AS[dtype.name])
    if not (dtype.is_floating or dtype.is_integer):
        raise ValueError(f"broadcast: variable '{name}': expected numbers or booleans, got {dtype.name}")
    return value


def _from_numbers(value, variable):
    dtype = tf.as_dtype(variable.dtype).base_dtype
    if dtype == tf.bool:
        return tf.cast(value, tf.bool)
    return tf.bitcast(value, dtype) if dtype.is_complex else value


class NPUBroadcastGlobalVariablesHook(_v1.train.SessionRunHook):
    """Gives all global variables the values of rank `root_rank` when the session is made: initialised or restored.

    All ranks need it, over the same variables, wherever it stands among the hooks: a first checkpoint, which TensorFlow writes
    before it comes to the hooks of a script, has the values of that rank already. In a world of one it does nothing. `index`
    names a device and does nothing.
    """

    def __init__(self, root_rank, index=0):
        self._root = checked_root("NPUBroadcastGlobalVariablesHook", root_rank)
        self._broadcast = None

    def begin(self):
        self._broadcast = None
        if foldcast.size() > 1:
            self._broadcast = broadcast_global_variables(self._root)
            # What is in this collection runs once the variables have values, and before any hook sees the session.
            _v1.add_to_collection(_v1.GraphKeys.TABLE_INITIALIZERS, self._broadcast)

    def after_create_session(self, session, coord):
        # Again: a scaffold may have a local_init_op of its own, and a hook before this one may have set variables.
        if self._broadcast is not None:
            session.run(self._broadcast)


class NPUCheckpointSaverHook(_v1.train.CheckpointSaverHook):
    """TensorFlow's CheckpointSaverHook."""


class NpuEmptyHook(_v1.train.SessionRunHook):
    """A hook that does nothing: scripts put it where they had another one."""


def npu_hooks_append(hooks_list=None):
    """Appends the broadcast of all variables from rank 0 to `hooks_list`, or to a new list, and returns the list."""
    hooks = hooks_list if isinstance(hooks_list, list) else list(hooks_list or [])
    hooks.append(NPUBroadcastGlobalVariablesHook(0))
    return hooks
