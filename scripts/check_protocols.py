"""Checks line by line that `multi30k-lc` turns raw Multi30k into the tokenised text that its authors published.

    python scripts/check_protocols.py RAW_DIR TOKENIZED_DIR

Each directory has NAME.LANG.gz for train, val and test_2016_flickr in German and English. The exit code is 1 if a line
differs, or if German test_2016_flickr does not have the 12,103 tokens of Wu et al. 2021.
"""

import argparse
import sys
from pathlib import Path

from mtx.evaluation.protocols import Protocol
from mtx.storage.text_files import read_lines

_NUM_TOKENS = 12_103  # of German test_2016_flickr


def main() -> int:
    """Prints a line for each file, and up to five lines that differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("raw", type=Path, metavar="RAW_DIR")
    parser.add_argument("tokenized", type=Path, metavar="TOKENIZED_DIR")
    arguments = parser.parse_args()
    failed = False
    for name in ("test_2016_flickr", "val", "train"):
        for language in ("de", "en"):
            raw, published = (
                list(read_lines(directory / f"{name}.{language}.gz"))
                for directory in (arguments.raw, arguments.tokenized)
            )
            protocol = Protocol("multi30k-lc", language)
            ours = protocol.tokenized(raw)[0][0]
            again = protocol.tokenized(published)[0][0]
            num_tokens = sum(len(line.split()) for line in ours)
            differing = [(a, b) for a, b in zip(ours, published, strict=True) if a.split() != b.split()]
            failed |= bool(differing) or again != published
            failed |= (name, language) == ("test_2016_flickr", "de") and num_tokens != _NUM_TOKENS
            print(f"{name}.{language}: {len(ours):,} lines, {num_tokens:,} tokens, {len(differing)} lines differ")
            for pair in differing[:5]:
                print("  ours      {!r}\n  published {!r}".format(*pair))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
