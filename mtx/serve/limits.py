"""What one request may ask for, and how long the server waits. The only place with such numbers."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of `mtx serve`. Times are in seconds.

    Attributes:
        chars: most characters of the texts of a request, together.
        texts: most texts of a request.
        body_bytes: largest body. A character takes up to 12 bytes, as JSON or form.
        connections: most open connections.
        waiting_tokens: most tokens that wait for translation, those of all requests together. Time is in proportion to
            tokens, of which a character that the model does not know takes up to four, and an ordinary one a quarter.
        batch_tokens: tokens that a thread translates at once. A request waits for one such batch, and for a sentence of
            each other request that waits, before its first sentence is translated.
        segment_tokens: most tokens of a paragraph of HTML, which is translated at once.
        request_s: how long a translation may take, waiting included.
        idle_s: how long an open connection may wait for its next request.
    """

    chars: int = 10_000
    texts: int = 200
    body_bytes: int = 1 << 18
    connections: int = 500
    waiting_tokens: int = 125_000
    batch_tokens: int = 750
    segment_tokens: int = 4_000
    request_s: float = 60.0
    idle_s: int = 15
