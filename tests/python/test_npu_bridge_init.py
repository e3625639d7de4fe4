"""npu_bridge.npu_init and what it gathers: configurations, and the ops and functions that start and end the system."""

import ast
import importlib
import pathlib
import sys

# What scripts get by `from npu_bridge.npu_init import *`, on every TensorFlow.
NAMES = """
    DumpConfig ExperimentalConfig ExponentialUpdateLossScaleManager FixedLossScaleManager KerasDistributeOptimizer
    MemoryConfig NPUBroadcastGlobalVariablesCallback NPUBroadcastGlobalVariablesHook NPUCheckpointSaverHook
    NPUDistributedOptimizer NPUEstimator NPUEstimatorSpec NPULossScaleOptimizer NPUOptimizer NPURunConfig NpuEmptyHook
    ProfilingConfig RewriterConfig broadcast_global_variables close_session config_pb2 create_group destroy_group
    get_group_rank_from_world_rank get_local_rank_id get_local_rank_size get_npu_local_rank_id get_npu_local_rank_size
    get_npu_rank_id get_npu_rank_size get_rank_id get_rank_size get_world_rank_from_group_rank hccl_ops init_resource
    npu_allreduce npu_callbacks_append npu_config_proto npu_distributed_optimizer_wrapper npu_hooks_append
    npu_keras_optimizer npu_ops npu_optimizer npu_run_config_init npu_scope npu_tf_optimizer npu_unary_ops os
    rewriter_config_pb2 session session_run_hook set_keras_session_npu_config set_split_strategy_by_idx
    set_split_strategy_by_size shutdown_resource tf util
"""
# The modules from which scripts import names one by one.
PLACES = {
    "npu_bridge.estimator.npu.npu_callbacks": "NPUBroadcastGlobalVariablesCallback npu_callbacks_append",
    "npu_bridge.estimator.npu.npu_config": "DumpConfig ExperimentalConfig MemoryConfig NPURunConfig ProfilingConfig",
    "npu_bridge.estimator.npu.npu_estimator": "NPUEstimator NPUEstimatorSpec",
    "npu_bridge.estimator.npu.npu_hook": "NPUBroadcastGlobalVariablesHook NPUCheckpointSaverHook NpuEmptyHook",
    "npu_bridge.estimator.npu.npu_loss_scale_manager": "ExponentialUpdateLossScaleManager FixedLossScaleManager",
    "npu_bridge.estimator.npu.npu_loss_scale_optimizer": "NPULossScaleOptimizer",
    "npu_bridge.estimator.npu.npu_optimizer": "NPUDistributedOptimizer NPUOptimizer allreduce npu_allreduce",
    "npu_bridge.estimator.npu.npu_scope": "without_npu_compile_scope",
    "npu_bridge.estimator.npu.util": "IterationPerLoop set_iteration_per_loop",
    "npu_bridge.estimator.npu_ops": "dropout initialize_system shutdown_system",
    "npu_bridge.estimator.npu_unary_ops": "gelu npu_unary_ops",
    "npu_bridge.hccl.hccl_ops": "allreduce",
    "npu_bridge.npu_optimizer": "NPUDistributedOptimizer allreduce npu_allreduce npu_tf_optimizer",
}

SOURCES = pathlib.Path(__file__).parents[2] / "python" / "npu_bridge"


def names_body(rank, size):
    import tensorflow

    eager = tensorflow.executing_eagerly()
    scope = {}
    exec("import tensorflow as tf\nfrom npu_bridge.npu_init import *", scope)
    assert tensorflow.executing_eagerly() == eager, "the import changes no setting"

    assert set(scope) - {"__builtins__", "backend"} == set(NAMES.split())
    assert scope["tf"].Session and scope["tf"].placeholder, "the 1.x interface"
    assert scope["session"].Session is scope["tf"].Session
    assert scope["config_pb2"].ConfigProto is scope["tf"].ConfigProto
    assert scope["RewriterConfig"] is scope["rewriter_config_pb2"].RewriterConfig
    assert scope["session_run_hook"].SessionRunHook is scope["tf"].train.SessionRunHook
    if "backend" in scope:
        assert callable(scope["backend"].set_session)
    assert scope["os"].environ is not None

    for module, names in PLACES.items():
        found = importlib.import_module(module)
        assert [name for name in names.split() if not hasattr(found, name)] == [], module
    assert scope["npu_ops"].dropout and scope["npu_unary_ops"].gelu and scope["util"].set_iteration_per_loop


def config_body(rank, size):
    import pytest
    from npu_bridge.npu_init import RewriterConfig, hccl_ops, npu_config_proto, tf

    def optimizers(config):
        return [optimizer.name for optimizer in config.graph_options.rewrite_options.custom_optimizers]

    fresh = npu_config_proto()
    assert optimizers(fresh) == ["NpuOptimizer"]
    assert fresh.graph_options.rewrite_options.remapping == RewriterConfig.OFF

    given = tf.ConfigProto(allow_soft_placement=True)
    given.graph_options.rewrite_options.constant_folding = RewriterConfig.AGGRESSIVE
    given.graph_options.rewrite_options.custom_optimizers.add().name = "Other"
    assert npu_config_proto(config_proto=given) is given
    assert given.allow_soft_placement
    assert given.graph_options.rewrite_options.constant_folding == RewriterConfig.AGGRESSIVE

    # As scripts do: options of the device on the entry; a second call finds the entry there.
    device = given.graph_options.rewrite_options.custom_optimizers[1]
    device.parameter_map["use_off_line"].b = True
    device.parameter_map["precision_mode"].s = tf.compat.as_bytes("allow_mix_precision")
    npu_config_proto(given)
    assert optimizers(given) == ["Other", "NpuOptimizer"]
    assert given.graph_options.rewrite_options.custom_optimizers[1].parameter_map["use_off_line"].b

    for wrong in ("config", 3, tf.GraphOptions()):
        with pytest.raises(TypeError, match="ConfigProto"):
            npu_config_proto(wrong)

    # TensorFlow runs it, and the graph optimizations other than remapping still happen: no sum of two constants is left.
    tf.disable_eager_execution()
    fed = tf.placeholder(tf.float32, [1])
    result = hccl_ops.allreduce((tf.constant([1.0]) + tf.constant([2.0])) * fed, "sum")
    metadata = tf.RunMetadata()
    options = tf.RunOptions(output_partition_graphs=True)
    with tf.Session(config=given) as session:
        value = session.run(result, {fed: [2.0]}, options=options, run_metadata=metadata)
    kinds = {node.op for graph in metadata.partition_graphs for node in graph.node}
    assert "Mul" in kinds and not {"Add", "AddV2"} & kinds, kinds
    return value.tolist()


def system_body(rank, size):
    import foldcast
    from npu_bridge.npu_init import get_rank_id, get_rank_size, hccl_ops, npu_config_proto, npu_ops, tf

    tf.disable_eager_execution()
    joins = []
    join = foldcast.init
    foldcast.init = lambda *args, **options: joins.append(1) or join(*args, **options)

    start, stop = npu_ops.initialize_system(), npu_ops.shutdown_system(name="stop")
    assert isinstance(start, tf.Operation) and isinstance(stop, tf.Operation) and stop.name == "stop"
    session = tf.Session(config=npu_config_proto())
    assert not joins, "making the ops does nothing"
    session.run(start)
    session.run(start)
    assert len(joins) == 2
    assert (get_rank_id(), get_rank_size()) == (rank, size)
    session.run(stop)
    session.close()

    # After the end of the system: who am I, start it again, and compute.
    assert (get_rank_id(), get_rank_size()) == (rank, size)
    with tf.Session() as session:
        session.run(start)
        value = session.run(hccl_ops.allreduce(tf.constant([1.0 + rank]), "sum"))
        session.run(stop)
    return value.tolist()


def resource_body(rank, size):
    import foldcast
    from npu_bridge.npu_init import close_session, get_rank_id, hccl_ops, init_resource, npu_ops, shutdown_resource, tf

    def use(config, value):
        session, stop = init_resource(config=config)
        assert session.graph.get_operation_by_name(stop.name) is stop
        if not tf.executing_eagerly():
            assert session.graph is tf.get_default_graph()
        with session.graph.as_default():
            result = session.run(hccl_ops.allreduce(tf.constant(value), "sum"))
        shutdown_resource(session, stop)
        close_session(session)
        return float(result)

    assert not foldcast.is_initialized()
    npu_ops.initialize_system()  # in eager mode it runs at once
    assert foldcast.is_initialized()
    npu_ops.shutdown_system()

    results = [use(None, 1.0 + rank)]  # eager
    tf.disable_eager_execution()
    results += [use(tf.ConfigProto(allow_soft_placement=True), 10.0), use(None, 100.0)]
    assert get_rank_id() == rank
    return results


def scope_body(rank, size):
    from npu_bridge.npu_init import npu_scope, tf

    def nodes(in_scope):
        with tf.Graph().as_default() as graph:
            if in_scope:
                with npu_scope.without_npu_compile_scope():
                    tf.constant(1.0) + 2.0
            else:
                tf.constant(1.0) + 2.0
        return graph.as_graph_def().SerializeToString(deterministic=True)

    assert nodes(True) == nodes(False)


def one_rank_body(rank, size):
    names_body(rank, size)
    scope_body(rank, size)


def test_names_and_scopes(warm_ranks):
    warm_ranks(1, one_rank_body)


def two_ranks_body(rank, size):
    # The resources come first, because their first Session is opened in eager mode; the others turn that off.
    return {
        "resource": resource_body(rank, size),
        "config": config_body(rank, size),
        "system": system_body(rank, size),
    }


def test_resources_configurations_and_the_system(warm_ranks):
    expected = {"resource": [3.0, 20.0, 200.0], "config": [12.0], "system": [3.0]}
    assert warm_ranks(2, two_ranks_body).results == [expected] * 2


def no_keras_body(rank, size):
    import sys

    import pytest

    sys.modules["keras"] = None  # as if it was not installed
    import tensorflow

    scope = {}
    exec("from npu_bridge.npu_init import *", scope)
    assert set(NAMES.split()) <= set(scope)
    try:
        assert tensorflow.keras.callbacks
    except (ImportError, RecursionError):
        with pytest.raises(NotImplementedError, match="NPUBroadcastGlobalVariablesCallback.*finds no Keras"):
            scope["npu_callbacks_append"]()
        with pytest.raises(
            NotImplementedError, match="NPURunConfig: TensorFlow .*(has no Estimator|finds no Keras.*Estimator)"
        ):
            scope["NPURunConfig"]()
        return "missing"
    return "there"  # TensorFlow 1.15 brings its own


def test_without_keras_the_use_is_an_error(ranks):
    import tensorflow as tf

    expected = "there" if tf.__version__.startswith("1.") else "missing"
    assert ranks(1, no_keras_body).results == [expected]


def test_sources_are_python_3_7():
    files = sorted(SOURCES.rglob("*.py"))
    assert files
    for file in files:
        # Python 3.7 itself has no other grammar to offer.
        options = {"feature_version": (3, 7)} if sys.version_info >= (3, 8) else {}
        ast.parse(file.read_text(), str(file), **options)
