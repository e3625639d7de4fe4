"""Empty libraries in the place of CUDA's, so that PyTorch's usual package is imported on a machine without a GPU.

The package names libraries of several GB that nothing of its CPU part calls. Here each becomes a file of a few KB with the
same names in it; each function returns an error. They are found by LD_LIBRARY_PATH.
"""

import re
import subprocess
from collections import defaultdict

# Libraries whose symbols have no version to know them by.
BY_NAME = {
    "libcuda": r"cu[A-Z]",
    "libnccl": r"nccl",
    "libcudnn": r"cudnn",
    "libcusparseLt": r"cusparseLt",
    "libcufile": r"cuFile",
    "libcupti": r"cupti",
    "libnvshmem_host": r"(_ZN?7?)?nvshmem",
    "libnvrtc": r"nvrtc",
    "libcurand": r"curand",
    "libcufft": r"cufft",
    "libcublasLt": r"cublasLt",
}
OWN = ("libtorch", "libc10", "libshm")


def _output(*command):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True).stdout


def _needs(libraries):
    """The libraries that are not there; versions by library; symbols by version; symbols without a version."""
    missing, versions, versioned, plain = set(), defaultdict(set), defaultdict(set), set()
    for library in libraries:
        for name in re.findall(r"^\s*(\S+) => not found", _output("ldd", library), re.M):
            if not name.startswith(OWN):
                missing.add(name)
        of = None
        for line in _output("objdump", "-p", library).splitlines():
            required = re.match(r"\s*required from (\S+):", line)
            version = re.match(r"\s+0x\S+ 0x\S+ \d+ (\S+)", line)
            if required:
                of = required.group(1)
            elif version and of:
                versions[of].add(version.group(1))
            elif not line.strip():
                of = None
        for line in _output("nm", "-D", "--undefined-only", library).splitlines():
            symbol, _, version = line.split()[-1].partition("@")
            if version:
                versioned[version.strip("@")].add(symbol)
            else:
                plain.add(symbol)
    return missing, versions, versioned, plain


def make(libraries, place):
    """Makes them for the libraries in a directory, in another."""
    place.mkdir(parents=True, exist_ok=True)
    missing, versions, versioned, plain = _needs(sorted(libraries.glob("*.so*")))
    for number, name in enumerate(sorted(missing)):
        symbols, script = set(), []
        for version in sorted(versions[name]):
            own = sorted(versioned[version]) or [f"stand_in_{number}"]
            script.append(f"{version} {{ global: {'; '.join(own)}; }};")
            symbols.update(own)
        stem = name.split(".")[0]
        if not script and stem in BY_NAME:
            symbols.update(symbol for symbol in plain if re.match(BY_NAME[stem], symbol))
        _link(place, name, sorted(symbols), script)


def _link(place, name, symbols, script):
    # x86-64: every function returns 999, "unknown error".
    assembly = [".text"]
    for symbol in symbols:
        assembly += [f".globl {symbol}", f".type {symbol},@function", f"{symbol}:"]
    assembly += ["mov $999, %eax", "ret", '.section .note.GNU-stack,"",@progbits', ""]
    source, versions = place / "stand-in.s", place / "versions.map"
    source.write_text("\n".join(assembly))
    versions.write_text("\n".join(script))
    command = ["cc", "-shared", "-nostdlib", "-o", place / name, f"-Wl,-soname,{name}", source]
    if script:
        command.append(f"-Wl,--version-script,{versions}")
    subprocess.run([str(part) for part in command], check=True)
    source.unlink()
    versions.unlink()
