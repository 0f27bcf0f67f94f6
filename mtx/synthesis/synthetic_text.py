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
WORST_SHARE = 0.05  # of the pairs, by a forward model: the share that Mozilla's recipes drop

KEPT = "kept"

Row = tuple[str, float | None]  # the translation of a line, and its score by the forward model


@dataclass(frozen=True)
class SyntheticText:
    """The work on one text.

    Attributes:
        lines: gives the text, one sentence a line; called several times.
        kept: what is translated, in blocks of lines that are translated together.
        translate: gives the translations of some lines; takes the number of the first one too.
        score: gives the log-probability per token of some lines, given their translations; None without such a model.
        side: the side of the pairs that the lines are.
    """

    lines: Callable[[], Iterable[str]]
    kept: ResumableRows
    translate: Callable[[list[str], int], list[str]]
    score: Callable[[list[str], list[str]], list[float | None]] | None = None
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
            scores = self.score(translations, block) if self.score else [None] * len(block)
            rows = zip(translations, scores, strict=True)
            self.kept.append([json.dumps(row, ensure_ascii=False) for row in rows])
            number += len(block)
            progress(len(block))

    def pairs(self, drop_worst: bool) -> Iterator[tuple[str, str] | str]:
        """For each line its pair for training, source first, or the reason to leave it out."""
        worst = self._worst_score() if drop_worst else None
        for (translation, score), line in zip(self._rows(), self.lines(), strict=True):
            pair = clean_pair(*((line, translation) if self.side == "src" else (translation, line)), LIMITS)
            if isinstance(pair, str):
                yield pair
            elif noted := suspicion(line, translation):
                yield noted
            elif worst is not None and score is not None and score <= worst:
                yield "improbable"
            else:
                yield pair[0].replace("\t", " "), pair[1].replace("\t", " ")

    def _worst_score(self) -> float | None:
        scores = sorted(score for _, score in self._rows() if score is not None)
        number = int(WORST_SHARE * len(scores))
        return scores[number - 1] if number else None

    def _rows(self) -> Iterator[Row]:
        for number, row in enumerate(self.kept.rows(), 1):
            try:
                translation, score = json.loads(row)
            except ValueError:
                raise DamagedFileError(f"{self.kept.path}: its row {number} is damaged") from None
            yield translation, score


def write_pairs(work: SyntheticText, sink: IO[bytes], drop_worst: bool = False) -> Counter[str]:
    """Write the pairs for training as TSV; returns how many lines were left out, by reason, and how many kept."""
    counts = Counter[str]()
    for pair in work.pairs(drop_worst):
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
