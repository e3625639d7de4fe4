"""What the modules of `hccl` share: the world group's name, argument checks, and failures that are all ValueErrors."""

import functools
import operator

import foldcast

WORLD_GROUP = "hccl_world_group"


def refusal(call, argument, expected, got, hint=None):
    """The ValueError for an argument: who called what, what is allowed, what came; what to do where that is not plain.

    `call` is the call as `described` words it.
    """
    advice = "" if hint is None else "; " + hint
    return ValueError(f"{call}: {argument}: expected {expected}, got {got}{advice}")


def described(function, group, rank=None):
    """How messages name a call: ``rank 3: create_group(group='g')``; without the rank where it is not known yet."""
    who = "" if rank is None else f"rank {rank}: "
    return f"{who}{function}(group={group!r})"


def integer(call, argument, value):
    """`value` as an int. True and False are refused: to Python they are integers, as a rank they are a mistake."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise refusal(call, argument, "an integer", repr(value)) from None


def items(call, argument, value):
    """`value` as a list, for any iterable that is not text."""
    if isinstance(value, (str, bytes)):
        raise refusal(call, argument, "a list", repr(value))
    try:
        return list(value)
    except TypeError:
        raise refusal(call, argument, "a list", repr(value)) from None


def group_name(call, value):
    """`value` as a group's name: text of 1 to 127 bytes in UTF-8."""
    if not isinstance(value, str):
        raise refusal(call, "group", "the group's name, a string", repr(value))
    try:
        length = len(value.encode("utf-8"))
    except UnicodeEncodeError:
        raise refusal(call, "group", "a name that UTF-8 can hold", repr(value)) from None
    if not 1 <= length <= 127 or "\0" in value:
        raise refusal(
            call, "group", "a name of 1 to 127 bytes of UTF-8 without a zero byte", f"{length} bytes: {value!r}"
        )
    return value


def failures_are_value_errors(function):
    """Scripts written for this API catch ValueError and nothing else, so what `foldcast` raises becomes one.

    Many of its errors are ValueErrors already and pass as they are; of the others the original stays as ``__cause__``.
    """

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except ValueError:
            raise
        except foldcast.FoldcastError as error:
            raise ValueError(f"{function.__name__}: {error}") from error

    return wrapper
