"""Records `mtx train demo` and one translation in a terminal, and draws docs/images/terminal.svg.

    python -m scripts.docs.recording docs/images/terminal.svg [--cast FILE]

The commands run in an empty folder, in a terminal of their own (minutes). `--cast FILE` keeps what they printed, with
its times, and draws from that file if it is there. The picture plays once and then shows its last frame, as do viewers
without animation. A run that resembles its text is one of a machine with nothing else to do.
"""

import argparse
import codecs
import fcntl
import html
import json
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import time
from bisect import bisect_right
from pathlib import Path

COMMANDS = [
    "mtx train demo",
    'echo "On Thursday the young doctor has to wait for the train." | mtx translate runs/demo',
]
COLUMNS = 100
ROWS = 30
SECONDS = 20  # of the picture, for what took minutes
TICK_S = 0.3  # a row changes no more often, such as that of a progress bar
CELL = 8.4  # pixels that a character is wide
LINE = 18  # pixels that a line is high
MARGIN = 14  # pixels around the text
TITLE = 34  # pixels of the bar above the text
PROMPT = "$ "
SGR = {1: "b", 2: "d", 31: "r", 32: "g", 33: "y", 34: "u", 35: "m", 36: "c", 90: "d"}
MOVING = "@media(prefers-reduced-motion:no-preference)"
STYLE = (
    """
rect{fill:#161b22;stroke:#57606a}
text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#e6edf3;white-space:pre}
.b{font-weight:700}.d{fill:#8b949e}.r{fill:#ff7b72}.g{fill:#7ee787}.y{fill:#e3b341}
.u{fill:#79c0ff}.m{fill:#d2a8ff}.c{fill:#76e3ea}.t{opacity:0}
"""
    + MOVING
    + """{.h{animation:h linear}.t{animation:v linear}}
@keyframes h{from,to{opacity:0}}@keyframes v{from,to{opacity:1}}
"""
)
Row = list[tuple[str, str]]  # characters, and the class of each


def main() -> None:
    """Records unless there is a cast, and draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("svg", type=Path)
    parser.add_argument("--cast", type=Path)
    arguments = parser.parse_args()
    if arguments.cast and arguments.cast.exists():
        cast = json.loads(arguments.cast.read_text(encoding="utf-8"))
    else:
        cast = record()
        if arguments.cast:
            arguments.cast.write_text(json.dumps(cast), encoding="utf-8")
    arguments.svg.write_text(draw(cast), encoding="utf-8")


def record() -> list[tuple[float, str]]:
    """What the commands print in a terminal, each piece with the seconds since the start."""
    events: list[tuple[float, str]] = []
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for command in COMMANDS:
            events.append((time.monotonic() - started, f"\x1b[32m{PROMPT}\x1b[0m\x1b[1m{command}\x1b[0m\r\n"))
            printed, terminal = pty.openpty()
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
            environment = {**os.environ, "PATH": path, "TERM": "xterm-256color"}
            words = ["sh", "-c", command]
            process = subprocess.Popen(words, cwd=folder, env=environment, stdout=terminal, stderr=terminal)
            os.close(terminal)
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            while True:
                try:
                    data = os.read(printed, 65536)
                except OSError:  # as Linux says that the other end is closed
                    data = b""
                if not data:
                    break
                events.append((time.monotonic() - started, decoder.decode(data)))
            os.close(printed)
            if process.wait():
                sys.exit(f"{command}: exit code {process.returncode}\n{''.join(text for _, text in events)}")
    return events


def rows_over_time(cast: list[tuple[float, str]]) -> list[list[tuple[float, Row]]]:
    """For each row of the terminal, from the first ever printed, what it showed and since when in the picture."""
    screen: list[Row] = [[]]
    history: list[list[tuple[float, Row]]] = [[]]
    row = column = 0
    style = ""
    pace = SECONDS / cast[-1][0]
    for at, text in cast:
        touched = set()
        for escape, character in re.findall(r"\x1b\[([0-9;?]*[A-Za-z])|([^\x1b])", text):
            if escape.endswith("m"):
                codes = [int(code or 0) for code in escape[:-1].split(";")]
                style = " ".join(SGR[code] for code in codes if code in SGR) if 0 not in codes else ""
            elif escape.endswith("K"):
                del screen[row][column:]
            elif escape.endswith("A"):
                row = max(row - int(escape[:-1] or 1), 0)
            elif character == "\r":
                column = 0
            elif character == "\n":
                row += 1
            elif character and ord(character) >= 32:
                if column == COLUMNS:
                    row += 1
                    column = 0
                while row >= len(screen):
                    screen.append([])
                screen[row] += [(" ", "")] * (column - len(screen[row]))
                screen[row][column : column + 1] = [(character, style)]
                column += 1
            while row >= len(screen):
                screen.append([])
            touched.add(row)
        history += [[] for _ in range(len(screen) - len(history))]
        for number in touched:
            shown = history[number]
            if shown and at * pace - shown[-1][0] < TICK_S and len(shown) > 1:
                shown[-1] = (shown[-1][0], list(screen[number]))
            else:
                shown.append((at * pace, list(screen[number])))
    return history


def draw(cast: list[tuple[float, str]]) -> str:
    """The picture: the rows that stay, those that showed something else before, and how they scroll."""
    history = rows_over_time(cast)
    while not any(character.strip() for _, row in history[-1] for character, _ in row):
        history.pop()
    width = 2 * MARGIN + COLUMNS * CELL
    height = TITLE + ROWS * LINE + MARGIN
    texts = []
    for number, shown in enumerate(history):
        y = number * LINE + 14
        for index, (since, row) in enumerate(shown):
            spans = _spans(row)
            if not spans:
                continue
            until = shown[index + 1][0] if index + 1 < len(shown) else None
            if until is None:
                kind = "h"
                timing = f"animation-duration:{since:.2f}s"
            else:
                kind = "t"
                timing = f"animation-duration:{until - since:.2f}s;animation-delay:{since:.2f}s"
            length = round(len("".join(character for character, _ in row).rstrip()) * CELL, 1)
            texts.append(f'<text class="{kind}" style="{timing}" y="{y}" textLength="{length}">{spans}</text>')
    starts = [shown[0][0] for shown in history]
    steps = []
    last_hidden = 0
    for at in sorted({*starts}):
        num_hidden = max(bisect_right(starts, at) - ROWS, 0)
        if num_hidden != last_hidden:
            steps.append(f"{100 * at / SECONDS:.2f}%{{transform:translateY(-{num_hidden * LINE}px)}}")
            last_hidden = num_hidden
    scroll = f"@keyframes s{{0%{{transform:none}}{''.join(steps)}}}{MOVING}{{.s{{animation:s {SECONDS}s step-end}}}}"
    final = max(len(history) - ROWS, 0) * LINE
    title = f"mtx train demo, sped up {cast[-1][0] / SECONDS:.0f} times"
    colors = ("#ff5f57", "#febc2e", "#28c840")
    dots = "".join(f'<circle cx="{18 + 17 * index}" cy="17" r="5" fill="{fill}"/>' for index, fill in enumerate(colors))
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img" aria-label="{title}">',
        f"<style>{STYLE}{scroll}</style>",
        f'<rect x=".5" y=".5" width="{width - 1:.0f}" height="{height - 1}" rx="8"/>{dots}',
        f'<text class="d" x="{width / 2:.0f}" y="22" text-anchor="middle">{title}</text>',
        f'<svg x="{MARGIN}" y="{TITLE}" width="{COLUMNS * CELL:.0f}" height="{ROWS * LINE}">',
        f'<g class="s" style="transform:translateY(-{final}px)">', *texts, "</g></svg></svg>", "",
    ])  # fmt: skip


def _spans(row: Row) -> str:
    """The text of a row as SVG, a tspan for each stretch of another style."""
    characters = "".join(character for character, _ in row).rstrip()
    parts: list[list[str]] = []
    for character, style in row[: len(characters)]:
        if not parts or parts[-1][0] != style:
            parts.append([style, ""])
        parts[-1][1] += character
    texts = ((style, html.escape(text, quote=False)) for style, text in parts)
    return "".join(f'<tspan class="{style}">{text}</tspan>' if style else text for style, text in texts)


if __name__ == "__main__":
    main()
