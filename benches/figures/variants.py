"""The engine without a part of it, to measure what the part costs: there is no switch for it in the product.

A variant is a copy of the sources, in build/figures, in which some lines are replaced; a line that is not there any more, word for
word, is an error. The engine as it is gets a copy too, so that all are built in the same way.
"""

import os
import shutil
import subprocess
from functools import lru_cache

import measured

PLACE = measured.ROOT / "build/figures"
EXECUTION = "crates/engine/src/execution.rs"

VARIANTS = {
    "as it is": {},
    # Neither describes its call nor compares hashes; that the headers are awaited stays, since it is how the data meet.
    "without the check": {
        EXECUTION: [
            ("if state.described != Some(hash) {", "if false {"),
            (
                "ground.windows.publish_header(state.channel, self.sequence, hash);",
                "ground.windows.publish_header(state.channel, self.sequence, 0);",
            ),
            ("self.differs |= other != hash;", "let _ = (other, hash);"),
            ("if self.differs {", "if false {"),
        ]
    },
    # Neither the beginning nor the end of a call is noted.
    "without the notes": {
        EXECUTION: [
            (
                "ground.windows.note_begun(state.channel, self.sequence, call.prepared.summary, call.ticket);",
                "",
            ),
        ],
        "crates/foldcast/src/blocking.rs": [("=> journal.done(number),", "=> {}")],
    },
}


@lru_cache
def build():
    """Builds all of them, and gives the program of the figures by the variant's name."""
    return {name: _build(name, changes) for name, changes in VARIANTS.items()}


def _build(name, changes):
    slug = name.replace(" ", "-")
    copy = PLACE / slug
    for part in ("crates", "bindings", "benches/peers/driver", "conformance"):
        _copy(measured.ROOT / part, copy / part)
    for part in ("Cargo.toml", "Cargo.lock"):
        _write(copy / part, (measured.ROOT / part).read_bytes())
    for path, lines in changes.items():
        text = (measured.ROOT / path).read_text()
        for old, new in lines:
            if text.count(old) != 1:
                raise measured.Failed(
                    f"{path} has {old!r} {text.count(old)} times: bring benches/figures/variants.py up to date"
                )
            text = text.replace(old, new)
        _write(copy / path, text.encode())
    environment = {**os.environ, "CARGO_TARGET_DIR": str(PLACE / "target")}
    command = ["cargo", "build", "--release", "--locked", "--quiet", "-p", "foldcast", "--example", "figures"]
    # Its warnings are of what nobody uses any more in a variant.
    built = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    if built.returncode:
        raise measured.Failed(f"the engine {name} does not build\n{built.stderr[-2000:]}")
    program = PLACE / f"figures-{slug}"
    shutil.copy2(PLACE / "target/release/examples/figures", program)
    return program


def _copy(source, target):
    for file in source.rglob("*"):
        if file.is_file():
            _write(target / file.relative_to(source), file.read_bytes())


def _write(path, content):
    # What has not changed keeps its time, so that it is not built again.
    if not path.exists() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
