"""Sentences are dealt out so that each device has as much to do, and their results come back in order."""

from mtx.decoding.dealing import collect, deal


def test_sentences_are_dealt_by_length_and_collected_in_order() -> None:
    lengths = [3, 9, 1, 9, 4, 4, 2]
    rows = deal(lengths, 3)
    assert sorted(sum(rows, [])) == list(range(7)) and deal(lengths, 1) == [list(range(7))]
    sums = [sum(lengths[row] for row in part) for part in rows]
    assert max(sums) - min(sums) <= max(lengths)
    assert collect([[lengths[row] for row in part] for part in rows], rows) == lengths
