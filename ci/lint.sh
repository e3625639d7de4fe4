#!/usr/bin/env bash
# Everything that is checked without running the code.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -x .venv/bin/python ]; then
    export PYO3_PYTHON=$PWD/.venv/bin/python
fi
max_lines=600

cargo fmt --all --check
cargo clippy --workspace --all-targets --locked -- -D warnings
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items --locked --quiet
.venv/bin/ruff check .
.venv/bin/ruff format --check .

long=$(git ls-files --cached --others --exclude-standard '*.rs' '*.py' '*.sh' |
    while read -r file; do
        if [ -f "$file" ] && [ "$(wc -l <"$file")" -gt $max_lines ]; then wc -l "$file"; fi
    done)
if [ -n "$long" ]; then
    echo "lint: files of more than $max_lines lines:" >&2
    echo "$long" >&2
    exit 1
fi
echo "lint: clean"
