"""Configurations of runs by an Estimator, as scripts make them for a device.

What says how training goes is passed on to TensorFlow; what tunes the device is accepted and does nothing.
"""

import difflib

from npu_bridge.config import npu_config_proto
from npu_bridge.estimator.npu._missing import estimator_class

__all__ = [
    "DumpConfig",
    "ExperimentalConfig",
    "MemoryConfig",
    "NPURunConfig",
    "ProfilingConfig",
    "npu_run_config_init",
]

_RunConfig = estimator_class("RunConfig")

# Those of tf.estimator.RunConfig that are passed on if they are given.
_FOR_RUN_CONFIG = (
    *("train_distribute", "eval_distribute", "experimental_distribute", "device_fn", "protocol"),
    *("experimental_max_worker_delay_secs", "session_creation_timeout_secs"),
)
_FOR_DEVICE = frozenset(
    """
    ac_parallel_enable aicore_num all_tensor_not_empty aoe_config_file aoe_mode atomic_clean_policy auto_tune_mode
    buffer_optimize compress_weight_conf customize_dtypes data_type debug_dir deterministic device_type distribute
    distribute_config dump_config dynamic_graph_execute_mode dynamic_input dynamic_inputs_shape_range
    enable_compress_weight enable_data_pre_proc enable_exception_dump enable_graph_parallel enable_reduce_precision
    enable_scope_fusion_passes enable_small_channel es_cluster_config event_sync_timeout experimental_config
    export_compile_stat external_weight fusion_switch_file graph_compiler_cache_dir graph_exec_timeout
    graph_max_parallel_model_num graph_memory_max_size graph_parallel_option_path graph_run_mode graph_slice hccl_algorithm
    HCCL_algorithm hccl_timeout hcom_multi_mode hcom_parallel horovod_mode in_out_pair in_out_pair_flag input_batch_cpy
    input_fusion_size insert_op_file is_tailing_optimization jit_compile local_rank_id local_device_list
    logical_device_cluster_deploy_mode logical_device_id memory_config memory_optimization_policy mix_compile_mode
    model_deploy_mode model_deploy_devicelist modify_mixlist oo_constant_folding oo_dead_code_elimination oo_level
    op_compiler_cache_dir op_compiler_cache_mode op_debug_config op_debug_level op_execute_timeout op_precision_mode
    op_select_implmode op_tune_mode op_wait_timeout optimization_switch optypelist_for_implmode precision_mode
    precision_mode_v2 profiling_config quant_dumpable resource_config_path session_device_id soc_config
    static_memory_policy static_model_ops_lower_limit stream_max_parallel_num stream_num stream_sync_timeout
    topo_sorting_mode tune_bank_path tune_device_ids tune_op_list variable_format_optimize variable_location
    variable_memory_max_size work_path op_bank_update op_bank_path
    """.split()
)


class _DeviceConfig:
    """Options for a device: those that are known are kept as attributes, and do nothing."""

    _defaults = {}

    def __init__(self, *values, **options):
        names = list(self._defaults)
        if len(values) > len(names):
            raise TypeError(f"{type(self).__name__}: expected up to {len(names)} arguments, got {len(values)}")
        positional = dict(zip(names, values))
        twice = sorted(positional.keys() & options.keys())
        if twice:
            raise TypeError(f"{type(self).__name__}: {twice[0]}: given twice")
        refuse_unknown(type(self).__name__, options, names)
        for name, default in self._defaults.items():
            setattr(self, name, positional.get(name, options.get(name, default)))


class DumpConfig(_DeviceConfig):
    """What a device would write of its tensors. A host writes nothing."""

    _defaults = {
        "enable_dump": False,
        "dump_path": None,
        "dump_step": None,
        "dump_mode": "output",
        "enable_dump_debug": False,
        "dump_debug_mode": "all",
        "dump_data": "tensor",
        "dump_layer": None,
    }


class ProfilingConfig(_DeviceConfig):
    """What a device would measure. A host measures nothing; TensorFlow's own profiler works as ever."""

    _defaults = {"enable_profiling": False, "profiling_options": None, "enable_options": None}


class MemoryConfig(_DeviceConfig):
    """How a device would use its memory."""

    _defaults = {
        "atomic_clean_policy": 0,
        "static_memory_policy": None,
        "memory_optimization_policy": None,
        "variable_use_1g_huge_page": None,
    }


class ExperimentalConfig(_DeviceConfig):
    """Options for debugging on a device."""

    _defaults = {
        "logical_device_cluster_deploy_mode": "LB",
        "logical_device_id": None,
        "resource_config_path": None,
        "graph_compiler_cache_dir": None,
    }


class NPURunConfig(_RunConfig):
    """A `tf.estimator.RunConfig` that also takes the options of a device.

    As documented for the device: with neither `save_checkpoints_steps` nor `save_checkpoints_secs` there is a checkpoint
    every 100 steps, with 0 steps there is none, and summaries are off. `iterations_per_loop` is how many steps a device
    makes by itself; here every step is one, of which hooks see each. Options of the device, by keyword, are kept in
    `npu_options`; what is none of them is a TypeError.
    """

    def __init__(
        self,
        iterations_per_loop=1,
        profiling_config=None,
        model_dir=None,
        tf_random_seed=None,
        save_summary_steps=0,
        save_checkpoints_steps=None,
        save_checkpoints_secs=None,
        session_config=None,
        keep_checkpoint_max=5,
        keep_checkpoint_every_n_hours=10000,
        log_step_count_steps=100,
        **options,
    ):
        refuse_unknown("NPURunConfig", options, _FOR_DEVICE.union(_FOR_RUN_CONFIG))
        if save_checkpoints_steps is None and save_checkpoints_secs is None:
            save_checkpoints_steps = 100
        native = {name: options.pop(name) for name in _FOR_RUN_CONFIG if options.get(name) is not None}
        super().__init__(
            model_dir=model_dir,
            tf_random_seed=tf_random_seed,
            save_summary_steps=save_summary_steps,
            save_checkpoints_steps=save_checkpoints_steps or None,
            save_checkpoints_secs=save_checkpoints_secs or None,
            session_config=session_config,
            keep_checkpoint_max=keep_checkpoint_max,
            keep_checkpoint_every_n_hours=keep_checkpoint_every_n_hours,
            log_step_count_steps=log_step_count_steps,
            **native,
        )
        self.iterations_per_loop = iterations_per_loop
        self.npu_options = dict(options, profiling_config=profiling_config)


def npu_run_config_init(run_config=None):
    """`run_config`, a `tf.estimator.RunConfig`, or a new one, with its session made by `npu_config_proto`.

    Returns a copy; a ConfigProto in it is the one that was given, changed.
    """
    if run_config is None:
        run_config = _RunConfig()
    elif not isinstance(run_config, _RunConfig):
        raise TypeError(f"npu_run_config_init: run_config: expected a tf.estimator.RunConfig, got {run_config!r}")
    return run_config.replace(session_config=npu_config_proto(run_config.session_config))


def refuse_unknown(call, options, known):
    """A TypeError for the first of `options` that is not in `known`, with the name that may be meant."""
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"{call}: {name!r} is no option{hint}")
