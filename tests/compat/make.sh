# Makes the files of a version, with the mtx that `python -m mtx` starts: bash tests/compat/make.sh 1.0
set -e
cd "$(dirname "$0")"
files=$(pwd)/${1:?expected a version, such as 1.0}
[ ! -e "$files" ] || { echo "error: $files exists; files of a released version stay as they are" >&2; exit 2; }
new=$(mktemp -d)
export OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES= XDG_CACHE_HOME=$new/cache
python names.py > "$new/names.txt"
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
  training.learning_rate=0.03 training.max_steps=240 training.checkpoint_every=240 training.validate_every=240 \
  training.average_last=1 training.label_smoothing=0 run_dir=run
python -m mtx export run --to ctranslate2 -o ctranslate2
python -m mtx export run --to huggingface -o huggingface
rm -rf run/report.html run/sources.json
sed -i -e '/"event": "train"/d' -e 's/"machine": "[^"]*"/"machine": ""/' -e 's/"platform": "[^"]*"/"platform": ""/' run/metrics.jsonl
sed -i 's/"host": "[^"]*"/"host": "host"/' run/status.json
sed -i 's/ on .* since / on host since /' run/run.lock
mkdir "$files"
mv run ctranslate2 huggingface names.txt "$files"
rm -r "$new"
