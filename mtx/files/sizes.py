"""Sizes for messages."""


def in_megabytes(*sizes: int) -> list[str]:
    """Sizes in MB, with as many digits as it takes to tell them apart."""
    texts: list[str] = []
    for digits in range(7):
        texts = [f"{size / 1e6:,.{digits}f} MB" for size in sizes]
        if len({*texts}) == len({*sizes}):
            break
    return texts
