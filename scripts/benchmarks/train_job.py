"""What one process of `train.py` trains: `train.py` makes the jobs, and `train_worker.py` does one."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Preset:
    """What a system trains: mtx's settings, target tokens per step, and the number of ids if they are random."""

    settings: tuple[str, ...]
    batch_tokens: int
    num_ids: int


PRESETS = {
    "cpu-reference": Preset(("model.preset=small", "model.dropout=0.1", "tokenizer.vocab_size=8000"), 4096, 8008),
    "tiny": Preset(("model.preset=tiny",), 8192, 10_000),
    "base": Preset(("model.preset=base",), 25_000, 37_000),
    "big": Preset(("model.preset=big",), 25_000, 37_000),
}


@dataclass(frozen=True)
class Job:
    """The work of one process.

    Attributes:
        precision: auto, fp32 or bf16.
        limit_s: seconds after which the process is killed.
        data: the prepared data; None means random ids below `num_ids`.
        loss_steps: if not 0, the process trains this number of steps and returns their losses instead of the speed.
    """

    system: str
    device: str
    preset: str
    batch_tokens: int
    seconds: float
    threads: int
    num_ids: int
    scratch: str
    precision: str = "auto"
    limit_s: float = 900.0
    data: str | None = None
    seed: int = 1
    loss_steps: int = 0
    learning_rate: float = 0.0

    def settings(self) -> list[str]:
        """Returns the settings as `mtx train` takes them."""
        return [
            "data.src=en", "data.tgt=de", *PRESETS[self.preset].settings, f"training.batch_tokens={self.batch_tokens}",
            f"device={self.device}", f"precision={self.precision}", f"seed={self.seed}", f"run_dir={self.scratch}",
        ]  # fmt: skip
