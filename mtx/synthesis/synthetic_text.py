"""Translates text of one language into synthetic training pairs, in parts, so that a killed process can resume.

Flow: lines -> blocks -> translations, which a file next to the output keeps -> filters -> TSV of source and target. The
lines are the target side of the pairs for back-translation, and the source side for distillation.
The blocks are the same in every call, so that a translation does not depend on where an earlier call ended.
"""

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Literal

from mtx.data.cleaning import Limits, clean_pair
from mtx.decoding.metrics import suspicion
from mtx.errors import DamagedFileError
from mtx.formatting import counted
from mtx.storage.resumable import ResumableRows

BLOCK_LINES = 1024  # what a killed process loses at most
LIMITS = Limits(256, 4.0)  # those of training text

KEPT = "kept"


@dataclass(frozen=True)
class SyntheticText:
    """The work on one text.

    Attributes:
        lines: gives the text, one sentence a line; called several times.
        kept: what is translated, in blocks of lines that are translated together.
        translate: gives the translations of some lines; takes the number of the first one too.
        side: the side of the pairs that the lines are.
    """

    lines: Callable[[], Iterable[str]]
    kept: ResumableRows
    translate: Callable[[list[str], int], list[str]]
    side: Literal["src", "tgt"] = "tgt"

    def run(self, progress: Callable[[int], object]) -> None:
        """Translate the lines that are not translated yet; `progress` is called with the number of each block's.

        Raises:
            UsageError: if `kept` belongs to other translations.
        """
        num_done = self.kept.resume()
        progress(num_done)
        lines = itertools.islice(self.lines(), num_done, None)
        number = num_done + 1
        while block := list(itertools.islice(lines, self.kept.block_rows)):
            translations = self.translate(block, number)
            self.kept.append([json.dumps(text, ensure_ascii=False) for text in translations])
            number += len(block)
            progress(len(block))

    def pairs(self) -> Iterator[tuple[str, str] | str]:
        """For each line its pair for training, source first, or the reason to leave it out."""
        for translation, line in zip(self._translations(), self.lines(), strict=True):
            pair = clean_pair(*((line, translation) if self.side == "src" else (translation, line)), LIMITS)
            if isinstance(pair, str):
                yield pair
            elif noted := suspicion(line, translation):
                yield noted
            else:
                yield pair[0].replace("\t", " "), pair[1].replace("\t", " ")

    def _translations(self) -> Iterator[str]:
        for number, row in enumerate(self.kept.rows(), 1):
            try:
                yield json.loads(row)
            except ValueError:
                raise DamagedFileError(f"{self.kept.path}: its row {number} is damaged") from None


def write_pairs(work: SyntheticText, sink: IO[bytes]) -> Counter[str]:
    """Write the pairs for training as TSV; returns how many lines were left out, by reason, and how many kept."""
    counts = Counter[str]()
    for pair in work.pairs():
        if isinstance(pair, str):
            counts[pair] += 1
        else:
            counts[KEPT] += 1
            sink.write(f"{pair[0]}\t{pair[1]}\n".encode())
    return counts


def described(counts: Counter[str]) -> str:
    """What `write_pairs` has counted, such as `98 pairs of 100 lines (copy 2)`."""
    dropped = ", ".join(f"{reason} {count:,}" for reason, count in counts.most_common() if reason != KEPT)
    pairs, lines = counted(counts[KEPT], "pair"), counted(counts.total(), "line")
    return f"{pairs} of {lines}{dropped and f' ({dropped})'}"
