"""One rank of a job: runs a function of a test file, and carries its result back. See conftest.py."""

import faulthandler
import importlib.util
import json
import os
import pathlib
import sys


def ready(word):
    """Tell the test that this rank has come so far: ``job.wait_ready(rank, word)`` returns."""
    _write(f"{os.environ['RANK']}.{word}.ready", "")


def report(value):
    """Give the test this rank's result now: the rank may die or hang afterwards."""
    _write(f"{os.environ['RANK']}.json", json.dumps(value))


def _write(name, text):
    # By renaming, so that who sees the file sees all of it.
    directory = pathlib.Path(os.environ["FOLDCAST_TEST_DIRECTORY"])
    unfinished = directory / f"{name}.{os.getpid()}.part"
    unfinished.write_text(text)
    unfinished.rename(directory / name)


def main():
    file, function, arguments = sys.argv[1:]
    faulthandler.enable()
    _write(f"{os.environ['RANK']}.pid", str(os.getpid()))
    spec = importlib.util.spec_from_file_location(pathlib.Path(file).stem, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    value = getattr(module, function)(rank, size, *json.loads(arguments))
    if value is not None:
        report(value)


if __name__ == "__main__":
    main()
