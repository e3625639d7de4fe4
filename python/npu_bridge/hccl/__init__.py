"""The `hccl` modules that scripts import: groups and ranks (`hccl.manage.api`), split strategies (`hccl.split.api`).

Pure Python over `foldcast`; TensorFlow is not needed. The world group is called ``hccl_world_group``.
"""
