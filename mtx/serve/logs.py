"""The log of the server: one JSON object a line on stderr, without the texts of requests."""

import json
import logging
import time

_LIBRARY = "uvicorn.error"


class JsonFormat(logging.Formatter):
    """A record as one line of JSON in ASCII; the dict `fields` of a record adds its own."""

    def format(self, record: logging.LogRecord) -> str:
        """The line: time (UTC), level, message, and fields."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        about = {"time": f"{moment}.{int(record.msecs):03}Z", "level": record.levelname.lower()}
        return json.dumps(about | {"message": record.getMessage()} | getattr(record, "fields", {}))


def set_up() -> None:
    """Write the messages of mtx so from now on, and the errors of the HTTP library too."""
    logger, library = logging.getLogger("mtx"), logging.getLogger(_LIBRARY)
    for handler in logger.handlers:
        handler.setFormatter(JsonFormat())
    library.handlers, library.propagate = logger.handlers, False
    library.setLevel(logging.ERROR)
