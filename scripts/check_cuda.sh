#!/usr/bin/env bash
# Checks mtx on a machine with CUDA: `mtx doctor`, the tests that need CUDA or triton, the time of attention kernels,
# training and translation speed beside other systems, a run on two GPUs, then whole runs with their wall time, score,
# speed and stalls. It takes half an hour or more. STAGES names the stages to run. Without a GPU, this tries most:
#   DEVICE=cpu PRESETS=tiny TRANSLATE_PRESET=tiny TRANSLATE_LINES=64 KERNEL_TOKENS=512 SECONDS_EACH=2
#   scripts/check_cuda.sh [PYTHON] [MULTI30K_DIR [LOWERCASED_MULTI30K_DIR]]
#   STAGES="doctor tests kernels" scripts/check_cuda.sh
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-python3} multi30k=${2:-} lowercased=${3:-}
stages=" ${STAGES:-doctor tests kernels speed translate devices demo multi30k lc long} "
device=${DEVICE:-cuda} seconds=${SECONDS_EACH:-20} long_limit=${LONG_LIMIT:-10m}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
export PYTHONPATH=. PYTHONUNBUFFERED=1
mkdir "$out/runs"
has() { # STAGE [TEXT]: whether the stage runs; it is told if it was asked for and its text was not given
    [[ $stages == *" $1 "* ]] || return 1
    if [ $# -gt 1 ] && [ -z "$2" ]; then echo "$1: left out, its text was not given" >&2; return 1; fi
    num_stages=$((num_stages + 1))
}
num_stages=0
"$python" -c "import sys; from mtx.model.device import find_device; print(find_device(sys.argv[1]), file=sys.stderr)" "$device"
train() { # NAME RECIPE SETTINGS...: trains a run and writes its wall time
    local name=$1
    shift
    local started=$EPOCHREALTIME
    "$python" -m mtx train "$@" device="$device" run_dir="$out/runs/$name"
    echo "$started $EPOCHREALTIME" > "$out/$name.time"
}

if has doctor; then "$python" -m mtx doctor "$out" --device "$device"; fi
if has tests; then
    "$python" -m pytest -q -rs tests/unit/model/test_block_kernels.py
    if [ "${device%%:*}" = cuda ]; then "$python" -m pytest -q -rs -m gpu tests/gpu; fi
fi
if has kernels; then "$python" scripts/bench_attention.py --device "$device" --tokens "${KERNEL_TOKENS:-25088}"; fi
if has speed; then
    for preset in ${PRESETS:-base big}; do
        "$python" scripts/bench_train.py --device "$device" --preset "$preset" --seconds "$seconds" --json "$out/$preset.json"
        "$python" - "$out/$preset.json" "$device" <<'PY'
import json, sys
from mtx.model.device import find_device, peak_flops
row = next(row for row in json.load(open(sys.argv[1]))["rows"] if row["system"] == "mtx")
rate, peak = row["tgt_tokens_per_s"], peak_flops(find_device(sys.argv[2]), "bf16")
share = f"{rate * row['model_flops_per_tgt_token'] / peak:.1%}" if peak else "an unknown share"
print(f"mtx: {share} of the peak in bf16 that the maker states; the paper's base run (100,000 steps of 25,000 target "
      f"tokens) would take {2.5e9 / rate / 60:.0f} min at this rate")
PY
    done
fi
if has translate; then # random weights; random words where no text is given
    text=$multi30k/train.en.gz lines=${TRANSLATE_LINES:-20000}
    if [ -z "$multi30k" ]; then
        text=$out/words.txt
        "$python" - "$text" "$lines" <<'PY'
import random, sys
rng = random.Random(1)
words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(20_000)]
with open(sys.argv[1], "w") as file:
    for _ in range(int(sys.argv[2])):
        print(" ".join(rng.choices(words, k=max(2, min(60, int(rng.lognormvariate(2.9, 0.5)))))), file=file)
PY
    fi
    "$python" scripts/bench_translate.py --preset "${TRANSLATE_PRESET:-base}" --src "$text" --lines "$lines" \
        --systems mtx-torch-bf16,mtx-torch-fp32,transformers --repeats 1 --device "$device" --json "$out/translate.json"
fi
if has devices; then
    if [ "${device%%:*}" = cuda ] && [ "$("$python" -c "import torch; print(torch.cuda.device_count())")" -lt 2 ]; then
        echo "devices: left out: there is one GPU, and NCCL takes no two processes on one" >&2
    else
        train devices demo --devices 2
    fi
fi
if has demo; then train demo demo; fi
if has multi30k "$multi30k"; then train multi30k multi30k-en-de data.dir="$multi30k"; fi
if has lc "$lowercased"; then
    export TORCHINDUCTOR_CACHE_DIR="$out/inductor"
    train lc-cold multi30k-en-de-lc data.dir="$lowercased"
    train lc-warm multi30k-en-de-lc data.dir="$lowercased"
fi
if has long "$multi30k"; then # does the speed stay the same, and what does a checkpoint cost?
    train long multi30k-en-de data.dir="$multi30k" model.preset="${LONG_PRESET:-base}" training.batch_tokens=25000 \
        training.max_steps=1000000 training.validate_every=1000000 training.checkpoint_every="${LONG_EVERY:-500}" \
        training.time_limit="$long_limit"
fi
if [ "$num_stages" = 0 ]; then
    echo "error: nothing was measured: STAGES names no stage that can run" >&2
    exit 1
fi
"$python" - "$out" <<'PY'
import json, pathlib, statistics, sys
out = pathlib.Path(sys.argv[1])
print(f"{'run':10} {'wall s':>7} {'device':7} {'kernel':7} {'compiled':8} {'micro':>7} {'tgt tok/s: 5%':>13} {'median':>9} "
      f"{'95%':>9} {'of peak':>7} {'worst stall':>11}  scores")
for run in sorted((out / "runs").iterdir()):
    started, ended = map(float, (out / f"{run.name}.time").read_text().split())
    events = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    chosen = json.loads((run / "chosen.json").read_text())
    windows = [e for e in events if e["event"] == "train"]
    windows = windows[2:] or windows
    rates = sorted(e["tgt_tokens_per_s"] for e in windows)
    low, high = (rates[int(share * (len(rates) - 1))] for share in (0.05, 0.95))
    used = [e["utilisation"] for e in windows if "utilisation" in e]
    share = f"{statistics.median(used):.1%}" if used else "unknown"
    stall = max((e["stall_s"] for e in events if e["event"] == "checkpoint"), default=0.0)
    scores = json.loads((run / "model" / "scores.json").read_text())
    shown = ", ".join(f"{k} {v['bleu']['score']:.2f}" for k, v in scores.items() if k not in ("format", "run"))
    print(f"{run.name:10} {ended - started:7.0f} {chosen['device']:7} {chosen['kernel']:7} {chosen['compile']!s:8} "
          f"{chosen['micro_batch_tokens']:7,} {low:13,.0f} {statistics.median(rates):9,.0f} {high:9,.0f} {share:>7} "
          f"{stall * 1e3:8.0f} ms  {shown}")
PY
