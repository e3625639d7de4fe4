"""The fixture ``ranks`` of tests/python: see the file of this name there."""

import importlib.util
import pathlib
import sys

TESTS = pathlib.Path(__file__).resolve().parents[2] / "tests" / "python"
sys.path.append(str(TESTS))  # for _oracle


def _load():
    spec = importlib.util.spec_from_file_location("foldcast_tests_conftest", TESTS / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_loaded = _load()
ranks, directories = _loaded.ranks, _loaded.directories
