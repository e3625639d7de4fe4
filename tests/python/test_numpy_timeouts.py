"""Timeouts of a call, of a group, and of the environment."""

import inspect
import time

LIMIT = 0.12
FAR = 1e300


def calls(foldcast, **options):
    """Every way to wait for the others, as functions of a group."""

    def of_list(group):
        return group.allreduce_fused([[1.0], [2.0]], **options)

    def of_handle(group):
        return group.allreduce_async([1.0], **options).wait()

    return {
        "allreduce": lambda group: group.allreduce([1.0], **options),
        "allreduce with a name": lambda group: group.allreduce([1.0], name="x", **options),
        "allreduce_async": of_handle,
        "allreduce_fused": of_list,
        "broadcast": lambda group: group.broadcast([1.0], **options),
        "allgather": lambda group: group.allgather([1.0], **options),
        "allgather, unequal": lambda group: group.allgather([1.0], equal=False, **options),
        "barrier": lambda group: group.barrier(**options),
        "shrink": lambda group: group.shrink(**options),
    }


def ends_in_time(rank, size, where):
    """Rank 1 is there, and never calls; a group is over after a deadline, so each call has one of its own."""
    import foldcast

    foldcast.init()
    seconds = {}
    options = {"timeout": LIMIT} if where == "call" else {}
    for number, (what, call) in enumerate(calls(foldcast, **options).items() if rank == 0 else ()):
        for met in (False, True):
            if where == "group":
                group = foldcast.new_group([0, 1], name=f"{number} {met}", timeout=LIMIT)
                assert group.timeout == LIMIT
            else:
                group = foldcast.new_group([0, 1], name=f"{number} {met}")
                assert group.timeout is None
            if met:
                group.timeout = 60
                group.barrier()
                group.timeout = LIMIT if where == "group" else None
            start = time.monotonic()
            try:
                call(group)
            except foldcast.DeadlineError as error:
                took = time.monotonic() - start
                assert error.rank == 1 or not met, (what, error)
                assert f"the limit was {LIMIT:.3f} s" in str(error), (what, error)
                assert took >= LIMIT * 0.99 and error.elapsed >= LIMIT * 0.99, (what, took, error.elapsed)
                seconds[f"{what}{', met' if met else ''}"] = round(took, 3)
            else:
                raise AssertionError(what)
    if rank == 1:
        for number in range(len(calls(foldcast))):
            foldcast.new_group([0, 1], name=f"{number} True", timeout=60).barrier()
    foldcast.new_group([0, 1], name="end", timeout=60).barrier()
    return seconds


def in_time(ranks, where, **options):
    job = ranks(2, ends_in_time, where, **options)
    assert len(job.results[0]) == 18
    print(f"s until a limit of {LIMIT} s {where}:", job.results[0])


def test_pytorch_167052_timeout_of_call(ranks):
    in_time(ranks, "call")


def test_pytorch_167052_timeout_of_group(ranks):
    in_time(ranks, "group")


def test_pytorch_167052_timeout_of_environment(ranks):
    in_time(ranks, "environment", env={"FOLDCAST_TIMEOUT": str(LIMIT)})
    in_time(ranks, "environment", env={"HCCL_EXEC_TIMEOUT": str(LIMIT)})


def no_limit(rank, size, timeout, where, late):
    """Rank 1 comes so many seconds late to each call, which is longer than any other limit that is set."""
    import foldcast

    foldcast.barrier(timeout=60)
    for place in where:
        group = foldcast.new_group(range(size), name=place)
        options = {}
        if place == "call":
            options["timeout"] = float(timeout)
        elif place == "group":
            group.timeout = float(timeout)
            assert group.timeout == float("inf")
        for call in calls(foldcast, **options).values():
            if rank == 1:
                time.sleep(late)
            call(group)
    return True


def test_no_limit_is_none(ranks):
    for timeout in ("inf", FAR):
        job = ranks(2, no_limit, timeout, ["call", "group"], 0.12, env={"FOLDCAST_TIMEOUT": "0.05"})
        assert job.results == [True, True]
        job = ranks(2, no_limit, timeout, ["environment"], 0.02, env={"FOLDCAST_TIMEOUT": str(timeout)})
        assert job.results == [True, True]


def test_ascend_pytorch_54_zero_in_the_environment(ranks):
    """0 is no limit in HCCL's variable, as HCCL documents it, and refused in our own."""
    assert ranks(2, no_limit, "inf", ["environment"], 0.02, env={"HCCL_EXEC_TIMEOUT": "0"}).results == [True, True]
    for name, values in [
        ("FOLDCAST_TIMEOUT", ("0", "-1", "nan", "soon")),
        ("FOLDCAST_INIT_TIMEOUT", ("0", "-0.5", "nan", "1 s")),
        ("FOLDCAST_WARN_AFTER", ("0", "-1", "nan")),
        ("HCCL_EXEC_TIMEOUT", ("-1", "nan")),
        ("HCCL_CONNECT_TIMEOUT", ("-1", "nan")),
    ]:
        for value in values:
            job = ranks(1, no_limit, "inf", ["environment"], 0, env={name: value}, expect=1)
            assert "InvalidArgumentError" in job.stderr and name in job.stderr and value in job.stderr, job.stderr


def refuses(rank, size):
    import foldcast

    group = foldcast.new_group(range(size), name="g")
    handle = foldcast.allreduce_async([1.0])

    def set_timeout(timeout):
        group.timeout = timeout

    takers = {
        "new_group": lambda timeout: foldcast.new_group(range(size), name="h", timeout=timeout),
        "group.timeout": set_timeout,
        "init": lambda timeout: foldcast.init(timeout),
        "wait": lambda timeout: handle.wait(timeout),
        "foldcast.barrier": lambda timeout: foldcast.barrier(timeout=timeout),
        "foldcast.shrink": lambda timeout: foldcast.shrink(timeout=timeout),
        **{what: lambda timeout, call=what: calls(foldcast, timeout=timeout)[call](group) for what in calls(foldcast)},
    }
    for what, taker in takers.items():
        for wrong in (0, 0.0, -1, -0.001, float("nan"), float("-inf"), "soon", [1]):
            try:
                taker(wrong)
            except foldcast.InvalidArgumentError as error:
                assert error.field == "timeout" and "above 0" in error.expected, (what, error)
            else:
                raise AssertionError((what, wrong))
    assert handle.wait().tolist() == [size] and group.allreduce([1]).tolist() == [size], "nothing was done"


def test_what_is_no_timeout_is_refused(ranks):
    ranks(2, refuses)


def test_mpi4py_53_every_call_that_waits_takes_a_timeout():
    import foldcast

    waits = ["allreduce", "allreduce_async", "allreduce_fused", "allreduce_fused_async", "broadcast", "broadcast_async"]
    waits += ["allgather", "allgather_async", "barrier", "shrink"]
    never = {"abort", "destroy", "ended", "name", "rank", "ranks", "size", "timeout"}
    functions = [getattr(owner, name) for owner in (foldcast, foldcast.Group) for name in waits]
    for function in [*functions, foldcast.init, foldcast.Handle.wait, foldcast.new_group]:
        parameter = inspect.signature(function).parameters["timeout"]
        assert parameter.default is None, function
    public = {name for name in dir(foldcast.Group) if not name.startswith("_")}
    assert public == {*waits, *never}, "each new method is in one of the lists"
