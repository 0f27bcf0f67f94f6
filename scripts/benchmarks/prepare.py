"""Measures `mtx prepare` on N pairs: seconds per stage, pairs per minute, and the peak memory of all its processes.

The pairs are those of DIR/train.en and DIR/train.de (plain or gzip), repeated; each sentence ends in the number of its
copy. The memory is the sum of the proportional set sizes (PSS) over the process tree, so that shared memory counts
once. It is read from Linux's /proc; on other systems it is not measured.

    python -m scripts.benchmarks.prepare --data-dir DIR --pairs 1000000 --json FILE
"""

import argparse
import contextlib
import itertools
import json
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from mtx.machine import num_cores
from mtx.storage.text_files import read_lines

SIDES = ("en", "de")
STAGES = ("cleaning", "tokenizer", "encoding")
SAMPLE_S = 0.1
LIMIT_S = 6 * 3600  # of a preparation
_STAGE = re.compile(rf"^({'|'.join(STAGES)}): .*\((\d+\.\d) s\)$")


def write_pairs(data_dir: Path, out_dir: Path, num_pairs: int) -> None:
    """Writes `num_pairs` different pairs as train.en and train.de."""
    for side in SIDES:
        text = next(
            (path for path in (data_dir / f"train.{side}", data_dir / f"train.{side}.gz") if path.is_file()), None
        )
        if text is None:
            sys.exit(f"error: --data-dir {data_dir}: there is no train.{side} and no train.{side}.gz")
        lines = list(read_lines(text))
        numbered = ((line, copy) for copy in itertools.count() for line in lines)
        with (out_dir / f"train.{side}").open("w", encoding="utf-8", newline="") as file:
            file.writelines(f"{line} {copy}\n" for line, copy in itertools.islice(numbered, num_pairs))


def tree_pss(root: int) -> int:
    """Returns the memory in bytes of a process and all its descendants."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has ended
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    tree = [root]
    total = 0
    for pid in tree:
        tree += [child for child, parent in parents.items() if parent == pid]
        with contextlib.suppress(OSError):
            match = re.search(r"^Pss: +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
            total += int(match[1]) * 1024 if match else 0
    return total


def measure(corpus_dir: Path, run_dir: Path, settings: list[str]) -> dict[str, Any]:
    """Runs `mtx prepare` on the text that `write_pairs` wrote, and returns its figures."""
    command = [
        sys.executable, "-m", "mtx", "prepare", *settings, f"data.dir={corpus_dir}", "data.train=train",
        *(f"data.{key}={side}" for key, side in zip(("src", "tgt"), SIDES, strict=True)), f"run_dir={run_dir}",
    ]  # fmt: skip
    started = time.perf_counter()
    peak = 0
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    log: list[str] = []
    assert process.stderr is not None
    reader = threading.Thread(target=log.extend, args=(process.stderr,))
    reader.start()
    try:
        while process.poll() is None:
            peak = max(peak, tree_pss(process.pid))
            time.sleep(SAMPLE_S)
            if time.perf_counter() - started > LIMIT_S:
                process.kill()
    finally:  # also if this script is interrupted
        process.terminate()
    total_s = time.perf_counter() - started
    reader.join()
    if process.returncode:
        sys.exit("".join(log) + f"error: mtx prepare ended with exit code {process.returncode} after {total_s:.0f} s")
    stages = {match[1]: float(match[2]) for line in log if (match := _STAGE.match(line.rstrip()))}
    return {"stages_s": stages, "total_s": round(total_s, 2), "peak_bytes": peak, "settings": settings}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="key=value", help="settings of mtx prepare")
    parser.add_argument("--data-dir", type=Path, required=True, help="folder with train.en[.gz] and train.de[.gz]")
    parser.add_argument("--pairs", type=int, default=1_000_000, help="number of pairs; default: %(default)s")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the temporary directory is removed
    with tempfile.TemporaryDirectory(prefix="mtx-bench-") as scratch:
        corpus_dir = Path(scratch, "corpus")
        corpus_dir.mkdir()
        write_pairs(arguments.data_dir, corpus_dir, arguments.pairs)
        figures = measure(corpus_dir, Path(scratch, "run"), arguments.settings)
    text_to_ids_s = sum(figures["stages_s"].get(stage, 0.0) for stage in ("cleaning", "encoding"))
    figures |= {
        "pairs": arguments.pairs,
        "pairs_per_minute": round(arguments.pairs * 60 / figures["total_s"]),
        "pairs_per_minute_without_tokenizer": round(arguments.pairs * 60 / text_to_ids_s),
        "cores": num_cores(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
    rows = [
        ("pairs", f"{figures['pairs']:,}"),
        *((f"{stage}, s", f"{figures['stages_s'].get(stage, 0.0):.1f}") for stage in STAGES),
        ("the whole command, s", f"{figures['total_s']:.1f}"),
        ("pairs a minute, the whole command", f"{figures['pairs_per_minute']:,}"),
        ("pairs a minute, cleaning and encoding", f"{figures['pairs_per_minute_without_tokenizer']:,}"),
        ("peak memory of all processes, MB", f"{figures['peak_bytes'] / 1e6:,.0f}"),
        ("cores", f"{figures['cores']}"),
    ]
    for name, value in rows:
        print(f"{name:40} {value:>12}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
