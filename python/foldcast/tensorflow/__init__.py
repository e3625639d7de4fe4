"""AllReduce on TensorFlow tensors: the op ``HcomAllReduce`` and its Python face.

::

    import foldcast.tensorflow
    total = foldcast.tensorflow.allreduce(tensor, "sum")

works in graphs run by a ``tf.compat.v1.Session``, eagerly, in ``tf.function`` and in Keras training, and has a gradient
for sums. `broadcast` (``HcomBroadcast``) and `allgather` (``HcomAllGather``) are there in the same way. Importing this module loads the op library into TensorFlow and joins it to the engine of `foldcast`; the first
`allreduce` that is made joins the job (`foldcast.init`).

How calls of different ranks meet
---------------------------------
Ops in graphs and functions meet by name, in whatever order TensorFlow runs them on each rank: by the graph or function
that they were made in, their name there, and in loops by the iteration. So all ranks of a group must build the same
allreduces of that group. Where several graphs contain some, or several functions of one name, they must come in the same
order on every rank. And the uses of one op must: two threads that run the same op at the same time leave it open which
of them meets whom. What else a rank builds or traces does not matter, nor how often it retraces a function for other
input shapes. An allreduce in a graph or function runs only if something uses its result: on all ranks, or on none.

Fusion
------
When TensorFlow compiles a graph or function, sums of one group and dtype that do not depend on each other
become fewer calls: with ``fusion=2`` one for each `fusion_id`, with ``fusion=1``, the default, two, which share the bytes
by 96.54 to 3.46 %, or as many as the group's split strategy says (`hccl.split.api`); with ``fusion=0`` none. A fused call
starts when all its inputs are there, and its result has the same bits. The ranks must run the same allreduces of a group in
one step: where they differ, the error names the nodes that only some ranks have. Fused calls meet by the graph and the kind of
fusion, so threads that run different parts of one v1 graph at once need different `fusion_id`, ``fusion=0``, or no fusion:
``FOLDCAST_TENSORFLOW_FUSION=0`` turns it off, on all ranks or none. `fusion_report` lists what was fused, and
``FOLDCAST_LOG=info`` writes a line for each compiled graph. `allreduce_fused` takes a list and is one call for each dtype,
eagerly too.

Eager calls have no name to meet by: they meet in the order in which each rank makes them, together with the unnamed
calls of `foldcast`. Two threads that are inside eager calls of one group at once get an error.
"""

from foldcast.tensorflow._fusion import fusion_report
from foldcast.tensorflow._library import library_path
from foldcast.tensorflow._lists import allreduce_fused
from foldcast.tensorflow._moves import allgather, allreduce_sparse, broadcast
from foldcast.tensorflow._ops import GradientError, allreduce

__all__ = [
    "GradientError",
    "allgather",
    "allreduce",
    "allreduce_fused",
    "allreduce_sparse",
    "broadcast",
    "fusion_report",
    "library_path",
]
