#!/usr/bin/env bash
# One command on a machine with CUDA: the tests that need it, then the demo and, where its text is, Multi30k, with their scores and speed.
#   scripts/check_cuda.sh [PYTHON] [MULTI30K_DIR]
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-python3}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
export PYTHONPATH=. PYTHONUNBUFFERED=1
"$python" -m pytest -q -m gpu tests/gpu
"$python" -m mtx train demo device=cuda run_dir="$out/demo"
if [ $# -ge 2 ]; then
    "$python" -m mtx train multi30k-en-de data.dir="$2" device=cuda run_dir="$out/multi30k"
fi
"$python" - "$out" <<'PY'
import json, pathlib, statistics, sys
print(f"{'run':12} {'device':8} {'precision':9} {'kernel':8} {'target tokens/s (median)':>24}  scores")
for run in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    events = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    chosen = json.loads((run / "chosen.json").read_text())
    speed = statistics.median(e["tgt_tokens_per_s"] for e in events if e["event"] == "train")
    scores = json.loads((run / "model" / "scores.json").read_text())
    shown = ", ".join(f"{k} {v['bleu']['score']:.2f}" for k, v in scores.items() if k not in ("format", "run"))
    print(f"{run.name:12} {chosen['device']:8} {chosen['precision']:9} {chosen['kernel']:8} {speed:24,.0f}  {shown}")
PY
