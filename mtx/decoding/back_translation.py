"""Translates text of one language into synthetic training pairs, in parts that a killed process goes on with.

Flow: lines -> blocks -> translations, which a file beside the output keeps -> filters -> TSV of (translation, line).
The blocks are the same in every call, so that a translation does not depend on where an earlier call ended.
"""

import itertools
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from mtx.data.cleaning import Limits, clean_pair
from mtx.decoding.suspicious import suspicion
from mtx.errors import DamagedFileError, UsageError
from mtx.files import disk
from mtx.files.shell import shell_command
from mtx.files.sizes import counted
from mtx.files.text_files import read_lines

logger = logging.getLogger(__name__)

BLOCK_LINES = 1024  # for each device; what a killed process loses at most
LIMITS = Limits(256, 4.0)  # those of training text
WORST_SHARE = 0.05  # of the pairs, by a forward model: the share that Mozilla's recipes drop

KEPT = "kept"

Row = tuple[str, float | None]  # the translation of a line, and its score by the forward model


@dataclass(frozen=True)
class BackTranslation:
    """The work on one text.

    Attributes:
        mono: the text, one sentence a line.
        part: keeps what is translated; its first line is `about`.
        about: what the translations depend on: the model, the search, the text.
        block_lines: the number of lines that are translated together.
        translate: gives the translations of some lines; takes the number of the first one too.
        score: gives the log-probability per token of some lines, given their translations; None without such a model.
    """

    mono: Path
    part: Path
    about: dict[str, Any]
    block_lines: int
    translate: Callable[[list[str], int], list[str]]
    score: Callable[[list[str], list[str]], list[float | None]] | None = None

    def run(self, progress: Callable[[int], object]) -> None:
        """Translate the lines that are not translated yet; `progress` is called with the number of each block's.

        Raises:
            UsageError: if `part` belongs to other translations.
            DamagedFileError: if it is damaged.
        """
        num_done = self._resume()
        progress(num_done)
        lines = itertools.islice(read_lines(self.mono), num_done, None)
        number = num_done + 1
        while block := list(itertools.islice(lines, self.block_lines)):
            translations = self.translate(block, number)
            scores = self.score(translations, block) if self.score else [None] * len(block)
            rows = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in zip(translations, scores, strict=True))
            beginning = "" if self.part.exists() else self._beginning
            with disk.append(self.part) as file:
                file.write((beginning + rows).encode())
            number += len(block)
            progress(len(block))

    @property
    def _beginning(self) -> str:
        return json.dumps(self.about, sort_keys=True) + "\n"

    def _resume(self) -> int:
        """The number of lines that are translated; what was written of a further block is cut off."""
        if not self.part.exists():
            return 0
        with self.part.open("rb+") as file:
            first, beginning = file.readline(), self._beginning.encode()
            if not first.endswith(b"\n") and beginning.startswith(first):  # killed while it began
                disk.unlink(self.part)
                return 0
            if first != beginning:
                help = f"{shell_command('rm', self.part)} begins anew"
                raise UsageError(f"{self.part}: was begun with another model, text or search", help)
            num_done = num_rows = 0
            end = position = file.tell()
            for row in file:
                num_rows, position = num_rows + 1, position + len(row)
                if num_rows == num_done + self.block_lines and row.endswith(b"\n"):
                    num_done, end = num_rows, position
            file.truncate(end)
        if num_done:
            logger.info("%s: %s are translated; going on", self.part, counted(num_done, "line"))
        return num_done

    def pairs(self, drop_worst: bool) -> Iterator[tuple[str, str] | str]:
        """For each line its pair for training, or the reason to leave it out."""
        worst = self._worst_score() if drop_worst else None
        for (translation, score), line in zip(self._rows(), read_lines(self.mono), strict=True):
            pair = clean_pair(translation, line, LIMITS)
            if isinstance(pair, str):
                yield pair
            elif noted := suspicion(*reversed(pair)):
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
        if not self.part.exists():  # the text has no lines
            return
        with self.part.open("rb") as file:
            next(file)
            for number, row in enumerate(file, 1):
                try:
                    translation, score = json.loads(row)
                except ValueError:
                    raise DamagedFileError(f"{self.part}: its row {number} is damaged") from None
                yield translation, score


def write_pairs(work: BackTranslation, sink: IO[bytes], drop_worst: bool) -> Counter[str]:
    """Write the pairs for training as TSV; returns how many lines were left out, by reason, and how many kept."""
    counts = Counter[str]()
    for pair in work.pairs(drop_worst):
        if isinstance(pair, str):
            counts[pair] += 1
        else:
            counts[KEPT] += 1
            sink.write(f"{pair[0]}\t{pair[1]}\n".encode())
    return counts
