"""The seam of decoding: what searches. `mtx.decoding.translator` is the text layer, `load` in load.py makes both.

Engines: `TorchEngine` in torch_engine.py (a model, or the ensemble of several), and `CTranslate2Engine` in
ctranslate2_engine.py. A new one is a class with the names of `Engine`, and a case in `load`.
"""

from collections.abc import Sequence
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from mtx.decoding.options import Candidate, EngineName, Request, SearchOptions

Attention = npt.NDArray[np.float32]  # [T, S]


class Engine(Protocol):
    """Finds translations of token ids. It knows no text, and several threads may call it at the same time.

    Attributes:
        name: what `--engine` calls it.
        num_tgt_positions: the most tokens of a translation, `</s>` included; `sys.maxsize` means any number.
    """

    name: ClassVar[EngineName]
    num_tgt_positions: int

    def search(
        self, sources: Sequence[list[int]], prefixes: Sequence[list[int]], options: SearchOptions
    ) -> list[list[Candidate]]:
        """Returns the hypotheses of each source, at least one, best first; samples are in the order of drawing.

        Args:
            sources: token ids, each ending in `</s>`, at most as many as the model reads.
            prefixes: for each source the target ids that its translations must begin with, without `</s>`.
            options: what is searched for; `new_requests` applies its limit of length to each source.
        """

    def cross_attention(self, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> list[Attention]:
        """Returns for each pair of ids, both ending in `</s>`, from which source tokens each target token comes.

        Each row is a distribution: the attention of the last layer, averaged over its heads. Rows and columns of
        `</s>` may be missing. The caller passes sources that the model reads, and targets that it can write.
        """

    def share_workers(self) -> int:
        """Lets each call use one worker of the engine from now on; returns how many calls at once use them all."""


def new_requests(
    sources: Sequence[list[int]], prefixes: Sequence[list[int]], options: SearchOptions, num_tgt_positions: int
) -> list[Request]:
    """Returns a request for each source, or for each of its samples."""
    samples = 1 if options.sampling is None else options.sampling.num_samples
    return [
        Request(row * samples + n, source, min(options.limit(source, prefix), num_tgt_positions), prefix, n)
        for row, (source, prefix) in enumerate(zip(sources, prefixes, strict=True))
        for n in range(samples)
    ]
