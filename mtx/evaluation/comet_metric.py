"""COMET, in the Python of its own environment: python -I comet_metric.py MODEL < rows > numbers.

`metric_process.py` starts this program and describes rows and answers. It imports nothing of mtx. A model of COMET is a
pickle, which may run code; it is loaded in this process only.
"""

import importlib.metadata
import importlib.util
import json
import os
import sys
from pathlib import Path


def main(name: str) -> None:
    """Print the signature, and a number for each row of stdin."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not an answer
    try:
        import comet  # type: ignore[import-not-found]
    except ModuleNotFoundError as error:
        sys.exit(f"COMET cannot be imported ({error}); pip install unbabel-comet 'setuptools<81'")
    import torch

    try:
        path = name if Path(name).is_file() else comet.download_model(name)
    except KeyError:
        sys.exit(f"{name} cannot be downloaded and is not in the cache")
    model = comet.load_from_checkpoint(path)
    version = importlib.metadata.version("unbabel-comet")
    # Without pkg_resources, COMET weights the layers of some models in another way.
    has_pkg_resources = "yes" if importlib.util.find_spec("pkg_resources") else "no"
    print(f"# {name}|comet:{version}|pkg_resources:{has_pkg_resources}", file=answers, flush=True)  # noqa: T201
    rows = [{"src": row["src"], "mt": row["hyp"], "ref": row["ref"]} for row in map(json.loads, sys.stdin)]
    num_gpus = 1 if torch.cuda.is_available() else 0
    size = 512 if num_gpus else 4  # on one core of a CPU, the four longest rows take a minute
    for start in range(0, len(rows), size):
        result = model.predict(rows[start : start + size], gpus=num_gpus, num_workers=0, progress_bar=False)
        print(*result.scores, sep="\n", file=answers, flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1])
