"""What could not be written or drawn while training went on: told at once, and again at the end."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from mtx.errors import MtxError

logger = logging.getLogger(__name__)


class DeferredErrors:
    """Collects failures that cost no more than the file that was to be written.

    Attributes:
        messages: a sentence for each.
    """

    def __init__(self) -> None:
        self.messages: list[str] = []
        self._help = ""  # what to do about the first of them

    def add(self, what: str, error: Exception) -> None:
        """Tell that `what` could not be written; the same failure of the same thing is told once."""
        reason = error.strerror or error if isinstance(error, OSError) else error
        self._tell(f"{what} could not be written: {reason}", "a disk that fails may fail again: check it")

    def add_drawing_error(self, page: Path, error: Exception) -> None:
        """Tell that a page could not be drawn, which is no fault of the disk."""
        self._tell(drawing_error(page, error), f"MTX_DEBUG=1 mtx report {page.parent} shows where drawing fails")

    def _tell(self, text: str, help: str) -> None:
        if text not in self.messages:
            logger.warning("%s; training goes on", text)
            self._help = self._help or help
            self.messages.append(text)

    @contextlib.contextmanager
    def defer(self, what: str) -> Iterator[None]:
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
        if self.messages:
            others = f" (and {len(self.messages) - 1} more)" if len(self.messages) > 1 else ""
            raise MtxError(f"all is done, but {self.messages[0]}{others}", self._help)


def drawing_error(page: Path, error: Exception) -> str:
    """That a page could not be drawn, and why, as a sentence."""
    return f"{page} could not be drawn: {type(error).__name__}: {error}"
