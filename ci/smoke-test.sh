#!/usr/bin/env bash
# ci/smoke-test.sh WHEEL: installs the wheel into an environment of its own and runs two ranks, in numpy and, where .venv
# has TensorFlow, in TensorFlow.
set -euo pipefail
cd "$(dirname "$0")/.."

wheel=$1
venv=build/smoke
python=.venv/bin/python
[ -x $python ] || { echo "smoke: no .venv: run make setup" >&2; exit 1; }
packages() { "$1" -c 'import sysconfig; print(sysconfig.get_path("platlib"))'; }

rm -rf $venv
$python -m venv $venv
$venv/bin/python -m pip --disable-pip-version-check install --quiet --no-deps "$wheel"
# What else is needed is found behind the new environment's own packages.
packages $python >"$(packages $venv/bin/python)/behind.pth"
TF_CPP_MIN_LOG_LEVEL=2 $venv/bin/foldcast run -n 2 -- $venv/bin/python ci/smoke_test.py
rm -rf $venv
