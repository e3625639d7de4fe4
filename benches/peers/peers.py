"""Who takes part, and how each is started."""

import os
import random
from collections import namedtuple
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
HOME = ROOT / "build/peers"
VENV = ROOT / ".venv/bin"
DRIVER = ROOT / "target/release/foldcast-peer"

# needs: a directory under build/peers, made by install.py, without which it does not run.
# tuned: settings that a search found, beside the defaults.
# most_bytes_crowded: larger cases would take seconds a call where there are more ranks than cores.
Peer = namedtuple("Peer", "name title kind needs command env dtypes modes most_ranks suites tuned most_bytes_crowded")


def _peer(name, title, kind, command, needs=None, env=None, **rest):
    values = {"dtypes": None, "modes": ("out", "in"), "most_ranks": 99, "suites": None, "tuned": False}
    values["most_bytes_crowded"] = 1 << 40
    values.update(rest)
    return Peer(name, title, kind, needs, command, env or {}, **values)


AS_ROOT = dict.fromkeys(
    [
        "OMPI_ALLOW_RUN_AS_ROOT",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
        "PRTE_ALLOW_RUN_AS_ROOT",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM",
    ],
    "1",
)
INTEL = {
    "I_MPI_ROOT": str(HOME / "intel"),
    "FI_PROVIDER_PATH": str(HOME / "intel/lib"),
    "PATH": f"{HOME / 'intel/bin'}:{os.environ['PATH']}",
}
ONECCL = dict(
    INTEL,
    CCL_ROOT=str(HOME / "intel"),
    CCL_PLUGIN="ONECCL_LEGACY_CPU",
    CCL_LOG_LEVEL="error",
    # Its worker thread would take a core away from the ranks: 8 ms a call where there are as many ranks as cores.
    CCL_WORKER_OFFLOAD="0",
    LD_LIBRARY_PATH=f"{HOME / 'oneccl'}:{HOME / 'intel/lib'}",
)


def _foldcast(ranks, cases):
    return [VENV / "foldcast", "bench", "allreduce", "--plain", "--ranks", ranks, "--cases", cases]


def _openmpi(*options):
    def command(ranks, cases):
        run = [HOME / "openmpi/bin/mpirun", "--oversubscribe", *options, "-np", ranks]
        return [*run, DRIVER, "openmpi", HOME / "openmpi/lib/libmpi.so.40", cases]

    return command


def _mpich(ranks, cases):
    return [HOME / "mpich/bin/mpirun", "-np", ranks, DRIVER, "mpich", HOME / "mpich/lib/libmpi.so.12", cases]


def _intelmpi(ranks, cases):
    return [HOME / "intel/bin/mpirun", "-np", ranks, DRIVER, "intelmpi", HOME / "intel/lib/libmpi.so.12", cases]


def _oneccl(ranks, cases):
    libraries = [HOME / "intel/lib/libmpi.so.12", HOME / "intel/lib/libccl.so.2"]
    return [HOME / "intel/bin/mpirun", "-np", ranks, DRIVER, "oneccl", *libraries, cases]


def _python(interpreter, script):
    def command(ranks, cases):
        run = [VENV / "foldcast", "run", "--raw", "-n", ranks, "--", interpreter, "-W", "ignore"]
        return [*run, HERE / "contestants" / script, cases]

    return command


_TORCH = {"LD_LIBRARY_PATH": str(HOME / "torch/stand-ins")}
_MPI_HALF = ("f32", "f16")

PEERS = [
    _peer("foldcast", "Foldcast", "native", _foldcast),
    _peer("openmpi", "Open MPI", "native", _openmpi(), "openmpi", AS_ROOT, dtypes=_MPI_HALF),
    _peer("mpich", "MPICH", "native", _mpich, "mpich", most_bytes_crowded=64 << 10),
    _peer("intelmpi", "Intel MPI", "native", _intelmpi, "intel", INTEL),
    _peer("oneccl", "oneCCL", "native", _oneccl, "oneccl", ONECCL),
    _peer(
        "openmpi-sm",
        "Open MPI, coll_sm_priority=100",
        "native",
        _openmpi("--mca", "coll_sm_priority", "100"),
        "openmpi",
        AS_ROOT,
        dtypes=("f32",),
        most_ranks=2,
        tuned=True,
    ),
    _peer(
        "mpich-ring",
        "MPICH, ring",
        "native",
        _mpich,
        "mpich",
        {"MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "ring", "MPIR_CVAR_DEVICE_COLLECTIVES": "none"},
        dtypes=("f32",),
        most_ranks=2,
        tuned=True,
    ),
    _peer(
        "intelmpi-8",
        "Intel MPI, I_MPI_ADJUST_ALLREDUCE=8",
        "native",
        _intelmpi,
        "intel",
        dict(INTEL, I_MPI_ADJUST_ALLREDUCE="8"),
        most_ranks=2,
        tuned=True,
    ),
    _peer(
        "intelmpi-yield",
        "Intel MPI, I_MPI_THREAD_YIELD=2",
        "native",
        _intelmpi,
        "intel",
        dict(INTEL, I_MPI_THREAD_YIELD="2"),
        suites=("ranks4", "ranks8"),
        tuned=True,
    ),
    _peer(
        "intelmpi-wait",
        "Intel MPI, I_MPI_WAIT_MODE=1",
        "native",
        _intelmpi,
        "intel",
        dict(INTEL, I_MPI_WAIT_MODE="1"),
        suites=("ranks4", "ranks8"),
        tuned=True,
    ),
    _peer(
        "oneccl-ring",
        "oneCCL, ring",
        "native",
        _oneccl,
        "oneccl",
        dict(ONECCL, CCL_ALLREDUCE="ring"),
        most_ranks=2,
        tuned=True,
    ),
    _peer(
        "foldcast-numpy", "Foldcast, numpy", "python", _python(VENV / "python", "foldcast_numpy.py"), dtypes=("f32",)
    ),
    _peer(
        "torch",
        "PyTorch (Gloo)",
        "python",
        _python(HOME / "torch/bin/python", "torch_gloo.py"),
        "torch",
        _TORCH,
        modes=("in",),
    ),
    _peer(
        "foldcast-tensorflow",
        "Foldcast, TensorFlow",
        "python",
        _python(VENV / "python", "foldcast_tensorflow.py"),
        modes=("out",),
    ),
    _peer(
        "tensorflow",
        "TensorFlow's collectives",
        "python",
        _python(VENV / "python", "tensorflow_ring.py"),
        modes=("out",),
    ),
]


def by_name(name):
    return next(peer for peer in PEERS if peer.name == name)


def is_installed(peer):
    return peer.needs is None or (HOME / peer.needs / "installed").exists()


def cases_of(peer, suite):
    """Those cases of a suite that the peer can do."""
    if peer.kind != suite.kind or suite.ranks > peer.most_ranks or (peer.suites and suite.name not in peer.suites):
        return []
    takes = [case for case in suite.cases if peer.dtypes is None or case.dtype in peer.dtypes]
    most = peer.most_bytes_crowded if suite.ranks > 2 else 1 << 40
    return [case for case in takes if case.mode in peer.modes and case.bytes <= most]


def environment(peer, suite, case_ms, samples):
    """The variables of a run."""
    env = dict(os.environ, BENCH_CASE_MS=str(case_ms), BENCH_SAMPLES=str(samples), **peer.env)
    env.pop("BENCH_DIRTY", None)
    if suite.dirty:
        env["BENCH_DIRTY"] = "1"
    if peer.kind == "python":
        env.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(random.randint(20000, 29999)), OMP_NUM_THREADS="1")
    return env
