"""Figures of TensorFlow: `tensorflow`, `fused`."""

import statistics
from functools import partial

import measured
from measured import differences, in_turn, row

LAUNCHES = 3
STEP = measured.ROOT / "benches/tensorflow_step.py"


def of_tensorflow():
    """What the op adds to the engine, for 8 bytes, in a session of TensorFlow 1 and eagerly."""
    contestants = {"Rust": partial(measured.rust, "blocking"), "ops": partial(measured.python, "rank_session.py")}
    found = in_turn(LAUNCHES, contestants)
    engine = [statistics.median(each["blocking"]) for each in found["Rust"]]
    times = {what: [statistics.median(each[what]) for each in found["ops"]] for what in found["ops"][0]}
    yield row("8 B, Rust", "us", engine)
    chain = times["chain allreduce"]
    yield row("session, chain of 200: each allreduce", "us", chain)
    yield row("session, chain of 200: each tf.abs", "us", times["chain abs"])
    yield row("session, chain: allreduce - Rust", "us", differences(chain, engine), asked=12)
    run = [differences(times["run allreduce"], times["run abs"]), engine]
    yield row("session.run of one allreduce", "us", times["run allreduce"])
    yield row("session.run of one tf.abs", "us", times["run abs"])
    yield row("session.run: allreduce - tf.abs - Rust", "us", differences(*run), asked=12)
    yield row("eager allreduce", "us", times["eager allreduce"])
    yield row("eager tf.abs", "us", times["eager abs"])


def of_fused():
    """The 160 gradients of a ResNet-50, fused, beside one allreduce of as many bytes."""
    found = measured.ranks(measured.PYTHON, STEP, "--without-mwms", "--json", "--rounds", 11)
    rounds = found["rounds_ms"]
    fused = differences(rounds["fused"], rounds["base"])
    plain = differences(rounds["plain"], rounds["base of plain"])
    yield row("160 gradients fused", "ms", fused)
    yield row("one tensor of as many bytes", "ms", plain)
    yield row("fused / plain", "times", [one / other for one, other in zip(fused, plain)], asked=1.15)
