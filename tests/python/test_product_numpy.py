"""R4 in the numpy face and on the command line: the table, the choice of a product, and what is refused."""

import json
import os
import subprocess
import sys

import _oracle
import numpy as np
import pytest
from _page import PAGE, takers, takes, words
from conftest import LAUNCHER


def refused(call, *parts):
    """The InvalidArgumentError that the call raises; its text has all parts."""
    import foldcast

    try:
        call()
    except foldcast.InvalidArgumentError as error:
        for part in parts:
            assert part in str(error), f"{part!r} is not in: {error}"
        return error
    raise AssertionError("nothing was refused")


# ---- the table ----


def test_r4_the_table_is_the_pages():
    import foldcast

    rows = foldcast.products()
    assert [row["name"] for row in rows] == list(PAGE)
    for row in rows:
        page = PAGE[row["name"]]
        assert sorted(row["dtypes"]) == sorted(words(row["name"], "dtypes"))
        assert row["reductions"] == words(row["name"], "reductions")
        assert row["one_host_dtypes"] == words(row["name"], "one host")
        assert row["exceptions"] == {key: value.split() for key, value in page.get("not", {}).items()}
        assert row["allreduce"] == bool(page)
        assert row["variables"] == (row["name"] == "host")
        assert row["title"] and isinstance(row["note"], str)


def run_command(*arguments):
    return subprocess.run([str(LAUNCHER), "products", *arguments], capture_output=True, text=True, timeout=60)


def test_r4_the_command_prints_the_table():
    import foldcast

    machine = run_command("--json")
    assert machine.returncode == 0 and json.loads(machine.stdout) == foldcast.products()
    human = run_command()
    assert human.returncode == 0 and human.stderr == ""
    assert all(len(line) <= 80 for line in human.stdout.splitlines())
    assert all(name in human.stdout for name in PAGE)
    assert run_command("--json", "--markdown").returncode == 2


# ---- the choice ----


def test_r4_the_product_is_chosen_by_its_name():
    import foldcast

    before = foldcast.product()
    try:
        for name in PAGE:
            foldcast.set_product(name)
            assert foldcast.product() == name
        for wrong in ("atlas-9", "Host", "", None, 3, b"host", "atlas-a2 "):
            error = refused(lambda: foldcast.set_product(wrong), str(wrong), *PAGE)  # noqa: B023
            assert error.field == "product" and isinstance(error, ValueError)
            assert foldcast.product() == "atlas-training"
    finally:
        foldcast.set_product(before)


ORDER = """
import foldcast
import numpy as np
def refused():
    try:
        foldcast.allreduce(np.ones(2, np.float64))
    except foldcast.InvalidArgumentError as error:
        return foldcast.product() in str(error)
    return False
"""


@pytest.mark.parametrize(
    ("variable", "code"),
    [
        (
            "",
            "assert foldcast.product() == 'host' and not refused(); foldcast.set_product('atlas-a2'); assert refused()",
        ),
        (
            "",
            "foldcast.set_product('atlas-a2'); foldcast.init(); assert foldcast.product() == 'atlas-a2' and refused()",
        ),
        ("atlas-a3", "assert foldcast.product() == 'atlas-a3' and refused() and foldcast.product() == 'atlas-a3'"),
        ("atlas-a3", "assert refused(); foldcast.set_product('host'); assert not refused()"),
        ("atlas-a3", "foldcast.set_product('host'); assert not refused() and foldcast.product() == 'host'"),
        # What a call chose outlives the communicator.
        ("", "foldcast.set_product('atlas-a2'); refused(); foldcast.shutdown(); foldcast.init(); assert refused()"),
    ],
)
def test_r4_before_and_after_init(variable, code):
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("RANK", "WORLD", "LOCAL_"))}
    variables["FOLDCAST_PRODUCT"] = variable
    subprocess.run([sys.executable, "-c", ORDER + code], env=variables, check=True, timeout=120)


def test_r4_a_wrong_variable_is_named():
    code = """
import foldcast
for call in (foldcast.product, foldcast.init, lambda: foldcast.allreduce([1.0])):
    try:
        call()
    except foldcast.InvalidArgumentError as error:
        assert error.field == "FOLDCAST_PRODUCT" and "atlas-900" in str(error) and "atlas-300i-duo" in str(error)
    else:
        raise AssertionError(call)
"""
    variables = {**os.environ, "FOLDCAST_PRODUCT": "atlas-900"}
    subprocess.run([sys.executable, "-c", code], env=variables, check=True, timeout=120)


# ---- what is refused ----


def every_combination(rank, size):
    """Every product, dtype, reduction and way of calling. The ranks' products agree: refused on all or on none."""
    import foldcast

    group = foldcast.new_group(range(size), "g")
    seen = 0
    for product in PAGE:
        foldcast.set_product(product)
        for dtype in _oracle.DTYPES:
            array = _oracle.pool(dtype, 5, seed=rank)
            for reduction in _oracle.REDUCTIONS:
                right = _oracle.allreduce([_oracle.pool(dtype, 5, seed=r) for r in range(size)], reduction)
                for way, call in {
                    "plain": lambda: foldcast.allreduce(array, reduction),  # noqa: B023
                    "group": lambda: group.allreduce(array, reduction),  # noqa: B023
                    "in place": lambda: foldcast.allreduce(array.copy(), reduction),  # noqa: B023
                    "named": lambda: foldcast.allreduce(array, reduction, name="n"),  # noqa: B023
                    "async": lambda: foldcast.allreduce_async(array, reduction).wait(),  # noqa: B023
                    "named async": lambda: group.allreduce_async(array, reduction, name="m").wait(),  # noqa: B023
                }.items():
                    case = f"{product} {dtype} {reduction} {way}"
                    if takes(product, dtype, reduction):
                        assert np.array_equal(_oracle.bits(call()), _oracle.bits(right)), case
                        continue
                    error = refused(call, f"rank {rank}", product, dtype, reduction, *takers(dtype, reduction))
                    assert error.op == "allreduce" and error.field in ("product", "dtype", "reduction"), case
                    seen += 1
        # Barriers are no allreduces; groups can be made.
        foldcast.barrier()
        foldcast.new_group(range(size)).destroy()
    return seen


def test_r4_every_combination_in_every_way_of_calling(ranks):
    job = ranks(2, every_combination)
    refusals = sum(not takes(p, d, r) for p in PAGE for d in _oracle.DTYPES for r in _oracle.REDUCTIONS)
    assert job.results == [6 * refusals] * 2


def refused_before_anything_is_sent(rank, size):
    """A call that only rank 0 makes and its product refuses: the others notice nothing."""
    import foldcast

    foldcast.set_product("atlas-a2")
    foldcast.barrier()
    for number in range(100):
        if rank == 0:
            refused(lambda: foldcast.allreduce(np.ones(3)), "float64", "atlas-350")
            refused(lambda: foldcast.allreduce_async(np.ones(3, np.int16), "prod", name="x"), "int16", "prod")
        assert foldcast.allreduce(np.full(3, number, np.float32))[0] == size * number


def test_r4_nothing_is_sent_and_the_next_call_works(ranks):
    ranks(3, refused_before_anything_is_sent)


def different_products(rank, size):
    """Ranks that chose different products are told so by the first call that all of them make, and go on."""
    import foldcast

    names = ["host", "atlas-a2", "atlas-a2"]
    group = foldcast.new_group(range(size), "g")
    foldcast.set_product(names[rank])
    # A call that some refuse: nobody but rank 0 is in it. The next one that all make ends it.
    waiting = None
    if rank == 0:
        waiting = group.allreduce_async(np.ones(3, np.float64))
    else:
        refused(lambda: group.allreduce(np.ones(3, np.float64)), names[rank])
    for call in (
        waiting.wait if rank == 0 else lambda: group.allreduce(np.ones(3, np.float32)),
        lambda: foldcast.allreduce(np.ones(3, np.float32)),
        lambda: foldcast.allreduce(np.ones(3, np.float32), name="named"),
        lambda: foldcast.allreduce_async(np.ones(300_000, np.float32)).wait(),
        foldcast.barrier,
    ):
        try:
            call()
        except foldcast.MismatchError as error:
            assert error.field == "product" and error.rank == (1 if rank == 0 else 0), str(error)
            assert error.expected == names[rank] and error.got == names[error.rank]
            assert "rank 0: host" in str(error) and "rank 1, rank 2: atlas-a2" in str(error), str(error)
        else:
            raise AssertionError("no mismatch")
    for product in ("atlas-a2", "host", "atlas-training"):
        foldcast.set_product(product)
        assert foldcast.allreduce(np.ones(3, np.float32)).tolist() == [3, 3, 3]
        assert group.allreduce(np.ones(3, np.float32), name="again").tolist() == [3, 3, 3]


def test_r4_different_products_are_a_mismatch(ranks):
    ranks(3, different_products)


def chosen_by_the_environment(rank, size):
    import foldcast

    assert foldcast.product() == "atlas-300i-duo"
    refused(lambda: foldcast.allreduce(np.ones(3, np.int16), "max"), "int16", "max", "atlas-300i-duo")
    assert foldcast.allreduce(np.ones(3, np.int16)).tolist() == [size] * 3


def test_r4_the_launcher_gives_the_variable_to_all_ranks(ranks):
    ranks(2, chosen_by_the_environment, env={"FOLDCAST_PRODUCT": "atlas-300i-duo"})
