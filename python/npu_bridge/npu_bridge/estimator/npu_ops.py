"""Ops that start and end the system that collective calls run on."""

import foldcast
import tensorflow

__all__ = ["initialize_system", "shutdown_system"]


def initialize_system(name=None):
    """An op that joins the job when it runs: it waits until the ranks have met. Running it again does nothing.

    Scripts run it in a Session before they ask for their rank. It is not needed: the first call that needs the other
    ranks joins too.
    """
    return tensorflow.numpy_function(foldcast.init, [], [], name=name or "InitializeSystem")


def shutdown_system(name=None):
    """An op that marks the end of the script's collective work. It returns at once and ends nothing.

    A host has no device system to release, and the process stays a member of the job until it ends or calls
    `foldcast.shutdown`. So `get_rank_id` answers afterwards, `initialize_system` may be run again, as scripts do
    between training and evaluation, and ranks that still compute are not cut off.
    """
    return tensorflow.no_op(name=name or "ShutdownSystem")
