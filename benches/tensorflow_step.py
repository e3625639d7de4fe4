"""How long the allreduces of one training step take in TensorFlow: the gradients of a ResNet-50, on the ranks of one host.

    foldcast run -n 2 -- python benches/tensorflow_step.py [--rounds 15] [--steps 4] [--without-mwms] [--json]

Four ways, measured in turn in each round, so that whatever else the machine does falls on all of them alike:

* ``fused``: an allreduce for each gradient, in one ``tf.function``, fused as by default;
* ``unfused``: the same with ``fusion=0``;
* ``plain``: one allreduce of one tensor of as many bytes, in a ``tf.function``;
* ``mwms``: the collectives of ``tf.distribute.MultiWorkerMirroredStrategy``, by `all_reduce` of its replica context, in
  processes of their own, which this script starts: a process that uses them cannot take part in another cluster.

Gradients are computed (as a product with a number), so that a result may take its input's memory, as in a training step. The time
of the computation alone, ``base``, is measured too and subtracted. Rank 0 prints medians over the rounds in milliseconds, and ratios of
medians. The time of a step is that of its slowest rank.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def resnet50_shapes():
    """The shapes of the trainable variables: convolutions, each with scale and shift of its normalisation, and the last layer.

    161 tensors; the last layer's bias travels in one with its matrix here, which makes 160 of 25.5 million numbers.
    """
    shapes = []

    def convolution(size, inputs, outputs):
        shapes.extend([(size, size, inputs, outputs), (outputs,), (outputs,)])

    convolution(7, 3, 64)
    inputs = 64
    for blocks, width in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            convolution(1, inputs, width)
            convolution(3, width, width)
            convolution(1, width, 4 * width)
            if block == 0:
                convolution(1, inputs, 4 * width)
            inputs = 4 * width
    shapes.append((2049, 1000))
    return shapes


def elements(shape):
    count = 1
    for extent in shape:
        count *= extent
    return count


def timed(step, steps):
    begun = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - begun) / steps


def ours(arguments):
    """What this rank measures: for each way the times of its rounds, in seconds."""
    import foldcast
    import tensorflow as tf
    from foldcast.tensorflow import allreduce, fusion_report

    shapes = resnet50_shapes()
    weights = [tf.Variable(tf.fill(shape, 1e-3)) for shape in shapes]
    whole = tf.Variable(tf.fill([sum(map(elements, shapes))], 1e-3))
    factor = tf.constant(1.5)

    def gradients():
        return [weight * factor for weight in weights]

    def use(results):
        # What uses a result keeps it from being left out; it reads one number of each.
        return tf.add_n([tf.reshape(result, [-1])[0] for result in results])

    ways = {
        "base": tf.function(lambda: use(gradients())),
        "base of plain": tf.function(lambda: use([whole * factor])),
        "fused": tf.function(lambda: use([allreduce(gradient) for gradient in gradients()])),
        "unfused": tf.function(lambda: use([allreduce(gradient, fusion=0) for gradient in gradients()])),
        "plain": tf.function(lambda: use([allreduce(whole * factor)])),
    }
    for step in ways.values():
        for _ in range(3):
            step()
    launches = [len(launch["members"]) for launch in fusion_report()]
    times = {way: [] for way in ways}
    for _ in range(arguments.rounds):
        for way, step in ways.items():
            foldcast.barrier()
            # The slowest rank's, which all ranks agree on.
            taken = foldcast.allreduce([timed(step, arguments.steps)], "max")
            times[way].append(float(taken[0]))
    return times, launches


def mwms(arguments):
    """One worker of a cluster: the times of its rounds."""
    import tensorflow as tf

    ring = tf.distribute.experimental.CommunicationImplementation.RING
    options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    with strategy.scope():
        weights = [tf.Variable(tf.fill(shape, 1e-3)) for shape in resnet50_shapes()]

    def replica(reduce):
        gradients = [tf.convert_to_tensor(weight) * 1.5 for weight in weights]
        if reduce:
            gradients = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        return tf.add_n([tf.reshape(result, [-1])[0] for result in gradients])

    ways = {
        "base": tf.function(lambda: strategy.run(replica, (False,))),
        "mwms": tf.function(lambda: strategy.run(replica, (True,))),
    }
    times = {way: [] for way in ways}
    for step in ways.values():
        for _ in range(2):
            step()
    for _ in range(arguments.rounds):
        for way, step in ways.items():
            times[way].append(timed(step, arguments.steps))
    return times


def cluster(arguments, size):
    """Runs MultiWorkerMirroredStrategy on as many workers, and gives the slowest worker's times."""
    sockets = [socket.socket() for _ in range(size)]
    for one in sockets:
        one.bind(("localhost", 0))
    workers = [f"localhost:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    of_a_job = (
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "FOLDCAST_RANK",
        "FOLDCAST_WORLD_SIZE",
        "FOLDCAST_JOB",
    )
    processes = []
    with tempfile.TemporaryDirectory() as directory:
        for index in range(size):
            task = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
            environment = {name: value for name, value in os.environ.items() if name not in of_a_job}
            environment["TF_CONFIG"] = json.dumps(task)
            rounds = ["--rounds", str(arguments.rounds), "--steps", str(arguments.steps)]
            command = [sys.executable, __file__, "--worker", os.path.join(directory, str(index)), *rounds]
            processes.append(subprocess.Popen(command, env=environment, preexec_fn=_all_processors))
        codes = [process.wait() for process in processes]
        if any(codes):
            raise SystemExit("the cluster of MultiWorkerMirroredStrategy failed")
        found = [json.load(open(os.path.join(directory, str(index)))) for index in range(size)]
    return {way: [max(rounds) for rounds in zip(*(one[way] for one in found))] for way in found[0]}


def _all_processors():
    # The launcher has bound this rank to its share of the processors; the cluster's workers take their places themselves.
    os.sched_setaffinity(0, range(os.cpu_count() or 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=4, help="steps of each way in a round")
    parser.add_argument("--without-mwms", action="store_true", help="leave MultiWorkerMirroredStrategy out")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        times = mwms(arguments)
        with open(arguments.worker, "w") as file:
            json.dump(times, file)
        return
    times, launches = ours(arguments)
    import foldcast

    rank, size = foldcast.rank(), foldcast.size()
    medians = {way: 1e3 * statistics.median(rounds) for way, rounds in times.items()}
    net = {
        way: medians[way] - medians["base of plain" if way == "plain" else "base"]
        for way in ("fused", "unfused", "plain")
    }
    if not arguments.without_mwms:
        if rank == 0:
            of_cluster = {way: 1e3 * statistics.median(rounds) for way, rounds in cluster(arguments, size).items()}
            net["mwms"] = of_cluster["mwms"] - of_cluster["base"]
        foldcast.barrier(timeout=float("inf"))
    if rank:
        return
    ratios = {way: net[way] / net["plain"] for way in net}
    found = {"ranks": size, "launches": launches, "with_computation_ms": medians, "ms": net, "times_plain": ratios}
    found["rounds_ms"] = {way: [1e3 * time for time in rounds] for way, rounds in times.items()}
    if "mwms" in net:
        found["mwms_times_fused"] = net["mwms"] / net["fused"]
    if arguments.json:
        print(json.dumps(found))
        return
    print(f"{size} ranks, 160 gradients of {sum(map(elements, resnet50_shapes()))} float32; fused into {launches}")
    for way, value in net.items():
        print(f"{way:>8} {value:9.2f} ms {ratios[way]:7.2f} times plain")
    if "mwms" in net:
        print(f"mwms takes {found['mwms_times_fused']:.1f} times as long as fused")


if __name__ == "__main__":
    main()
