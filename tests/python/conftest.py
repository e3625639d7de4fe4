"""Fixtures that run a function of a test file in N ranks of a job.

``ranks`` starts them as users do, with the launcher. ``warm_ranks`` forks them from a process that has TensorFlow already:
the import takes seconds of each rank's time, and is much of what tests of TensorFlow would take. What is about the launcher,
about imports, or about variables that TensorFlow reads when it is imported uses ``ranks``.
"""

import ctypes
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import time

import pytest

HERE = pathlib.Path(__file__).resolve().parent
LAUNCHER = pathlib.Path(sys.executable).parent / "foldcast"
# For ci/memcheck.sh: what ranks run in the place of Python, and by how much that is slower.
PYTHON = os.environ.get("FOLDCAST_TEST_PYTHON", sys.executable)
PATIENCE = int(os.environ.get("FOLDCAST_TEST_PATIENCE", "1"))
# Variables by which a rank is told who it is: a job of a test must not see those of another job.
OF_A_JOB = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "RANK_ID", "RANK_SIZE", "DEVICE_ID"),
    *("FOLDCAST_RANK", "FOLDCAST_WORLD_SIZE", "FOLDCAST_JOB", "MASTER_ADDR", "MASTER_PORT", "RANK_TABLE_FILE"),
)


class Job:
    """N ranks under the launcher, or forked.

    Attributes
    ----------
    results : list
        What each rank's function returned or reported; None where it did neither.
    returncode : int
        The launcher's exit code.
    stdout, stderr : str
        The job's output; under the launcher each line with its rank: ``[2] ...``.
    """

    def __init__(self, size, process, directory, timeout, own_numbers=False):
        self.size = size
        self.process = process
        self._own_numbers = own_numbers
        self.results = self.returncode = None
        self._directory = pathlib.Path(directory)
        self._timeout = timeout

    def pid(self, rank):
        """The process id of a rank."""
        return int(self._await(f"{rank}.pid").read_text())

    def wait_ready(self, rank, word):
        """Return when the rank has called ``ready(word)``."""
        self._await(f"{rank}.{word}.ready")

    def kill(self, rank, number=signal.SIGKILL):
        """Send a signal to a rank."""
        os.kill(self.pid(rank), number)

    def finish(self, expect=0):
        """Wait for the launcher's end; its exit code must be ``expect``, or anything if that is None."""
        try:
            self.process.wait(self._timeout)
        except subprocess.TimeoutExpired:
            late = True
        else:
            late = False
        if late:
            self._fail(f"the job did not end within {self._timeout} s")
        self._read_output()
        self.returncode = self.process.returncode
        if expect is not None and self.returncode != expect:
            self._fail(f"the launcher's exit code is {self.returncode}, expected {expect}")
        files = [self._directory / f"{rank}.json" for rank in range(self.size)]
        self.results = [json.loads(file.read_text()) if file.exists() else None for file in files]
        return self

    def _await(self, name):
        file = self._directory / name
        deadline = time.monotonic() + self._timeout
        while not file.exists():
            if self.process.poll() is not None:
                self._fail(f"the job ended before {name} was there")
            if time.monotonic() > deadline:
                self._fail(f"{name} was not there within {self._timeout} s")
            time.sleep(0.005)
        return file

    def _read_output(self):
        self.stdout, self.stderr = ((self._directory / name).read_text() for name in ("stdout", "stderr"))

    def _fail(self, why):
        if self.process.poll() is None:
            for file in () if self._own_numbers else self._directory.glob("*.pid"):
                _signal(int(file.read_text()), signal.SIGABRT)  # faulthandler writes where it hangs
            time.sleep(1)
        self.end()
        self._read_output()
        pytest.fail(f"{why}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}", pytrace=False)

    def end(self):
        """End whatever is left."""
        if self.process.poll() is None:
            self.process.end()
        # Numbers of another namespace are other processes here.
        for file in () if self._own_numbers else self._directory.glob("*.pid"):
            # The ranks die with the launcher; this is for the day on which they do not.
            deadline = time.monotonic() + 10
            while _is_running(int(file.read_text())) and time.monotonic() < deadline:
                time.sleep(0.01)
            if _is_running(int(file.read_text())):
                _signal(int(file.read_text()), signal.SIGKILL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


class Launched(subprocess.Popen):
    """The launcher of a job, whose output goes to files."""

    def __init__(self, command, directory, env):
        with open(f"{directory}/stdout", "w") as out, open(f"{directory}/stderr", "w") as err:
            super().__init__(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=env,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    def end(self):
        os.killpg(self.pid, signal.SIGKILL)
        self.wait()


class Warm:
    """The process that ranks are forked from, and the jobs of which it runs one after the other: see _warm.py."""

    def __init__(self):
        command = [sys.executable, str(HERE / "_warm.py")]
        env = {name: value for name, value in os.environ.items() if name not in OF_A_JOB}
        env.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        pipe = subprocess.PIPE
        # Unbuffered, or a second answer would be where `select` does not see it.
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, env=env, bufsize=0, preexec_fn=_die_with_parent
        )
        self._jobs = 0

    def fork(self, **request):
        self._jobs += 1
        job = f"warm-{self._process.pid}-{self._jobs}"
        self._process.stdin.write(json.dumps(dict(request, job=job)).encode() + b"\n")
        self._process.stdin.flush()
        return Forked(self)

    def answer(self, timeout):
        """Its next line; None if there is none in time."""
        pipe = self._process.stdout
        if not select.select([pipe], [], [], timeout)[0]:
            return None
        line = pipe.readline()
        assert line, "the process that ranks are forked from has ended; what it said is above"
        return json.loads(line)

    def is_there(self):
        return self._process.poll() is None

    def end(self):
        """With all ranks that are left."""
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


class Forked:
    """Forked ranks, to a job what its launcher is."""

    def __init__(self, warm):
        self._warm = warm
        self.returncode = None
        if not warm.answer(300):  # it imports TensorFlow first
            warm.end()
            raise AssertionError("the process that ranks are forked from does not answer")

    def poll(self):
        return self._ended(0)

    def wait(self, timeout):
        if self._ended(timeout) is None:
            raise subprocess.TimeoutExpired("forked ranks", timeout)

    def _ended(self, timeout):
        if self.returncode is None:
            self.returncode = self._warm.answer(timeout)
        return self.returncode

    def end(self):
        self._warm.end()  # the next job gets a new one


_libc = ctypes.CDLL(None)


def _die_with_parent():
    pr_set_pdeathsig = 1
    _libc.prctl(pr_set_pdeathsig, signal.SIGKILL)  # a test run that is killed leaves no job behind


def _signal(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _is_running(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Ranks:
    """Starts jobs: see the methods."""

    def __init__(self, file, directories):
        self._file = file
        self._directories = directories

    def __call__(self, size, function, *arguments, expect=0, **options):
        """Run ``function(rank, size, *arguments)`` in every rank, to the end.

        The function is one of the test file's own, at module level; arguments and result are what JSON can hold.
        Options: those of ``start``, and ``expect``, the launcher's exit code (None: any).
        """
        with self.start(size, function, *arguments, **options) as job:
            return job.finish(expect)

    def start(self, size, function, *arguments, **options):
        """Start the function in every rank and do not wait: ``with ranks.start(2, body) as job: ...``.

        Options: ``timeout`` in seconds (a watchdog, 120), ``env`` (variables to add; None removes one), ``launcher``
        (arguments of ``foldcast run``), ``python`` (arguments of the interpreter), ``within`` (a command that runs the
        launcher), ``rank_within`` (a command that runs each rank), ``own_numbers`` (the
        ranks are in a namespace of processes of their own: they cannot be signalled by number).
        """
        program = [str(HERE / "_ranks.py"), str(self._file), function.__name__, json.dumps(arguments)]
        return self._start(size, program, **options)

    def script(self, size, program, expect=0, **options):
        """Run a script, given with its arguments, in every rank, to the end. Options as above; no results."""
        with self._start(size, program, **options) as job:
            return job.finish(expect)

    def _start(
        self,
        size,
        program,
        timeout=120,
        env=None,
        launcher=(),
        python=(),
        within=(),
        rank_within=(),
        own_numbers=False,
    ):
        directory = tempfile.TemporaryDirectory(prefix="foldcast-test-")
        self._directories.append(directory)
        variables = {name: value for name, value in os.environ.items() if name not in OF_A_JOB}
        variables["FOLDCAST_TEST_DIRECTORY"] = directory.name
        variables.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        for name, value in (env or {}).items():
            variables.pop(name, None)
            if value is not None:
                variables[name] = value
        rank = [*rank_within, PYTHON, *python, *program]
        command = [*within, str(LAUNCHER), "run", "-n", str(size), *launcher, "--", *rank]
        return Job(size, Launched(command, directory.name, variables), directory.name, timeout * PATIENCE, own_numbers)


class WarmRanks:
    """Forks jobs."""

    def __init__(self, file, directories, warm):
        self._file = file
        self._directories = directories
        self._warm = warm

    def __call__(self, size, function, *arguments, expect=0, **options):
        """Run ``function(rank, size, *arguments)`` in every rank, to the end, as ``ranks`` does."""
        with self.start(size, function, *arguments, **options) as job:
            return job.finish(expect)

    def start(self, size, function, *arguments, timeout=120, env=None, keep_going=False):
        """Start the function in every rank and do not wait.

        Options: ``timeout`` and ``env`` as of ``ranks``; ``keep_going``: ranks go on if one fails.
        """
        directory = tempfile.TemporaryDirectory(prefix="foldcast-test-")
        self._directories.append(directory)
        for name in ("stdout", "stderr"):
            pathlib.Path(directory.name, name).touch()
        process = self._warm().fork(
            size=size,
            directory=directory.name,
            program=[str(self._file), function.__name__, json.dumps(arguments)],
            env=dict(env or {}, FOLDCAST_TEST_DIRECTORY=directory.name),
            keep_going=keep_going,
        )
        return Job(size, process, directory.name, timeout)


@pytest.fixture
def directories():
    made = []
    yield made
    for directory in made:
        directory.cleanup()


@pytest.fixture
def ranks(request, directories):
    return Ranks(request.path, directories)


@pytest.fixture(scope="session")
def warm():
    """The process to fork from, made at first use, and anew after a job that had to be ended."""
    made = []

    def get():
        if not made or not made[-1].is_there():
            made.append(Warm())
        return made[-1]

    yield get
    if made and made[-1].is_there():
        made[-1].end()


@pytest.fixture
def warm_ranks(request, directories, warm):
    return WarmRanks(request.path, directories, warm)


# ---- hostile environments; fixtures, since the ranks import the test files too ----

UNSHARE = ("unshare", "--user", "--map-root-user")


def _works(*command):
    return subprocess.run([*command, "true"], stdin=subprocess.DEVNULL, capture_output=True).returncode == 0


@pytest.fixture
def without():
    """``without("memfd_create", error="EPERM")``: a command prefix with which these system calls fail."""

    def prefix(*calls, error="EPERM"):
        return (sys.executable, str(HERE / "_without.py"), error, ",".join(calls), "--")

    if not _works(*prefix("memfd_create")):
        pytest.skip("filters of system calls cannot be set here")
    return prefix


@pytest.fixture
def in_mounts():
    """``in_mounts(script)``: a command prefix, after this script and in file systems of its own."""

    def prefix(script):
        return (*UNSHARE, "--mount", "sh", "-c", f'set -e; {script}; exec "$0" "$@"')

    if not _works(*prefix("mount -t tmpfs none /mnt")):
        pytest.skip("file systems cannot be mounted here")
    return prefix


@pytest.fixture
def in_processes():
    """``in_processes(option ...)``: a command prefix in a namespace of processes of its own."""

    def prefix(*options):
        return (*UNSHARE, "--pid", "--fork", "--kill-child", *options)

    if not _works(*prefix("--mount-proc")):
        pytest.skip("namespaces of processes cannot be made here")
    return prefix


@pytest.fixture
def foldcast():
    """``foldcast(argument ..., within=prefix)``: runs the command to its end."""

    def run(*arguments, within=(), **variables):
        env = {name: value for name, value in os.environ.items() if name not in OF_A_JOB}
        command = [*within, str(LAUNCHER), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**env, **variables}, cwd="/")

    return run
