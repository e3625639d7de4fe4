"""Training in a MonitoredTrainingSession while a rank dies: TensorFlow must not begin anew for ever.

That it would do if it took the death for something that passes.
"""


def train_until_a_death(train, hooks=()):
    """In each rank: run this op again and again, and report the error by which that ends."""
    import tensorflow as tf
    from _ranks import ready, report

    try:
        with tf.compat.v1.train.MonitoredTrainingSession(hooks=hooks) as session:
            session.run(train)
            ready("trained")
            while True:
                session.run(train)
    except tf.errors.FailedPreconditionError as error:
        report(str(error))


def check_a_death(ranks, body):
    """In the test: two ranks train so in ``body``, rank 1 is killed, and rank 0 says so."""
    with ranks.start(2, body, launcher=["--keep-going"]) as job:
        job.wait_ready(0, "trained")
        job.wait_ready(1, "trained")
        job.kill(1)
        job.finish(expect=None)
    assert "rank 1 was killed by signal 9" in job.results[0], job.results
