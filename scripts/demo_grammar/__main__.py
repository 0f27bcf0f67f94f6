"""Writes the demo's corpus into the package again, from which `mtx train demo` reads it.

python -m scripts.demo_grammar
"""

import gzip

from mtx.data.sources import DEMO

from .corpus import SEED, generate

DEMO.write_bytes(gzip.compress(generate(SEED).tsv(), mtime=0))
