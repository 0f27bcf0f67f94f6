"""The few error types that users meet, and the exit code of each.

User input raises one of these with what went wrong, where (path:line or key), what was got and what was expected.
Only `cli.py` turns one into an `error:` line and an exit code; `assert` is for mtx's own invariants.
"""


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
