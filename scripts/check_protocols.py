"""Whether `multi30k-lc` makes of raw Multi30k what its authors published as tokenised text, line by line.

python scripts/check_protocols.py RAW_DIR TOKENIZED_DIR, each with NAME.LANG.gz for train, val and test_2016_flickr. The
exit code is 1 where a line differs, or German test_2016_flickr has not the 12,103 tokens of Wu et al. 2021.
"""

import argparse
import sys
from pathlib import Path

from mtx.protocols import find
from mtx.text_files import read_lines

_NUM_TOKENS = 12_103


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("raw", type=Path)
    parser.add_argument("tokenized", type=Path)
    arguments = parser.parse_args()
    failed = False
    for name in ("test_2016_flickr", "val", "train"):
        for language in ("de", "en"):
            raw, published = (
                list(read_lines(directory / f"{name}.{language}.gz"))
                for directory in (arguments.raw, arguments.tokenized)
            )
            protocol = find("multi30k-lc", language)
            ours = protocol.tokenized(raw, []).references
            again = protocol.tokenized(published, []).references
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
