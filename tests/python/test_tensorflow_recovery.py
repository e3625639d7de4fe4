"""TensorFlow after a failure: timeouts, ends, and going on with the ranks that are left."""

import os
import signal
import threading
import time

import _monitored

LIMIT = 0.3


def times_out(rank, size, where):
    """Rank 1 is there and runs nothing."""
    import foldcast
    import tensorflow as tf
    from foldcast.tensorflow import allreduce, broadcast

    v1 = tf.compat.v1
    seconds = []
    for number, op in enumerate([allreduce, lambda tensor, **options: broadcast([tensor], 0, **options)[0]]):
        name = f"g{number}"
        group = foldcast.new_group([0, 1], name=name, timeout=LIMIT if where == "group" else None)
        group.barrier(timeout=60)
        if rank == 0:
            with tf.Graph().as_default(), v1.Session() as session:
                result = op(tf.ones([2]), group=name)
                start = time.monotonic()
                try:
                    session.run(result)
                except tf.errors.DeadlineExceededError as error:
                    seconds.append(time.monotonic() - start)
                    assert "rank 1" in str(error) and seconds[-1] >= LIMIT * 0.99, (error, seconds)
                else:
                    raise AssertionError("rank 1 ran nothing")
        foldcast.barrier(timeout=60)
    return seconds


def test_pytorch_167052_timeouts_of_group_and_environment(warm_ranks):
    for where, env in [("group", {}), ("environment", {"FOLDCAST_TIMEOUT": str(LIMIT)})]:
        job = warm_ranks(2, times_out, where, env=env)
        print(f"s until a limit of {LIMIT} s {where}:", [round(s, 3) for s in job.results[0]])
        assert len(job.results[0]) == 2


def data_end(rank, size):
    """One worker's data set is shorter: the other one is told, and does not hang."""
    import tensorflow as tf
    from foldcast.tensorflow import allreduce

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        dataset = v1.data.Dataset.range(10 if rank else 20)
        total = allreduce(tf.cast(v1.data.make_one_shot_iterator(dataset).get_next(), tf.float32), name="loss")
        steps = 0
        try:
            while True:
                assert session.run(total) == steps * size
                steps += 1
        except tf.errors.OutOfRangeError:
            return [steps, "end of the data"]
        except tf.errors.AbortedError as error:
            return [steps, str(error)]


def test_tensorflow_37112_a_worker_whose_data_end_early(warm_ranks):
    results = warm_ranks(2, data_end).results
    assert results[1] == [10, "end of the data"]
    steps, text = results[0]
    assert steps == 10 and "rank 1 left in order" in text and "loss" in text, results


def goes_on(rank, size):
    """The same graph, after a death, with those that are left."""
    import foldcast
    import numpy as np
    import tensorflow as tf
    from foldcast.tensorflow import allreduce, broadcast

    v1 = tf.compat.v1

    @tf.function
    def doubled(x):
        return allreduce(x) * 2.0

    with tf.Graph().as_default() as graph:
        fed = v1.placeholder(tf.float32, [3])
        ops = [allreduce(fed * float(i), name=f"sum_{i}") for i in range(1, 5)]
        sent = broadcast([fed + float(rank)], 1, name="sent")
    session, values = v1.Session(graph=graph), {fed: [1.0, 2.0, 3.0]}
    assert session.run(ops, values)[3].tolist() == [4.0 * size, 8.0 * size, 12.0 * size]
    assert doubled(tf.constant(1.0)).numpy() == 2 * size and allreduce(1.0).numpy() == size
    foldcast.barrier()
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        session.run(ops, values)
    except tf.errors.AbortedError as error:
        assert "rank 0 was killed by signal 9" in str(error), error
    else:
        raise AssertionError("rank 0 is dead")
    group = foldcast.shrink()
    left = group.size
    assert group.ranks == (1, 2) and left == 2
    for _ in range(3):
        assert session.run(ops, values)[3].tolist() == [4.0 * left, 8.0 * left, 12.0 * left]
    assert session.run(sent, values)[0].tolist() == [3.0, 4.0, 5.0], "root 1 of the group is rank 2"
    assert doubled(tf.constant(1.0)).numpy() == 2 * left and allreduce(1.0).numpy() == left
    assert np.array_equal(foldcast.allreduce([1]), [left])
    return True


def test_graphs_go_on_with_the_ranks_that_are_left(warm_ranks):
    job = warm_ranks(3, goes_on, keep_going=True, expect=128 + signal.SIGKILL)
    assert job.results == [None, True, True]


def monitored(rank, size):
    """Without hooks of ours."""
    import tensorflow as tf
    from foldcast.tensorflow import allreduce

    v1 = tf.compat.v1
    with tf.Graph().as_default():
        step = v1.train.get_or_create_global_step()
        _monitored.train_until_a_death(v1.assign_add(step, tf.cast(allreduce(1.0), tf.int64)))


def test_a_death_ends_a_monitored_session(ranks):
    _monitored.check_a_death(ranks, monitored)


def exits(rank, size):
    """The main thread ends while others are in session.run, waiting for a rank that is stopped."""
    import atexit

    from _ranks import ready, report

    times = []
    # Handlers run in the reverse of the order of registration: this one last, after foldcast's.
    atexit.register(lambda: report([*times, time.monotonic()]))
    import foldcast

    atexit.register(lambda: times.append(time.monotonic()))
    import tensorflow as tf
    from foldcast.tensorflow import allreduce

    v1 = tf.compat.v1
    graph = tf.Graph()
    with graph.as_default():
        sums = [allreduce(tf.ones([1 << 16]), name=f"sum_{i}", fusion=0) for i in range(3)]
    foldcast.barrier()
    ready("there")
    if rank:
        os.kill(os.getpid(), signal.SIGSTOP)
    session = v1.Session(graph=graph)

    def run(op):
        try:
            session.run(op)
        except tf.errors.OpError:
            pass

    for op in sums:
        threading.Thread(target=run, args=[op], daemon=True).start()
    time.sleep(0.5)
    times.append(time.monotonic())
    ready("ends")


def test_exit_in_the_middle_of_session_runs(ranks):
    import test_numpy_ends_soon as soon

    with ranks.start(2, exits, launcher=["--keep-going"]) as job:
        job.wait_ready(0, "ends")
        end = time.monotonic() + soon.WATCHDOG
        while not soon.gone(job.pid(0)):
            assert time.monotonic() < end, "the exit hangs"
            time.sleep(0.001)
        exited = time.monotonic()
        job.kill(1)
        job.finish(expect=None)
    ends, begins, left = job.results[0]
    print(f"exit in the middle of session runs: foldcast {left - begins:.4f} s, all {exited - ends:.3f} s")
    assert "Traceback" not in job.stderr, job.stderr
