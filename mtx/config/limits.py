"""The largest values of settings, options and model files, each defined once.

A larger value is a mistake or exhausts the machine. No imports: the command line reads these at its start.
"""

MAX_TOKENS = 4096  # in a sentence
MAX_LEARNED_POSITIONS = 1024  # rows of each table of learned position embeddings
MAX_PIECES = 1 << 20  # published vocabularies have about 60,000
MAX_COUNT = 1_000_000_000  # steps, checkpoints, validations
MAX_BATCH_TOKENS = 10_000_000  # the largest published batches have about 4,000,000 tokens; five steps are prefetched
MAX_WEIGHT = 1_000_000  # occurrences of a pair in an epoch
MAX_BEAM_SIZE = 100
MAX_SAMPLES = 1000  # of one sentence
MAX_LENGTH = 10_000  # tokens of a translation
MAX_LENGTH_PENALTY = 50.0  # above it, the penalty of a long sentence overflows
MAX_TEMPERATURE = 1000.0  # at this value all tokens are equally probable to three digits
