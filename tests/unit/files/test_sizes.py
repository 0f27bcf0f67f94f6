from mtx.files.sizes import readable


def test_sizes_that_differ_are_shown_with_digits_that_differ() -> None:
    assert readable(2_000_000, 7_400_000_000) == ["2 MB", "7.4 GB"]
    assert readable(1_900_000, 2_100_000) == ["1.9 MB", "2.1 MB"]
    assert readable(2_000_000, 2_000_001) == ["2.000000 MB", "2.000001 MB"]
    assert readable(3_990_000_000, 4_000_000_000) == ["3.99 GB", "4.00 GB"]
    assert readable(4_000_000_000, 4_000_000_001) == ["4.000000000 GB", "4.000000001 GB"]
    assert readable(5, 5) == ["0 MB", "0 MB"] and readable(1_400_000) == ["1 MB"]
    assert readable(70_500_000_000_000) == ["70,500.0 GB"]
