#!/usr/bin/env bash
# Runs the examples on four ranks and says loudly how it went.
set -euo pipefail
cd "$(dirname "$0")/.."

# TensorFlow says much about processors; what matters here is the result.
export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-2} TF_ENABLE_ONEDNN_OPTS=${TF_ENABLE_ONEDNN_OPTS:-0}

ranks=4
# TensorFlow's remarks about the machine would drown the results.
export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-2}
failed=0

# demo TITLE SCRIPT: the script checks its result itself; it must end well, and every rank must print its line.
demo() {
    local title=$1 script=$2 output
    echo
    echo "=== $title: foldcast run -n $ranks -- python $script"
    if output=$(.venv/bin/foldcast run -n $ranks -- .venv/bin/python "$script" 2>&1) &&
        [ "$(grep -o "^\[[0-9]*\] rank [0-9]* of $ranks:" <<<"$output" | sort -u | wc -l)" -eq $ranks ]; then
        echo "$output"
        echo "=== $title: PASSED on $ranks ranks"
    else
        echo "$output"
        echo "=== $title: FAILED"
        failed=1
    fi
}

demo "numpy" examples/numpy_allreduce.py
demo "TensorFlow" examples/allreduce_page.py
echo
if [ $failed -ne 0 ]; then
    echo "demo: FAILED"
    exit 1
fi
echo "demo: PASSED"
