"""One table in each format."""

from mtx.files.tables import draw

HEAD, ROWS = ["", "BLEU"], [["a_1 & b", "30.12 ± 0.31"], ["x|y", "9.00"]]


def test_text_is_aligned() -> None:
    assert draw(HEAD, ROWS, "text") == ["                 BLEU", "a_1 & b  30.12 ± 0.31", "x|y              9.00"]


def test_markdown_escapes_the_bars_of_cells() -> None:
    assert draw(HEAD, ROWS, "markdown") == [
        "|         |         BLEU |",
        "| :--     |          --: |",
        "| a_1 & b | 30.12 ± 0.31 |",
        r"| x\|y    |         9.00 |",
    ]


def test_latex_escapes_and_needs_no_package() -> None:
    lines = draw(HEAD, [*ROWS, ["{50%}~^\\<$#>", ""]], "latex")
    assert lines[:2] == [r"\begin{tabular}{lr}", r"\hline"] and lines[-2:] == [r"\hline", r"\end{tabular}"]
    cells = [
        [cell.strip() for cell in line.removesuffix(r" \\").split(" & ")] for line in lines if line.endswith(r"\\")
    ]
    assert cells[0] == ["", "BLEU"] and cells[1] == [r"a\_1 \& b", r"30.12 $\pm$ 0.31"]
    escaped = r"\{50\%\}\textasciitilde{}\textasciicircum{}\textbackslash{}\textless{}\$\#\textgreater{}"
    assert cells[2] == [r"x\textbar{}y", "9.00"] and cells[3] == [escaped, ""]
