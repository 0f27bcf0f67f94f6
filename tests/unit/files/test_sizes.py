from mtx.files.sizes import in_megabytes


def test_sizes_that_differ_are_shown_so() -> None:
    assert in_megabytes(2_000_000, 7_400_000_000) == ["2 MB", "7,400 MB"]
    assert in_megabytes(1_900_000, 2_100_000) == ["1.9 MB", "2.1 MB"]
    assert in_megabytes(2_000_000, 2_000_001) == ["2.000000 MB", "2.000001 MB"]
    assert in_megabytes(5, 5) == ["0 MB", "0 MB"] and in_megabytes(1_400_000) == ["1 MB"]
