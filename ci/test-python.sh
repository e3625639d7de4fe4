#!/usr/bin/env bash
# The Python tests; arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/python -m pytest tests/python conformance/python "$@"
