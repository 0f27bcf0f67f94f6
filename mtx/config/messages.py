"""Messages about a wrong configuration: unknown keys with suggestions, and pydantic's errors key by key."""

import difflib
import re
from collections.abc import Iterable

from pydantic import ValidationError

from mtx.config.schema import NAME_ONLY, WITH_KEYS, Config, TrainText, key_names

# What people who come from other toolkits type, after the keys of mtx, and the names of options and arguments that
# mean the same. max_tokens of fairseq is the size of a batch.
_NAMES = """
run_dir output: output output_dir out_dir save_dir exp_dir log_dir out outfile out_file output_file output_path pred
run_dir model teacher models: model_dir checkpoint_dir model_path model_name model_name_or_path checkpoint ckpt m
settings: config config_file cfg recipe c
settings file src mono systems: input input_file infile in_file i
seed: random_seed rng_seed manual_seed
device: gpu cuda use_cuda use_gpu accelerator
precision: fp16 bf16 fp32 int8 amp mixed_precision half dtype compute_type quantization
data.src src file from_: source src src_file
data.src from_: source_lang source_language src_lang
data.tgt tgt to: target trg tgt target_lang target_language tgt_lang trg_lang
data.src data.tgt: lang langs language languages lang_pair language_pair direction
data.directions: lang_pairs language_pairs pairs
data.dir: data_dir data_path
data.train: train_data train_file train_set training_data corpus
data.valid: dev dev_data dev_set dev_file val validation valid_data valid_set validation_data eval_data
data.test: test_data test_set test_file
data.max_tokens training.batch_tokens batch_tokens: max_tokens
data.max_tokens max_length: max_len max_length max_seq_len max_seq_length max_sent_length block_size max_positions
tokenizer.vocab_size: bpe bpe_size bpe_merges num_merges vocab vocabulary vocabulary_size src_vocab_size
model.preset: size model_size
model.architecture model.preset: arch model_type
model.num_encoder_layers model.num_decoder_layers: layers num_layers n_layers depth
model.d_model: hidden hidden_size hidden_dim dim emb emb_dim emb_size embed_dim embedding_dim embedding_size n_embd
model.d_ff: ff ff_size ffn ffn_dim ffn_size ffn_embed_dim feed_forward dim_feedforward intermediate_size
model.num_heads: heads n_heads nhead attention_heads num_attention_heads
model.norm: prenorm pre_norm postnorm layer_norm norm_first normalize_before
model.tie: tied_embeddings tie_embeddings tie_weights share_embeddings shared_embeddings share_all_embeddings
training.init_from: pretrained pretrained_model finetune fine_tune load_from train_from warm_start
training.max_epochs: epochs epoch max_epoch num_epochs n_epochs num_train_epochs train_epochs
training.max_steps: steps num_steps train_steps total_steps updates max_update max_updates iterations
training.time_limit: max_time time max_hours timeout
training.batch_tokens batch_tokens: batch batch_size train_batch_size per_device_train_batch_size bsz tokens_per_batch
training.learning_rate: lr peak_lr max_lr base_lr
training.warmup_steps: warmup warmup_updates num_warmup_steps lr_warmup
training.clip_norm: clip grad_clip clip_grad clip_grad_norm gradient_clip gradient_clipping max_grad_norm
training.validate_every: eval_every valid_every eval_steps valid_steps eval_interval valid_freq validation_freq
training.checkpoint_every: save_every save_steps save_interval save_freq checkpoint_steps checkpoint_freq
training.average_last: average averaging avg_checkpoints average_checkpoints checkpoint_averaging
training.patience: early_stop early_stopping early_stopping_patience
decoding.beam_size beam_size: beam beams num_beams beam_width
decoding.length_penalty length_penalty: lenpen len_penalty alpha
n_best: nbest num_return_sequences num_hypotheses
threads: num_threads n_threads cpu_threads
ref: reference references
hyp: hypothesis hypotheses sys predictions
"""
KEYS_FOR = {name: keys.split() for keys, names in re.findall("(.+): (.+)", _NAMES) for name in names.split()}

_NOT_THERE = {
    "update_freq accum_count grad_accum gradient_accumulation gradient_accumulation_steps": "a step has "
    "training.batch_tokens target tokens; gradients are accumulated automatically if memory is short",
    "text sentence": 'a text is piped: echo "a text" | mtx translate MODEL',
    "wandb mlflow comet neptune": "mtx does not support such services; training.tensorboard=true writes metrics for "
    "TensorBoard",
    "workers num_workers n_workers": "there is no such setting: a thread prepares the batches while the model trains",
    "shuffle": "there is no such setting: every epoch has its own random order, derived from the seed",
    "optimizer optim adam betas adam_betas scheduler lr_scheduler lr_schedule schedule lr_decay": "the "
    "optimizer is Adam, the schedule Eq. 3 of the paper; training.learning_rate and training.warmup_steps can be set",
    "weight_decay l2 attention_dropout attn_dropout": "mtx has neither weight decay nor dropout on attention weights; "
    "model.dropout and training.label_smoothing regularise",
    "ema": "mtx has no moving average of weights; training.average_last sets checkpoint averaging",
    "lower lowercase lower_case truecase": "mtx does not change letter case; convert the files beforehand",
    "log_every log_interval log_steps logging_steps report_every": "there is no such setting: metrics.jsonl in the run "
    "directory has every step",
    "resume resume_from continue": "there is no such setting: rerun the same command to resume a run",
    "devices gpus num_gpus distributed ddp world_size nodes": "mtx train --device N trains on N devices of a "
    "machine, torchrun on several machines; --device cuda:1 names one device, and --shard K/N of mtx translate and "
    "back-translate divides a text",
}
NOT_THERE = {name: text for names, text in _NOT_THERE.items() for name in names.split()}


_NEAR = 0.75  # similarity of names that differ in one letter of four
_SIMILAR = 0.63  # and of a name with half of another: multi30k is similar to multi30k-en-de


def nearest(name: str, names: Iterable[str], similarity: float = _SIMILAR) -> str | None:
    """The most similar of `names`; None if none is similar."""
    return next(iter(difflib.get_close_matches(name, names, 1, similarity)), None)


def keys_meant(name: str, names: Iterable[str]) -> list[str]:
    """The keys among `names` that an unknown key may mean: the name in other programs, else the nearest spelling.

    That is the same key of another section, else one with the same letters, or a similar one, of its own section, or of
    any: `training.lr` is read as `lr`.
    """
    typed = _normalize_key(name)
    if keys := [key for key in KEYS_FOR.get(typed, []) if key in names]:
        return keys
    section = name.rpartition(".")[0]
    all_keys = [*map(_drop_section, names)]
    section_keys = [_drop_section(key) for key in names if key.startswith(f"{section}.")]
    closest = typed if typed in all_keys else None
    for group, similarity in ((section_keys, _SIMILAR), (all_keys, _NEAR)):
        with_same_letters = [key for key in group if sorted(key) == sorted(typed)]
        closest = closest or nearest(typed, with_same_letters, 0) or nearest(typed, group, similarity)
    meant_key = nearest(name, [key for key in names if _drop_section(key) == closest], 0)
    return [meant_key] if meant_key else []


def about_unknown(name: str, names: Iterable[str]) -> str:
    """The end of a message about an unknown key: the key that may be meant, or what mtx has instead; may be empty."""
    if instead := NOT_THERE.get(_normalize_key(name)):
        return f"; {instead}"
    meant = keys_meant(name, names)
    unit = "; mtx counts target tokens, not sentences" if meant == ["training.batch_tokens"] else ""
    return f", did you mean {' and '.join(meant)}?{unit}" if meant else ""


def _drop_section(name: str) -> str:
    return name.rpartition(".")[2]


def _normalize_key(name: str) -> str:
    return _drop_section(name).lower().replace("-", "_")


# What was expected, for each type of pydantic error; limits come from the context of the error.
_EXPECTED = {
    **dict.fromkeys(["int_parsing", "int_parsing_size", "int_type", "int_from_float"], "a whole number"),
    **dict.fromkeys(["float_parsing", "float_type"], "a number"),
    **dict.fromkeys(["bool_parsing", "bool_type"], "true or false"),
    "finite_number": "a finite number",
    "string_type": "text",
    "string_unicode": "text in UTF-8",
    "string_too_short": "at least {min_length} character",
    "tuple_type": "a list",
    "too_long": "at most {max_length} items",
    "greater_than": "more than {gt:.15g}",
    "greater_than_equal": "at least {ge:.15g}",
    "less_than": "less than {lt:.15g}",
    "less_than_equal": "at most {le:.15g}",
    "literal_error": "{expected}",
}


def describe_problems(error: ValidationError, lines: dict[str, str]) -> list[str]:
    """pydantic's errors, one for each key, as `key: expected ..., got ...` after the key's path:line in `lines`.

    Errors of a union become `expected auto or a whole number, got 'x'`; one that names several keys itself has no key.
    """
    texts: dict[tuple[str, str], dict[str, None]] = {}  # by key and value, without duplicates and in order
    for item in error.errors():
        key = _key_at(item["loc"])
        got = ""
        text = item["msg"].removeprefix("Value error, ")
        match item["type"]:
            case "missing":
                text = "is missing"
            case "extra_forbidden":
                names = [*Config.model_fields, *key_names()]
                if "[" in key:
                    names = [f"{key.rpartition('.')[0]}.{name}" for name in TrainText.model_fields]
                text = f"unknown key{about_unknown(key, names)}"
            case kind if kind in _EXPECTED or text.startswith("expected "):
                got = f", got {shown(item['input'])}"
                text = _EXPECTED.get(kind, text).format(**item.get("ctx", {})).replace("'", "")
            case _ if key not in key_names():
                key = ""
        texts.setdefault((key, got), {})[text.removeprefix("expected ")] = None
    problems = []
    for (key, got), key_texts in texts.items():
        section = key.rpartition(".")[0]
        place = lines.get(section if "is missing" in key_texts and section else key)
        text = f"expected {' or '.join(key_texts)}{got}" if got else "; ".join(key_texts)
        problems.append(": ".join(filter(None, (place, key, text))))
    return problems


def _key_at(location: Iterable[str | int]) -> str:
    """The key of a pydantic location, such as `data.train[0].weight`; parts after it name members of a union."""
    keys = key_names()
    key = ""
    for part in location:
        if isinstance(part, int):
            key += f"[{part}]"
        elif part not in (NAME_ONLY, WITH_KEYS):
            if key in keys:
                break
            key = f"{key}.{part}" if key else part
    return key


def shown(value: object) -> str:
    """A value in a message: a section, a list, a number as it was written, or other text in quotes."""
    if isinstance(value, str) and re.fullmatch(r"[+-]?[\d.]+([eE][+-]?\d+)?", value):
        return value
    if isinstance(value, dict):
        return "a section"
    return "a list" if isinstance(value, list) else repr(value)
