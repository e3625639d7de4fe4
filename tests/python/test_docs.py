"""The documentation names tests that exist."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMED = re.compile(r"`([\w./-]+\.(?:py|rs))::(\w+)`")


@pytest.mark.parametrize("page", sorted(path.name for path in (ROOT / "docs").glob("*.md")))
def test_named_tests_exist(page):
    for file, name in NAMED.findall((ROOT / "docs" / page).read_text()):
        path = ROOT / file if "/" in file else ROOT / "tests" / "python" / file
        assert path.exists(), f"{page} names {file}"
        assert re.search(rf"\b(?:def|fn) {name}\b", path.read_text()), f"{page} names {file}::{name}"


def test_every_line_has_its_test():
    text = (ROOT / "docs" / "allreduce.md").read_text()
    assert len(NAMED.findall(text)) > 30
    assert len(NAMED.findall((ROOT / "docs" / "numerics.md").read_text())) >= 7
