"""Lines that break programs: random bytes, every separator, controls, damage, direction marks, emoji, great lengths."""

import gzip
import random
import re

SEPARATORS = ["\n", "\v", "\f", "\r", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]  # of str.splitlines
NO_TEXT = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]")  # controls and separators, but LF
BOM = b"\xef\xbb\xbf"
PARTS = [
    *(separator.encode() for separator in SEPARATORS[1:]),
    b"\x00", b"\x1b[31m", b"\x07", b"\x7f", b"\t", b"\r", b" ", b"   ", BOM, b"\xff\xfe", b"\xc3", b"\xed\xa0\x80",
    b"\xed\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf0\x9f\x91", "\u202eright\u202c".encode(), "\u200fא\u200e".encode(),
    "\U0001f469\u200d\U0001f680".encode(), "\u3000\u200b".encode(), "\u2581".encode(), b"</s>", b"<unk>", b"<0x0A>",
    "e\u0301té".encode(), "日本語".encode(), b"one two", b"three",
]  # fmt: skip


def line(rng: random.Random, longest: int) -> bytes:
    """One line of any bytes but LF, of about `longest` bytes at most; often with CR at its end, sometimes empty."""
    match rng.randrange(10):
        case 0:
            return rng.choice([b"", b"", b" ", b"\r", BOM, "\u3000".encode()])
        case 1 | 2 | 3:
            text = rng.randbytes(rng.randrange(longest)).replace(b"\n", b"\n"[:0])
        case _:
            text = b"".join(rng.choices(PARTS, k=rng.randint(1, max(1, longest // 8))))
    return text + (b"\r" if rng.random() < 0.1 else b"")


def lines(rng: random.Random, count: int, longest: int, huge: int = 0) -> list[bytes]:
    """So many lines, `huge` of which have 1 MB: one character, random bytes, or text without a space."""
    found = [line(rng, longest) for _ in range(count)]
    for number in range(huge):
        whole = [b"x" * 1_000_000, rng.randbytes(1_000_000).replace(b"\n", b"\r"), "日本語\u2028".encode() * 83_334]
        found[rng.randrange(count)] = whole[number % 3]
    return found


def read_as(lines: list[bytes], ended: bool) -> list[str]:
    """The lines as mtx must read them: joined by LF, the last `ended` by one too, or not."""
    rest = [line.removesuffix(b"\r") for line in lines[:-1]] + [lines[-1].removesuffix(b"\r") if ended else lines[-1]]
    rest[0] = rest[0].removeprefix(BOM)
    return [line.decode("utf-8", errors="replace") for line in rest]


def packed(data: bytes, rng: random.Random, members: int) -> bytes:
    """The data as a gzip file of several members, cut anywhere."""
    cuts = [0, *sorted(rng.randrange(len(data)) for _ in range(members - 1)), len(data)]
    return b"".join(gzip.compress(data[a:b], 1) for a, b in zip(cuts, cuts[1:], strict=False))


def check_output(output: bytes, count: int) -> list[str]:
    """The lines of an output, which must be so many for every program that reads them, and clean UTF-8."""
    text = output.decode("utf-8")
    assert output.count(b"\n") == count and (not output or output.endswith(b"\n"))
    assert len(text.splitlines()) == count
    found = NO_TEXT.search(text.replace("\t", " "))  # cells stay
    assert found is None, repr(text[max(0, found.start() - 40) : found.end() + 40])
    return text.split("\n")[:-1]
