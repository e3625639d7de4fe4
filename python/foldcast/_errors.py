"""The exceptions of foldcast."""

from __future__ import annotations

from typing import Any, Optional, Type, TypeVar

_ATTRIBUTES = ("rank", "op", "tag", "group", "field", "expected", "got", "elapsed")


_Error = TypeVar("_Error", bound="FoldcastError")


class FoldcastError(RuntimeError):
    """What all exceptions of foldcast are.

    Attributes
    ----------
    rank : int or None
        The rank that the error is about: the dead, the odd or the awaited one.
    op : str or None
        What was called, such as ``"allreduce"``.
    tag : str or None
        Which call it was: its name, or ``"#7"`` for the seventh unnamed one of its group.
    group : str or None
        The name of the group.
    field : str or None
        The argument, or the part of the call, that is wrong.
    expected, got : str or None
        What was wanted there, and what came.
    elapsed : float or None
        Seconds since the call began.

    An attribute is None where it does not apply.
    """

    rank: Optional[int] = None
    op: Optional[str] = None
    tag: Optional[str] = None
    group: Optional[str] = None
    field: Optional[str] = None
    expected: Optional[str] = None
    got: Optional[str] = None
    elapsed: Optional[float] = None

    # AutoGraph raises an error from inside a tf.function anew, with its place in the user's code, in the error's own class
    # only if that class is made like `Exception` itself; any other becomes a StagingError, which no ``except`` expects.
    __init__ = Exception.__init__

    @classmethod
    def about(cls: Type[_Error], message: str, **attributes: Any) -> _Error:
        """An exception with attributes."""
        error = cls(message)
        for name, value in attributes.items():
            if name not in _ATTRIBUTES:
                raise TypeError(f"unknown attribute of an exception: {name}")
            setattr(error, name, value)
        return error

    def __reduce__(self) -> Any:
        # A pool of processes sends exceptions by pickle: the attributes go along.
        return type(self), (str(self),), {name: getattr(self, name) for name in _ATTRIBUTES}


class MismatchError(FoldcastError):
    """The ranks of a group called with different things. All of them get this; the group stays usable."""


class RankDiedError(FoldcastError):
    """A rank that the call depended on died or left. The group is over."""


class DeadlineError(FoldcastError, TimeoutError):
    """A wait reached its deadline."""


class GroupAbortedError(FoldcastError):
    """The group was over before or while this call ran."""


class ForkedProcessError(FoldcastError):
    """A process made by fork used what its parent had initialised."""


class ClosedError(FoldcastError):
    """What was used had been shut down or destroyed by this process."""


class ResourceError(FoldcastError):
    """The operating system refused memory, file descriptors or threads."""


class NotInGroupError(FoldcastError, ValueError):
    """This rank is not a member of the group, or the group is unknown here."""


class InvalidArgumentError(FoldcastError, ValueError):
    """An argument or a variable of the environment is wrong. Nothing was done."""


for _class in [FoldcastError, *FoldcastError.__subclasses__()]:
    # Tracebacks show the name by which users import it.
    _class.__module__ = "foldcast"
