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


# A file or script, perhaps with a test in it.
PLACE = re.compile(r"`([\w./-]+\.(?:py|rs|sh))(?:::(\w+))?`")


def test_every_promise_of_reliability_has_its_test():
    """Each row of each table names a test, in its last column; each file that the page names is there."""
    rows = 0
    for line in (ROOT / "docs" / "reliability.md").read_text().splitlines():
        for file, _ in PLACE.findall(line):
            assert (ROOT / file if "/" in file else ROOT / "tests" / "python" / file).exists(), file
        if not line.startswith("|") or line.startswith("|---") or "shown by" in line:
            continue
        rows += 1
        assert any(name for _, name in PLACE.findall(line.split(" | ")[-1])), f"no test shows: {line}"
    assert rows > 25


def test_every_promise_of_security_has_its_test():
    """Each row that says what somebody cannot do, or what the others get, names a test that there is; each link leads to a file."""
    text = (ROOT / "SECURITY.md").read_text()
    for file, name in NAMED.findall(text):
        assert re.search(rf"\b(?:def|fn) {name}\b", (ROOT / file).read_text()), f"{file}::{name}"
    for target in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert (ROOT / target).exists(), target
    tables = re.findall(r"^\|.*shown by \|\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert len(tables) == 2
    for line in "".join(tables).splitlines():
        assert NAMED.search(line.split(" | ")[-1]), f"no test shows: {line}"


def test_every_line_has_its_test():
    text = (ROOT / "docs" / "allreduce.md").read_text()
    assert len(NAMED.findall(text)) > 30
    assert len(NAMED.findall((ROOT / "docs" / "numerics.md").read_text())) >= 7
