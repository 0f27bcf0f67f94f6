"""The few types of error that users see, the exit code of each, and failures that are reported at the end.

A message has the problem, its place (path:line or key), and the expected and actual values. Only `cli.py` turns an
error into an `error:` line and an exit code; `assert` is for mtx's own invariants.
"""

import contextlib
import logging
import signal
from collections.abc import Iterator

logger = logging.getLogger(__name__)

# In this order: of torch, of cuBLAS, of cuDNN, of a CUDA kernel for more blocks than a grid can have, of oneDNN without
# memory for its code, and of Arrow and Python without memory for a thread's stack.
_OUT_OF_MEMORY = (
    "out of memory",
    "_STATUS_ALLOC_FAILED",
    "_ALLOCATION_FAILED",
    "invalid configuration argument",
    "can't allocate memory",
    "could not create a primitive",
    "Failed to launch worker thread",
    "can't start new thread",
)


# The signals that stop a process: Ctrl-C, another program, and the end of its terminal (not on Windows).
STOPPING_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class MtxError(Exception):
    """A failure while running. Its text is the `error:` line; `help` is what to type next."""

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None):
        super().__init__(message)
        self.help = hint


class UsageError(MtxError):
    """A wrong request: nothing was started."""

    exit_code = 2


class DataError(MtxError):
    """A text or a data file that cannot be used."""


class DamagedFileError(MtxError):
    """A file whose content differs from its manifest or its format."""


class StoppedError(MtxError):
    """A signal ended training after its state was saved; `exit_code` is 128 plus the number of the signal."""

    def __init__(self, message: str, signal_number: int, hint: str | None = None):
        super().__init__(message, hint)
        self.exit_code = 128 + signal_number


class ReportedError(MtxError):
    """Another process of the run reports why it ended: this one ends quietly with the same exit code."""

    def __init__(self, code: int):
        super().__init__("")
        self.exit_code = code


class TerminatedError(KeyboardInterrupt):
    """A stopping signal outside training. It unwinds the stack, so that no half-written file is left.

    Attributes:
        help: what the same command would do, if it can resume; set on the way up.
    """

    def __init__(self, signal_number: int = signal.SIGTERM):
        super().__init__(f"interrupted by {signal.Signals(signal_number).name}")
        self.signal_number = signal_number
        self.help: str | None = None


class DeferredErrors:
    """Collects failures that must not end training: each is logged at once, and a single error at the end reports them.

    Only the unwritten file is lost: a checkpoint, an event or a report.

    Attributes:
        messages: one sentence for each failure.
    """

    def __init__(self) -> None:
        self.messages: list[str] = []

    def add(self, name: str, error: Exception) -> None:
        """Log that `name` could not be written; the same message is logged only once."""
        description = str(error) if isinstance(error, MtxError) else getattr(error, "strerror", None)
        reason = description or f"{type(error).__name__}: {error}"
        message = f"{name} could not be written: {reason}"
        if message not in self.messages:
            logger.warning("%s; training continues", message)
            self.messages.append(message)

    @contextlib.contextmanager
    def defer(self, name: str) -> Iterator[None]:
        """Add an OSError of the block, which writes `name`, instead of raising it."""
        try:
            yield
        except OSError as error:
            self.add(name, error)

    def check(self) -> None:
        """Raise an error if anything failed; call this at the very end.

        Raises:
            MtxError: with the first message and the number of the others.
        """
        if self.messages:
            num_more = len(self.messages) - 1
            more = f" (and {num_more} more)" if num_more else ""
            hint = "check the disk; if it is a bug in mtx, MTX_DEBUG=1 mtx report RUN shows it"
            raise MtxError(f"finished with errors: {self.messages[0]}{more}", hint)


def exit_code(error: BaseException) -> int:
    """The exit code of a process that ends with this error."""
    match error:
        case MtxError():
            return error.exit_code
        case TerminatedError():
            return 128 + error.signal_number
        case KeyboardInterrupt():
            return 128 + signal.SIGINT
    return 1


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a smaller batch may avoid an error: out of memory, or more than a kernel can take at once.

    It may be an error of Python or a library, for a GPU, a CPU or a thread.
    """
    text = f"{type(error).__name__}: {error}"
    return isinstance(error, MemoryError) or any(words in text for words in _OUT_OF_MEMORY)


def first_line(error: BaseException) -> str:
    """The first line of a library's error, shortened for our messages."""
    return str(error).split("\n")[0][:200] or type(error).__name__
