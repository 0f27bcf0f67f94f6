"""What one process of `translate.py` measures: `translate.py` makes the jobs, `translate_worker.py` does one."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """The settings that a user can tune; mtx has only the number of threads.

    Attributes:
        workers: number of batches that are translated at the same time, with `threads` each.
        batch: largest number of `unit` (examples or tokens) in a batch; 0 leaves it to the system.
    """

    workers: int
    threads: int
    batch: int = 0
    unit: str = "examples"

    def __str__(self) -> str:
        if not self.batch:
            return f"{self.threads} threads"
        return f"{self.workers} x {self.threads} threads, {self.batch:,} {self.unit}"


@dataclass(frozen=True)
class Job:
    """The work of one process.

    Attributes:
        text: JSON file with the lines.
        is_random: whether the weights are random, so that translations must be as long as their sources.
        throughput, latency: the modes in which throughput and latency are measured.
        limit_s: seconds after which the process is killed.
    """

    system: str
    device: str
    model: str
    huggingface: str
    text: str
    length_penalty: float
    is_random: bool
    setting: Setting
    throughput: tuple[str, ...] = ()
    latency: tuple[str, ...] = ()
    limit_s: float = 900.0
