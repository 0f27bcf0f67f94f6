"""Failures that must not end training: each is logged at once; at the very end, one error reports them.

Only the file that could not be written is lost: a checkpoint, an event or a report.
"""

import contextlib
import logging
from collections.abc import Iterator

from mtx.errors import MtxError

logger = logging.getLogger(__name__)


class DeferredErrors:
    """Collects failures while training goes on.

    Attributes:
        messages: one sentence for each failure.
    """

    def __init__(self) -> None:
        self.messages: list[str] = []
        self._help = ""  # what to do about the first failure

    def add(self, what: str, error: Exception) -> None:
        """Log that `what` could not be written; the same message is logged once only."""
        known = getattr(error, "strerror", None) or (str(error) if isinstance(error, MtxError) else None)
        reason = known or f"{type(error).__name__}: {error}"
        help = "a disk that fails may fail again: check it" if known else "MTX_DEBUG=1 mtx report RUN shows the fault"
        message = f"{what} could not be written: {reason}"
        if message not in self.messages:
            logger.warning("%s; training continues", message)
            self.messages.append(message)
            self._help = self._help or help

    @contextlib.contextmanager
    def defer(self, what: str) -> Iterator[None]:
        """Add an OSError of the block, which writes `what`, instead of raising it."""
        try:
            yield
        except OSError as error:
            self.add(what, error)

    def check(self) -> None:
        """Raise an error if anything failed; call this at the very end.

        Raises:
            MtxError: with the first message and the number of the others.
        """
        if self.messages:
            first, *others = self.messages
            more = f" (and {len(others)} more)" if others else ""
            raise MtxError(f"finished with errors: {first}{more}", self._help)
