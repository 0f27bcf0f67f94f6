"""Damaged and hostile documents: each is translated, with all of its tags, or refused in one line that names it."""

import random
import re
from pathlib import Path

import pytest

from mtx.commands.translate import kind_of_document
from mtx.documents.document import translate_document
from mtx.errors import DataError, UsageError
from tests.reliability.conftest import size
from tests.reliability.properties import Tally
from tests.reliability.test_bilingual_files import FILES, damaged
from tests.unit.documents.test_document import MARKDOWN, PAGE, shout

DOCUMENTS = {**FILES, "html": PAGE, "md": MARKDOWN}


@pytest.mark.parametrize("ending", DOCUMENTS)
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_damaged_document_is_translated_or_refused(
    ending: str, overwrite: bool, tmp_path: Path, tally: Tally
) -> None:
    rng, held, path = random.Random(ending), 0, tmp_path / f"file.{ending}"
    num_files = size(200, 4000)
    for _ in range(num_files):
        path.write_bytes(damaged(DOCUMENTS[ending].encode(), rng))
        try:
            if kind := kind_of_document(path):
                translate_document(path, kind, ("en", "de"), overwrite, shout)
        except (DataError, UsageError) as error:
            assert re.match(r"[^\n]*file\.[a-z]+(:\d+)?: [^\n]+$", str(error)), str(error)
        held += 1
    tally(f"damaged documents, .{ending}{', overwritten' * overwrite}", num_files, held)
