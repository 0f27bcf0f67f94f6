"""What a stranger can do to a run, a published model, a model to start from, and an export: as `hostile_models`."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from mtx.storage.run_files import MODEL_CONFIG, TOKENIZER_JSON, TOKENIZER_MODEL, WEIGHTS
from tests.reliability.hostile_changes import Change, config, huge, link, pipe, put, weights
from tests.reliability.hostile_files import PICKLE, safetensors, torch_pickle
from tests.reliability.hostile_models import MATRIX

Cases = dict[str, tuple[Change, str]]
RUN_CONFIG, CHECKPOINT = "config.yaml", "checkpoints/step-00000001"


def run_text(old: bytes, new: bytes) -> Change:
    return lambda run: put(RUN_CONFIG, (run / RUN_CONFIG).read_bytes().replace(old, new))(run)


def elsewhere(run: Path) -> None:
    outside = run.parent.parent / "config.yaml"
    shutil.move(run / RUN_CONFIG, outside)
    (run / RUN_CONFIG).symlink_to(outside)


def laughs() -> bytes:
    """Lists of nine aliases of lists of nine aliases, 30 deep."""
    lines = [b"a%d: &a%d [%s]\n" % (i, i, b"*a%d," % (i - 1) * 9) for i in range(1, 30)]
    return b"a0: &a0 [x]\n" + b"".join(lines)


RUNS: Cases = {
    "a tag": (put(RUN_CONFIG, b"model: !!python/object/apply:os.system ['touch canary']\n"), "expected a section"),
    "a tag in a value": (put(RUN_CONFIG, b"seed: !!python/object/apply:os.getpid []\n"), "seed"),
    "a module": (put(RUN_CONFIG, b"data: !!python/module:os\n  src: !!python/name:os.system\n"), "data"),
    "an alias": (put(RUN_CONFIG, b"data: &a\n  src: de\nmodel: *a\n"), "alias"),
    "a billion laughs": (put(RUN_CONFIG, laughs()), "alias"),
    "100,000 lists": (put(RUN_CONFIG, b"[" * 100_000), "nested too deeply"),
    "a megabyte": (put(RUN_CONFIG, b"#" * (1 << 20)), "too large for a configuration file"),
    "10^9 layers": (run_text(b"encoder_layers: 1", b"encoder_layers: 1000000000"), "num_encoder_layers"),
    "a width of 65,536": (run_text(b"d_model: 16", b"d_model: 65536"), "expected torch.float32 [65536]"),
    "a configuration elsewhere": (elsewhere, "a link to another directory"),
    "pickled weights": (put(f"{CHECKPOINT}/{WEIGHTS}", torch_pickle()), WEIGHTS),
    "not a number": (weights(lambda t: t[MATRIX].fill_(torch.nan), f"{CHECKPOINT}/{WEIGHTS}"), "not finite"),
    "a pickled state": (put(f"{CHECKPOINT}/state.json", PICKLE), "invalid JSON"),
    "a state that is /dev/zero": (link(f"{CHECKPOINT}/state.json", "/dev/zero"), "missing file"),
    "a state that is a pipe": (lambda run: pipe(f"{CHECKPOINT}/state.json")(run) and None, "missing file"),
    "weights elsewhere": (link(f"{CHECKPOINT}/{WEIGHTS}", "/etc/passwd"), "a link to another directory"),
    "a pickled tokenizer": (put(f"data/{TOKENIZER_MODEL}", PICKLE), "not a SentencePiece model"),
}  # fmt: skip
RUNS_ASKED_WRONGLY = (  # exit code 2: a configuration is what a user writes
    "a tag", "a tag in a value", "a module", "an alias", "a billion laughs", "100,000 lists", "a megabyte",
    "10^9 layers",
)  # fmt: skip


def published_config(**values: Any) -> Change:
    def change(directory: Path) -> None:
        path = directory / MODEL_CONFIG
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return change


PUBLISHED: Cases = {
    "pickled weights": (put(WEIGHTS, torch_pickle()), WEIGHTS),
    "a header of 2^63 bytes": (put(WEIGHTS, safetensors({}, length=1 << 63)), "a header of"),
    "not a number": (weights(lambda tensors: tensors["model.shared.weight"].fill_(torch.nan)), "not finite"),
    "weights elsewhere": (link(WEIGHTS, "/etc/passwd"), "a link to another directory"),
    "a configuration elsewhere": (link(MODEL_CONFIG, "/etc/passwd"), "a link to another directory"),
    "a model elsewhere": (link("source.spm", "/etc/passwd"), "a link to another directory"),
    "a width of 10^9": (published_config(d_model=10**9), "d_model"),
    "10^9 layers": (published_config(encoder_layers=10**9), "encoder_layers"),
    "256 layers of 16,384": (published_config(encoder_layers=256, d_model=1 << 14), "expected"),
    "heads of text": (published_config(encoder_attention_heads="os.system('touch canary')"), "heads"),
    "code to run": (published_config(auto_map={"AutoModel": "evil.Model"}, d_model=-1), "d_model"),
    "a pickled configuration": (put(MODEL_CONFIG, PICKLE), "invalid JSON"),
    "a million lists": (put("generation_config.json", b"[" * (1 << 20)), "nested too deeply"),
    "20 MB of vocabulary": (put("vocab.json", b" " * (20 << 20)), "expected at most"),
    "a vocabulary of huge ids": (put("vocab.json", b'{"a": 1' + b"0" * 4000 + b', "b": 2, "c": 3}'), "vocab.json"),
    "a pickled tokenizer": (put("source.spm", PICKLE), "not a SentencePiece model"),
    "a pipe": (lambda directory: pipe("target.spm")(directory) and None, "target.spm: missing file"),
    "a path for a language": (put("tokenizer_config.json", b'{"source_lang": "../../x"}'), "source_lang"),
}  # fmt: skip

STARTS: Cases = {
    "pickled weights": (put(WEIGHTS, torch_pickle()), WEIGHTS),
    "not a number": (weights(lambda tensors: tensors[MATRIX].fill_(torch.nan)), "not finite"),
    "1,000 layers": (config(num_encoder_layers=1000), "missing tensor encoder"),
    "weights elsewhere": (link(WEIGHTS, "/etc/passwd"), "a link to another directory"),
    "a path for a language": (config(src="../../x"), "src: "),
    "a pickled tokenizer": (put(TOKENIZER_MODEL, PICKLE), "not a SentencePiece model"),
    "a tokenizer elsewhere": (link(TOKENIZER_JSON, "/etc/passwd"), "a link to another directory"),
}


EXPORTS: Cases = {  # model.bin is CTranslate2's to parse
    "pickle": (put("model.bin", torch_pickle()), "CTranslate2 cannot load it"),
    "nothing in it": (put("model.bin", b""), "CTranslate2 cannot load it"),
    "10 TB": (huge("model.bin"), "expected at most"),
    "half of it": (lambda d: put("model.bin", (d / "model.bin").read_bytes()[:20_000])(d), "cannot load it"),
    "a smaller vocabulary": (put("shared_vocabulary.json", b'["</s>", "<unk>"]'), "not the vocabulary"),
    "weights elsewhere": (link("model.bin", "/etc/passwd"), "a link to another directory"),
    "a description that is a pipe": (lambda d: pipe("tokenizer.json")(d), "missing file"),
}  # fmt: skip
