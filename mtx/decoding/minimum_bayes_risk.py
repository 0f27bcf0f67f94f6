"""The utility of Minimum Bayes risk decoding: how much a sample resembles the others (`Sampling.mbr` in options.py).

The samples stand for what the model takes to be possible. The one with the highest mean utility against all of them is
the one with the least expected loss under the model (Kumar & Byrne 2004; with samples Eikema & Aziz 2020). The utility
is chrF2 of sentences, as sacreBLEU computes it by default; fastchrf (Vamvas & Sennrich 2024) does so faster.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from mtx.errors import MtxError
from mtx.formatting import install_command

Batch = Sequence[Sequence[str]]


def pairwise_chrf() -> Callable[[Batch, Batch], list[list[list[float]]]]:
    """Imports and returns fastchrf's function: [hypotheses], [references] -> [chrF of each with each], 0 to 100.

    Raises:
        MtxError: fastchrf is not installed.
    """
    try:
        import fastchrf
    except ImportError:
        raise MtxError("Minimum Bayes risk decoding: fastchrf is not installed", install_command("fastchrf")) from None
    function: Callable[[Batch, Batch], list[list[list[float]]]] = fastchrf.pairwise_chrf
    return function


def mean_chrf(samples: Sequence[str]) -> list[float]:
    """Returns for each sample its mean chrF, 0 to 100, with all samples as references, itself included.

    Equal samples are compared once, and count as often as they were drawn.
    """
    counts = Counter(samples)
    (chrf,) = pairwise_chrf()([[*counts]], [[*counts]])
    means = np.array(chrf) @ [*counts.values()] / len(samples)
    by_text = dict(zip(counts, means.tolist(), strict=True))
    return [by_text[sample] for sample in samples]
