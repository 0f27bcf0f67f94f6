"""Deals sentences out to several devices, and collects what they return in the order of the sentences."""

from collections.abc import Sequence
from typing import TypeVar

Value = TypeVar("Value")


def deal(lengths: Sequence[int], size: int) -> list[list[int]]:
    """The numbers of the sentences that each of `size` devices gets, ascending: as many of each length as others."""
    by_length = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    return [sorted(by_length[number::size]) for number in range(size)]


def collect(parts: Sequence[Sequence[Value]], rows: Sequence[Sequence[int]]) -> list[Value]:
    """The results of all sentences in order, from those of each device for the sentences that `deal` gave it."""
    by_row = {
        row: value
        for part, part_rows in zip(parts, rows, strict=True)
        for value, row in zip(part, part_rows, strict=True)
    }
    return [by_row[row] for row in range(len(by_row))]
