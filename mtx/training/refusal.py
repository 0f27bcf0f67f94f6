"""Why an update was not made: the numbers, the place in the data, and the sentences, so that they can be looked at."""

from mtx import files
from mtx.data.packing import Position, StepPlanner
from mtx.data.store import TokenStore
from mtx.errors import MtxError
from mtx.paths import RunPaths


def refusal(
    step: int, loss: float, norm: float, place: Position, planner: StepPlanner, train: TokenStore, paths: RunPaths
) -> MtxError:
    """The error of a step whose loss or gradient norm is not finite; its pairs go into refused.tsv."""
    pairs = planner.step(place).pairs
    lines = train.lines()[pairs]
    rows = zip(lines, *train.texts(pairs), strict=True)
    try:
        files.write_text(paths.refused, "".join(f"{line}\t{src}\t{tgt}\n" for line, src, tgt in rows))
        listed = f", see {paths.refused}"
    except OSError:  # the error itself matters more
        listed = ""
    first = ", ".join(map(str, lines[:10]))
    return MtxError(
        f"step {step}: loss {loss}, gradient norm {norm}; nothing was updated. The step takes {len(pairs)} pairs from "
        f"place {place.index} of epoch {place.epoch} on, lines {first}, … of the training text{listed}",
        "the last checkpoint stands; a lower training.learning_rate or training.clip_norm=1.0 needs a new run_dir",
    )
