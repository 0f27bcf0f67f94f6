"""Every file name in a run directory and in a model directory. Nothing here touches the disk."""

from dataclasses import dataclass
from pathlib import Path

WEIGHTS = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"
MODEL_CONFIG = "config.json"
TOKENIZER_MODEL = "tokenizer.model"
TOKENIZER_SRC_MODEL, TOKENIZER_TGT_MODEL = "tokenizer.src.model", "tokenizer.tgt.model"
TOKENIZER_JSON = "tokenizer.json"
SCORES = "scores.json"
CARD = "README.md"
TRAIN_STORE = "train.arrow"
VALID_STORE = "valid.arrow"
REPORT = "report.json"
SOURCE_TEXT, HYPOTHESIS_TEXT, REFERENCE_TEXT = "src.txt", "hyp.txt", "ref.txt"
EXPORT_CONFIG = "mtx.json"
EXPORT_EXAMPLE = "example.py"
KEPT_EXPORT_PREFIX = "ctranslate2-"  # before the precision: the directory of an export that a model directory keeps
CTRANSLATE2_WEIGHTS, CTRANSLATE2_CONFIG = "model.bin", "config.json"
CTRANSLATE2_VOCABULARY = "shared_vocabulary.json"


def test_store(name: str) -> str:
    """Name of the store that holds the test set `name`, inside a data directory."""
    return f"test.{name}.arrow"


@dataclass(frozen=True)
class RunLayout:
    """The names inside one run directory (DESIGN: "A run directory")."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.yaml"

    @property
    def chosen(self) -> Path:
        return self.root / "chosen.json"

    @property
    def lock(self) -> Path:
        return self.root / "run.lock"

    @property
    def status(self) -> Path:
        return self.root / "status.json"

    @property
    def refused(self) -> Path:
        return self.root / "refused.tsv"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        return self.root / "tensorboard"

    @property
    def report(self) -> Path:
        return self.root / "report.html"

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def model(self) -> Path:
        return self.root / "model"

    @property
    def evaluation(self) -> Path:
        return self.root / "evaluation"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:08d}"


def checkpoint_step(path: Path) -> int | None:
    """The step of a checkpoint directory, or None where the name is not one."""
    prefix, _, digits = path.name.partition("-")
    return int(digits) if prefix == "step" and digits.isdecimal() else None
