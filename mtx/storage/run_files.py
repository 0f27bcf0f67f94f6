"""Every file name in a run directory and in a model directory. Nothing here touches the disk."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

# In a model directory; a checkpoint has the first three, a data directory the tokenizer's
WEIGHTS = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"
MODEL_CONFIG = "config.json"
TOKENIZER_MODEL = "tokenizer.model"
TOKENIZER_SRC_MODEL, TOKENIZER_TGT_MODEL = "tokenizer.src.model", "tokenizer.tgt.model"
TOKENIZER_JSON = "tokenizer.json"
SCORES = "scores.json"
CARD = "README.md"
# In a data directory
TRAIN_STORE = "train.arrow"
VALID_STORE = "valid.arrow"
REPORT = "report.json"
SETTINGS = "settings.json"  # the fixed settings of the run
TERMS = "terms.tsv"  # with data.terms
# In evaluation/NAME
SOURCE_TEXT = "src.txt"
HYPOTHESIS_TEXT = "hyp.txt"
REFERENCE_TEXT = "ref.txt"
# In an export to CTranslate2
EXPORT_CONFIG = "mtx.json"
EXPORT_EXAMPLE = "example.py"
CTRANSLATE2_WEIGHTS, CTRANSLATE2_CONFIG = "model.bin", "config.json"
CTRANSLATE2_VOCABULARY = "shared_vocabulary.json"

# In a MarianMT directory, as transformers has it and an export to Hugging Face is
MARIAN_SOURCE_MODEL = "source.spm"


def test_store(name: str) -> str:
    """The file name of the token store of the test set `name`, inside a data directory."""
    return f"test.{name}.arrow"


def _entry(name: str) -> cached_property[Path]:
    """The path of a file or directory directly inside a run directory."""

    def path(layout: "RunLayout") -> Path:
        return layout.root / name

    return cached_property(path)


@dataclass(frozen=True)
class RunLayout:
    """The paths inside the run directory `root`."""

    root: Path

    config = _entry("config.yaml")
    chosen = _entry("chosen.json")  # what `auto` settings became on this machine
    lock = _entry("run.lock")
    status = _entry("status.json")
    refused = _entry("refused.tsv")  # sentence pairs of a step whose loss was not finite
    metrics = _entry("metrics.jsonl")
    tensorboard = _entry("tensorboard")
    report = _entry("report.html")
    sources = _entry("sources.json")  # the files of text that data/ was made from
    data = _entry("data")
    checkpoints = _entry("checkpoints")
    model = _entry("model")
    evaluation = _entry("evaluation")
    distilled = _entry("distilled")  # what a student learns from: its teacher's text and translations
    before = _entry("before")  # as evaluation/, by the model of training.init_from

    def checkpoint(self, step: int) -> Path:
        """The directory of the checkpoint of `step`."""
        return self.checkpoints / f"step-{step:08d}"


def checkpoint_step(path: Path) -> int | None:
    """The step of a checkpoint directory; None if the directory has another name."""
    prefix, _, digits = path.name.partition("-")
    return int(digits) if prefix == "step" and digits.isdecimal() else None
