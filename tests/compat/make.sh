# Makes format-2/run anew, with the mtx that `python -m mtx` starts: bash tests/compat/make.sh
set -e
cd "$(dirname "$0")"
home=$(pwd) new=$(mktemp -d)
export OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES= XDG_CACHE_HOME=$new/cache
cd "$new"
for line in red:rot big:gross old:alt new:neu; do
  for noun in dog:Hund bed:Bett tree:Baum hat:Hut; do
    printf '%s %s\t%s %s\n' "${line%:*}" "${noun%:*}" "${line#*:}" "${noun#*:}"
  done
done > text.tsv
cp text.tsv test.tsv
python -m mtx train data.train=text.tsv data.valid=text.tsv data.test=test.tsv data.src=en data.tgt=de data.max_tokens=16 \
  tokenizer.vocab_size=280 model.preset=tiny model.d_model=8 model.d_ff=8 model.num_heads=2 model.num_encoder_layers=1 \
  model.num_decoder_layers=1 model.dropout=0 precision=fp32 device=cpu training.batch_tokens=128 training.warmup_steps=20 \
  training.learning_rate=0.03 training.max_steps=160 training.checkpoint_every=160 training.validate_every=160 \
  training.average_last=1 training.label_smoothing=0 run_dir=run
rm -rf run/report.html run/sources.json
sed -i -e '/"event": "train"/d' -e 's/"machine": "[^"]*"/"machine": ""/' -e 's/"platform": "[^"]*"/"platform": ""/' run/metrics.jsonl
sed -i 's/"host": "[^"]*"/"host": "host"/' run/status.json
sed -i 's/ on .* since / on host since /' run/run.lock
rm -rf "$home/format-2/run"
mkdir -p "$home/format-2"
mv run "$home/format-2/run"
rm -r "$new"
