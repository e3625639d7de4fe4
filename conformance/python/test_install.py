"""The package where there is little: no compiler, no TensorFlow, no MPI, no home."""

import json
import os
import pathlib
import re
import subprocess
import sys
import sysconfig

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAUNCHER = pathlib.Path(sys.executable).parent / "foldcast"
NOBODY = 65534


def newest_wheel():
    wheels = [*ROOT.glob("build/wheels/foldcast-*.whl"), *ROOT.glob("dist/foldcast-*.whl")]
    if not wheels:
        pytest.skip("no wheel: run make setup")
    return max(wheels, key=lambda wheel: wheel.stat().st_mtime)


def test_horovod_413_the_wheel_needs_no_compiler(tmp_path):
    # Nothing can be found but what is named in full; numpy is there already.
    env = {"PATH": "/nonexistent", "HOME": str(tmp_path)}
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-index", "--no-deps", "--quiet"]
    subprocess.run([*pip, "--target", str(tmp_path / "site"), str(newest_wheel())], env=env, check=True)
    program = (
        "import sys, foldcast, numpy; "
        "assert foldcast.__file__.startswith(sys.argv[1]), foldcast.__file__; "
        "total = foldcast.allreduce(numpy.ones(1000, numpy.float32)); "
        "assert foldcast.size() == 2 and numpy.all(total == 2), total"
    )
    launcher = tmp_path / "site" / "bin" / "foldcast"
    command = [str(launcher), "run", "-n", "2", "--", sys.executable, "-c", program, str(tmp_path)]
    subprocess.run(command, env={**env, "PYTHONPATH": str(tmp_path / "site")}, check=True, timeout=120)


def test_horovod_2353_without_tensorflow_one_line_says_so():
    program = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "tensorflow":
            raise ModuleNotFoundError("No module named 'tensorflow'", name="tensorflow")
sys.meta_path.insert(0, Hidden())
import foldcast
import foldcast.tensorflow
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if re.match(r"\w*(Error|Exception)\b", line)]
    assert len(lines) == 1 and "tensorflow" in lines[0].lower(), done.stderr


def test_horovod_2353_what_is_built_in_is_told():
    import foldcast

    found = foldcast.build_info()
    library = found.pop("tensorflow_library")
    assert library == str(pathlib.Path(foldcast.__file__).parent / "libfoldcast_tensorflow.so")
    assert pathlib.Path(library).is_file()
    # The command and the module are of one build.
    done = subprocess.run([str(LAUNCHER), "info", "--json"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and json.loads(done.stdout) == found, (done.stdout, done.stderr, found)
    assert found["version"] == foldcast.__version__ and found["profile"] == "release"
    assert found["kernels"][0] == "portable" and found["kernels_in_use"] in found["kernels"]
    assert "allreduce" in found["collectives"] and "one_shot" in found["algorithms"]


def test_gmx_mmpbsa_576_no_library_but_the_systems_is_needed():
    import foldcast

    package = pathlib.Path(foldcast.__file__).parent
    files = [*package.rglob("*.so"), LAUNCHER, *pathlib.Path(sysconfig.get_path("data")).glob("**/libfoldcast*.so")]
    assert len(files) >= 2, files
    for file in files:
        listed = subprocess.run(["ldd", str(file)], capture_output=True, text=True, timeout=60).stdout
        needed = {line.split()[0].rpartition("/")[2] for line in listed.splitlines() if line.strip()}
        allowed = r"(libc|libm|libgcc_s|libpthread|libdl|librt|ld-linux.*|linux-vdso|linux-gate)\.so.*"
        assert all(re.fullmatch(allowed, name) for name in needed), (file, needed)


@pytest.mark.parametrize("user", [0, NOBODY])
def test_ompi_4451_the_launcher_runs_as_root_and_as_nobody(user):
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    env = {**os.environ, "HOME": "/proc/1", "XDG_CACHE_HOME": ""}

    def become():
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)

    # Its ranks are the command itself, so that it does not matter who may read this Python.
    command = [str(LAUNCHER), "bench", "allreduce", "-n", "2", "--sizes", "8,64K", "--case-ms", "5", "--plain"]
    done = subprocess.run(command, env=env, cwd="/", preexec_fn=become, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 4 and all(line.split()[6] == "ok" for line in lines), (done.stdout, done.stderr)
