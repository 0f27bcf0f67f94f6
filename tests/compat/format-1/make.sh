# Made the directories beside this file, in an empty directory that holds text.py and marian.py too.
set -e
mtx() { OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES= python -m mtx "$@"; }
python text.py
text="data.train=train.tsv data.valid=valid.tsv data.test=test.tsv data.src=en data.tgt=de data.max_tokens=32"
size="model.preset=tiny model.d_ff=32 model.num_heads=2 model.num_encoder_layers=1 model.num_decoder_layers=1"
tokenizer="tokenizer.vocab_size=360"
training="precision=fp32 device=cpu training.batch_tokens=256 training.warmup_steps=40 training.learning_rate=0.01"

mtx train $text $tokenizer $size $training model.d_model=16 model.dropout=0 training.max_steps=500 \
  training.checkpoint_every=50 training.validate_every=250 training.average_last=2 run_dir=finished
echo "the big child hears music" | mtx translate finished --engine ctranslate2

second="data.train=train.tsv data.src=en data.tgt=de data.max_tokens=32 $tokenizer $size $training seed=2 model.d_model=16 model.dropout=0.1 model.norm=pre model.activation=swish
  model.tie=target model.output_bias=true training.micro_batch_tokens=128 training.max_steps=120
  training.checkpoint_every=30 training.validate_every=60 training.average_last=3"
mtx train $second run_dir=whole
mtx train $second run_dir=interrupted &
until grep -q '"step": 70' interrupted/metrics.jsonl 2> /dev/null; do sleep 0.01; done
kill -TERM "$(cut -d ' ' -f 2 interrupted/run.lock)"
wait || true

mtx train $text $tokenizer $size $training seed=3 model.d_model=8 model.dropout=0 model.positions=learned \
  model.norm=pre model.activation=gelu model.tie=none training.max_steps=1200 training.checkpoint_every=50 \
  training.validate_every=200 run_dir=learned-run
cp -r learned-run/model learned

python marian.py
mtx import marian -o untrained
mtx train $text $training training.init_from=untrained training.max_steps=600 training.checkpoint_every=50 \
  training.validate_every=200 run_dir=tuned
mtx export tuned --to huggingface -o tuned-huggingface
mtx import tuned-huggingface -o imported

rm -f finished/report.html interrupted/report.html
