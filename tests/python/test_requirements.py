"""The requirements by their numbers, each through the face that scripts use: R1 to R15 by `npu_bridge` in a v1 graph, N1 to
N7 by numpy. Other files go deeper; docs/allreduce.md and docs/numerics.md name them line by line."""

import traceback

import _oracle
import numpy as np
import pytest
from conftest import Ranks

# ---- R: the op, on two ranks ----


def refused(call, *words):
    try:
        call()
    except ValueError as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"{missing} not in: {error}"
    else:
        raise AssertionError(f"not refused; expected {words}")


class Graph:
    """What each check below uses; the checks are called on both ranks, in the same order."""

    def __init__(self, rank, size):
        import tensorflow as tf
        from hccl.manage import api
        from npu_bridge.hccl import hccl_ops

        self.rank, self.size, self.api, self.allreduce = rank, size, api, hccl_ops.allreduce
        self.tf = tf.compat.v1
        self.tf.disable_eager_execution()

    def run(self, fetches, feed=None):
        with self.tf.Session() as session:
            return session.run(fetches, feed)

    def r1_signature(self):
        import inspect

        from npu_bridge.hccl import hccl_ops

        expected = "(tensor, reduction, fusion=1, fusion_id=-1, group='hccl_world_group')"
        assert str(inspect.signature(hccl_ops.allreduce)) == expected

    def r2_every_rank_gets_the_reduction(self):
        fed = self.tf.placeholder(self.tf.float64, [2, None])
        mine = np.arange(6.0).reshape(2, 3) * (1 + self.rank)
        for reduction, fold in [("sum", np.add), ("prod", np.multiply), ("max", np.maximum), ("min", np.minimum)]:
            result = self.allreduce(fed, reduction)
            assert result.dtype == self.tf.float64 and result.shape.as_list() == [2, None]
            expected = fold(np.arange(6.0).reshape(2, 3), 2 * np.arange(6.0).reshape(2, 3))
            assert np.array_equal(self.run(result, {fed: mine}), expected), reduction

    def r3_the_pages_example(self):
        tensor = self.tf.random_uniform((1, 3), minval=1, maxval=10, dtype=self.tf.float32)
        result = self.allreduce(tensor, "sum")
        got = self.run(result)
        assert got.shape == (1, 3) and got.dtype == np.float32 and (got >= 2).all() and (got < 20).all()

    def r5_every_dtype_and_reduction(self):
        fetches, expected = {}, {}
        for name in _oracle.DTYPES:
            pool = _oracle.pool(name, 100)
            for reduction in _oracle.REDUCTIONS:
                fetches[f"{name} {reduction}"] = self.allreduce(pool[self.rank * 30 :][:60], reduction)
                inputs = [pool[rank * 30 :][:60] for rank in range(self.size)]
                expected[f"{name} {reduction}"] = _oracle.allreduce(inputs, reduction)
        assert len(fetches) == 48
        for case, got in self.run(fetches).items():
            assert np.array_equal(_oracle.bits(got), _oracle.bits(expected[case])), case

    def r6_other_reductions_are_refused(self):
        for value in ("avg", "SUM", "", b"sum", None, 3):
            refused(lambda: self.allreduce(1.0, value), repr(value), "sum", "max", "min", "prod")  # noqa: B023

    def r7_fusion_is_0_1_or_2(self):
        results = [self.allreduce(1.0, "sum", fusion, 4 if fusion == 2 else -1) for fusion in (0, 1, 2)]
        assert self.run(results) == [self.size] * 3
        for fusion in (3, -1, "1", 1.0, None, True):
            refused(lambda: self.allreduce(1.0, "sum", fusion=fusion), "fusion", repr(fusion))  # noqa: B023

    def r8_fusion_id_is_read_with_fusion_2(self):
        import warnings

        for reduction in ("sum", "max"):
            for fusion_id in (-1, -7, None, "3"):
                refused(lambda: self.allreduce(1.0, reduction, 2, fusion_id), "fusion_id", repr(fusion_id))  # noqa: B023
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                self.allreduce(1.0, "sum", fusion=1, fusion_id=81)
        assert [str(warning.message).count("fusion_id=81") for warning in caught] == [1]
        assert self.run(self.allreduce(1.0, "prod", 2, 5)) == 1.0

    def r9_only_sums_are_fused_and_with_the_same_bits(self):
        import foldcast.tensorflow

        values = [_oracle.pool("float32", 400, seed=seed)[self.rank * 100 :][:300] for seed in range(6)]
        alone = self.run([self.allreduce(value, "sum", fusion=0) for value in values])
        foldcast.tensorflow.fusion_report(clear=True)
        together = self.run([self.allreduce(value, "sum", fusion=2, fusion_id=7) for value in values])
        report = foldcast.tensorflow.fusion_report(clear=True)
        assert [(one["fusion_id"], len(one["members"])) for one in report] == [(7, 6)], report
        for one, fused in zip(alone, together):
            assert np.array_equal(_oracle.bits(one), _oracle.bits(fused))
        self.run([self.allreduce(value, "max", fusion=2, fusion_id=7) for value in values])
        doubles = [self.allreduce(value.astype(np.float64), "sum", 2, 8) for value in values[:2]]
        self.run(doubles + [self.allreduce(value, "sum", 2, 8) for value in values[:3]])
        report = foldcast.tensorflow.fusion_report(clear=True)
        assert sorted((one["dtype"], len(one["members"])) for one in report) == [("float32", 3), ("float64", 2)], report

    def r10_groups_have_1_to_127_bytes(self):
        for name in ("g", "g" * 127, "组" * 42):
            self.api.create_group(name, self.size, list(range(self.size)))
            assert self.run(self.allreduce(1.0 + self.rank, "sum", group=name)) == 3.0
            self.api.destroy_group(name)
        assert self.run(self.allreduce(2.0, "sum", group="hccl_world_group")) == 4.0
        for name in ("", "g" * 128, "组" * 43):
            refused(lambda: self.allreduce(1.0, "sum", group=name), "127")  # noqa: B023
        refused(lambda: self.allreduce(1.0, "sum", group=7), "group", "7")

    def r11_a_rank_that_is_no_member_fails_at_once(self):
        name = "one"
        result = self.allreduce(5.0, "sum", group=name)
        if self.rank == 0:
            self.api.create_group(name, 1, [0])
            assert self.run(result) == 5.0
            return
        try:
            self.run(result)
        except self.tf.errors.InvalidArgumentError as error:
            assert all(word in str(error) for word in ("rank 1", "'one'", "hccl_world_group")), error
        else:
            raise AssertionError("rank 1 is no member")

    def r12_one_input(self):
        tensor = self.tf.constant([1.0, 2.0])
        packed = self.allreduce([tensor], "sum")
        assert packed.shape.as_list() == [1, 2] and self.run(packed).tolist() == [[2.0, 4.0]]
        import foldcast

        refused(lambda: foldcast.allreduce([np.zeros(2), np.zeros(2)]), "list")

    def r13_on_hosts_a_variable_may_feed_it(self):
        variable = self.tf.get_variable("v", initializer=self.tf.constant(1.0 + self.rank))
        result = self.allreduce(variable, "sum")
        with self.tf.Session() as session:
            session.run(variable.initializer)
            assert session.run(result) == 3.0 and session.run(variable) == 1.0 + self.rank

    def r14_at_most_8_gib(self):
        import foldcast

        elements = (8 << 30) // 4 + 1
        refused(lambda: self.allreduce(self.tf.placeholder(self.tf.float32, [elements]), "sum"), str(4 * elements))
        refused(lambda: foldcast.allreduce(np.broadcast_to(np.float32(0), (elements,))), str(4 * elements))
        self.allreduce(self.tf.placeholder(self.tf.float32, [elements - 1]), "sum")


def graph_checks(rank, size):
    return outcomes(Graph(rank, size), "r")


def outcomes(checks, letter):
    results = {}
    for name in [name for name in vars(type(checks)) if name.startswith(letter) and name[1].isdigit()]:
        try:
            getattr(checks, name)()
        except Exception:
            results[name] = traceback.format_exc()
        else:
            results[name] = "holds"
    return results


# ---- N: numbers, on three ranks ----


class Numbers:
    def __init__(self, rank, size):
        import foldcast

        self.rank, self.size, self.allreduce, self.foldcast = rank, size, foldcast.allreduce, foldcast

    def of(self, values, dtype):
        """This rank's element of a list of one for each rank."""
        return np.array([values[self.rank]], _oracle.dtype(dtype))

    def n1_integers_wrap(self):
        for name in _oracle.INTEGERS:
            least, most = int(np.iinfo(name).min), int(np.iinfo(name).max)
            assert self.allreduce(self.of([most, 1, 0], name))[0] == least, name
            doubled = -2 if least < 0 else most - 1
            assert self.allreduce(self.of([most, 2, 1], name), "prod")[0] == doubled, name

    def n2_nan_propagates_and_minus_0_is_less(self):
        for name in _oracle.FLOATS:
            for reduction in ("max", "min"):
                assert np.isnan(self.allreduce(self.of([1, np.nan, 2], name), reduction).astype(float)).all(), name
            for zeros in ([0.0, -0.0, -0.0], [-0.0, -0.0, 0.0]):
                signs = [np.signbit(float(self.allreduce(self.of(zeros, name), r)[0])) for r in ("max", "min")]
                assert signs == [False, True], name

    def n3_sixteen_bits_are_folded_in_32_and_rounded_once(self):
        # Between neighbours: 2048 + 1 is 2048 in float16, and 2048 + 1 + 1 is 2050 only if nothing was rounded before.
        assert self.allreduce(self.of([2048, 1, 1], "float16"))[0] == 2050
        assert self.allreduce(self.of([60000, 60000, -60000], "float16"))[0] == 60000
        assert float(self.allreduce(self.of([256, 1, 1], "bfloat16"))[0]) == 258
        assert self.allreduce(self.of([2048, 1, 0], "float16"))[0] == 2048  # a tie goes to even
        assert self.allreduce(self.of([2050, 1, 0], "float16"))[0] == 2052

    def n4_every_rank_gets_the_same_bits(self):
        for name in _oracle.FLOATS:
            bits = _oracle.bits(self.allreduce(_oracle.pool(name, 9000)[1000 * self.rank :][:5000], "sum"))
            total = self.allreduce(bits, "max")
            assert np.array_equal(total, bits) and np.array_equal(self.allreduce(bits, "min"), bits), name
            nan = _oracle.bits(self.allreduce(self.of([-np.nan, np.nan, 1], name), "sum"))
            assert nan[0] == _oracle.QUIET_NAN[name], name

    def n5_the_same_inputs_give_the_same_bits(self):
        pool = _oracle.pool("float32", 120_000)
        mine = pool[1000 * self.rank :][:100_000]
        expected = _oracle.bits(_oracle.allreduce([pool[1000 * rank :][:100_000] for rank in range(self.size)], "sum"))
        ways = [self.allreduce(mine), self.allreduce(mine, name="n5"), self.foldcast.allreduce_async(mine).wait()]
        in_place = mine.copy()
        ways.append(self.allreduce(in_place, out=in_place))
        ways.append(np.concatenate([self.allreduce(mine[at:][:777]) for at in range(0, 100_000, 777)]))
        for number, way in enumerate(ways):
            assert np.array_equal(_oracle.bits(way), expected), number

    def n6_nothing_and_one_rank_are_ordinary(self):
        assert self.allreduce(np.zeros((0, 4), np.int16)).shape == (0, 4)
        alone = self.foldcast.new_group([self.rank])
        assert alone.allreduce([3.0, np.inf]).tolist() == [3.0, np.inf]
        assert alone.allreduce(np.zeros(0)).shape == (0,)

    def n7_subnormals_are_kept(self):
        for name, least in [("float16", 6e-8), ("bfloat16", 1e-40), ("float32", 1e-45), ("float64", 5e-324)]:
            got = float(self.allreduce(self.of([least, least, 0], name))[0])
            assert got == 2 * float(np.array(least, _oracle.dtype(name))) != 0, name


def number_checks(rank, size):
    return outcomes(Numbers(rank, size), "n")


def names_of(checks, letter):
    return [name for name in vars(checks) if name.startswith(letter) and name[1].isdigit()]


@pytest.fixture(scope="module")
def run_once(request):
    directories, found = [], {}

    def results(function, size):
        if function not in found:
            found[function] = Ranks(request.path, directories)(size, function, timeout=300).results
        return found[function]

    yield results
    for directory in directories:
        directory.cleanup()


@pytest.mark.parametrize("name", names_of(Graph, "r"))
def test_requirement_of_the_op(run_once, name):
    assert [result[name] for result in run_once(graph_checks, 2)] == ["holds"] * 2


@pytest.mark.parametrize("name", names_of(Numbers, "n"))
def test_requirement_of_numbers(run_once, name):
    assert [result[name] for result in run_once(number_checks, 3)] == ["holds"] * 3
