"""Sizes and numbers for messages: the only place that writes a number of bytes as MB or GB."""


def counted(number: int, noun: str) -> str:
    """A number of things, such as `1 line` or `2,000 lines`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def readable(*sizes: int) -> list[str]:
    """Sizes in MB, or GB from one on, with as many digits as it takes to tell those that differ apart."""
    texts: list[str] = []
    for digits in range(10):
        texts = [_text(size, digits) for size in sizes]
        if len({*texts}) == len({*sizes}):
            break
    return texts


def _text(size: int, digits: int) -> str:
    return f"{size / 1e6:,.{digits}f} MB" if size < 10**9 else f"{size / 1e9:,.{max(digits, 1)}f} GB"
