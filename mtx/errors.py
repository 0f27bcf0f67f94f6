"""The few error types that users meet, and the exit code of each.

User input raises one of these with what went wrong, where (path:line or key), what was got and what was expected.
Only `cli.py` turns one into an `error:` line and an exit code; `assert` is for mtx's own invariants.
"""

import signal


class MtxError(Exception):
    """A failure while running; its text is the `error:` line, `help` what to type next."""

    exit_code = 1

    def __init__(self, message: str, help: str | None = None):
        super().__init__(message)
        self.help = help


class UsageError(MtxError):
    """It was asked wrongly and nothing was started."""

    exit_code = 2


class DataError(MtxError):
    """Text or a data file that cannot be used as it is."""


class DamagedFileError(MtxError):
    """A file whose content is not what its manifest or its format says."""


class StoppedError(MtxError):
    """A signal ended the work after its state was saved; `exit_code` is 128 + the signal's number."""

    def __init__(self, message: str, signal_number: int, help: str | None = None):
        super().__init__(message, help)
        self.exit_code = 128 + signal_number


class TerminatedError(KeyboardInterrupt):
    """SIGTERM where nothing has to be saved first: like SIGINT, it unwinds, so that no half-written file is left."""


def exit_code(error: BaseException) -> int:
    """What a process exits with that ends by this error."""
    match error:
        case MtxError():
            return error.exit_code
        case TerminatedError():
            return 128 + signal.SIGTERM
        case KeyboardInterrupt():
            return 128 + signal.SIGINT
    return 1


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory was short: Python's, torch's for a GPU, or torch's for a CPU."""
    text = f"{type(error).__name__}: {error}"
    return isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text
