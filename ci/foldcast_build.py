"""The build backend of the distribution foldcast: maturin's, after cargo has built what goes beside the module.

One wheel holds three things that cargo makes: the extension module (maturin's part), the TensorFlow op library, and
the command ``foldcast``. ``python ci/foldcast_build.py DIRECTORY`` makes the wheel without pip.

All three need the glibc of the machine that they are built on, or a newer one. With ``FOLDCAST_BUILD_GLIBC=2.28`` they
are linked against that version instead, by zig as the linker (see ``ci/release-wheel.sh``).
"""

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import maturin

ROOT = Path(__file__).resolve().parent.parent
# What pip puts where: scripts/ into the environment's bin, platlib/ into its site-packages.
STAGED = {
    "foldcast": "build/foldcast.data/scripts/foldcast",
    "libfoldcast_tensorflow.so": "build/foldcast.data/platlib/foldcast/libfoldcast_tensorflow.so",
}
# The oldest glibc that what is built must work with; empty for that of this machine.
GLIBC = os.environ.get("FOLDCAST_BUILD_GLIBC", "")
TARGET = f"{platform.machine()}-unknown-linux-gnu"
# Equal content gives an equal wheel, byte for byte: 1980-01-01, the first time that zip files know.
os.environ.setdefault("SOURCE_DATE_EPOCH", "315532800")

get_requires_for_build_sdist = maturin.get_requires_for_build_sdist
get_requires_for_build_wheel = maturin.get_requires_for_build_wheel
build_sdist = maturin.build_sdist


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    _stage()
    if GLIBC:
        tag = "manylinux_" + GLIBC.replace(".", "_")
        config_settings = {"build-args": f"--zig --target {TARGET} --compatibility {tag}"}
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    # maturin looks at the data directory for this too.
    (ROOT / "build/foldcast.data").mkdir(parents=True, exist_ok=True)
    return maturin.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def _stage():
    build = ["zigbuild", "--target", f"{TARGET}.{GLIBC}"] if GLIBC else ["build"]
    command = ["cargo", *build, "--release", "--locked", "-p", "foldcast-cli", "-p", "foldcast-tensorflow"]
    subprocess.run(command, cwd=ROOT, check=True)
    metadata = ["cargo", "metadata", "--no-deps", "--format-version", "1"]
    target = json.loads(subprocess.run(metadata, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    for name, place in STAGED.items():
        (ROOT / place).parent.mkdir(parents=True, exist_ok=True)
        built = Path(target["target_directory"]) / (TARGET if GLIBC else "") / "release"
        shutil.copy2(built / name, ROOT / place)


if __name__ == "__main__":
    os.chdir(ROOT)
    try:
        print(build_wheel(sys.argv[1]))
    except subprocess.CalledProcessError as failed:
        sys.exit(failed.returncode)  # cargo has said what is wrong
