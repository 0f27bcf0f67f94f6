#!/usr/bin/env bash
# Traces and compiles the training step and the search for CUDA without a GPU (tests/traced), for compute capability
# 8.0 and 9.0, and compares the numbers of Triton's kernels with references in its interpreter. VENV_DIR is a virtual
# environment with the CUDA build of torch, several GB; it is made where none is.
#   scripts/traced/check_traced.sh VENV_DIR [TORCH_VERSION]
set -euo pipefail
if [ $# -lt 1 ]; then sed -n '2,5s/^# *//p' "$0" >&2; exit 2; fi
venv=$(realpath -m "$1")
cd "$(dirname "$0")/../.."
version=${2:-$(sed -n 's/^torch==//p' constraints.txt)} python=$venv/bin/python

refuse_cpu_build() { # VERSION
    if [[ $1 == *+cpu ]]; then
        echo "error: pip finds torch $1, a build for CPUs; PIP_FIND_LINKS= PIP_CONFIG_FILE=/dev/null $0 $venv $version" \
            "takes it from the public index" >&2
        exit 1
    fi
}

torch_version() { "$python" -c 'from importlib.metadata import version; print(version("torch"))' 2> /dev/null; }

if ! torch_version > /dev/null; then
    [ -x "$python" ] || python3 -m venv "$venv"
    refuse_cpu_build "$("$python" -m pip install --quiet --disable-pip-version-check --dry-run --no-deps --report - \
        "torch==$version" | "$python" -c 'import json, sys; print(json.load(sys.stdin)["install"][0]["metadata"]["version"])')"
    "$python" -m pip install --quiet --disable-pip-version-check "torch==$version" pytest .
fi
installed=$(torch_version)
refuse_cpu_build "$installed"
if [ $# -gt 1 ] && [ "${installed%%+*}" != "$version" ]; then
    echo "error: $venv has torch $installed, not $version; name another VENV_DIR" >&2
    exit 1
fi
export PYTHONPATH=.
"$python" -m pytest -q -p no:cacheprovider tests/unit/model/test_block_kernels.py \
    tests/unit/decoding/test_search_kernels.py tests/unit/first_light/test_candidates.py
for capability in 80 90; do
    echo "torch $installed, compute capability $capability"
    NO_GPU_CAPABILITY=$capability "$python" scripts/traced/no_gpu.py -m pytest -q -p no:cacheprovider tests/traced
done
