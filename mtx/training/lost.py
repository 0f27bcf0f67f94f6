"""What could not be written while training went on: told at once, and again at the end."""

import contextlib
import logging
from collections.abc import Iterator

from mtx.errors import MtxError

logger = logging.getLogger(__name__)


class Lost:
    """Collects failed writes that cost no more than what was written.

    Attributes:
        told: a sentence for each.
    """

    def __init__(self) -> None:
        self.told: list[str] = []

    def add(self, what: str, error: Exception) -> None:
        """Tell that `what` could not be written; the same failure of the same thing is told once."""
        reason = error.strerror or error if isinstance(error, OSError) else error
        text = f"{what} could not be written: {reason}"
        if text not in self.told:
            logger.warning("%s; training goes on", text)
            self.told.append(text)

    @contextlib.contextmanager
    def telling(self, what: str) -> Iterator[None]:
        """Go on where `what` cannot be written in the block, and tell it."""
        try:
            yield
        except OSError as error:
            self.add(what, error)

    def check(self) -> None:
        """Raise what was told, now that all else is done.

        Raises:
            MtxError: where anything was.
        """
        if self.told:
            others = f" (and {len(self.told) - 1} more)" if len(self.told) > 1 else ""
            raise MtxError(f"all is done, but {self.told[0]}{others}", "a disk that fails may fail again: check it")
