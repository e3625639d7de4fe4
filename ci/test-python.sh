#!/usr/bin/env bash
# The Python tests; arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
# Apart, because each has a conftest of its own.
.venv/bin/python -m pytest tests/python "$@"
.venv/bin/python -m pytest conformance/python "$@" || [ $? -eq 5 ] # none of these were asked for
