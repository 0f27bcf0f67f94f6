"""Targets are filled in where there is no translation; what a person has confirmed stays, and so do other marks."""

from pathlib import Path

import pytest

from tests.unit.documents.test_document import STATE, translated

FILE = '<xliff version="1.2" xmlns:s="s"><file source-language="en" target-language="de"><body>{}</body></file></xliff>'
VERSION_2 = '<xliff version="2.0" srcLang="en" trgLang="de"><file id="f"><unit id="u">{}</unit></file></xliff>'
MARK = '<mrk mtype="seg" mid="{}">{}</mrk>'


def unit(content: str, attributes: str = "") -> str:
    return f"<trans-unit{attributes}>{content}</trans-unit>"


def result_of(content: str, directory: Path, overwrite: bool = False, file: str = FILE) -> str:
    before, after = file.split("{}")
    result = translated(directory / "a.xlf", file.format(content), overwrite=overwrite)
    assert result.startswith(before) and result.endswith(after)
    return result.removeprefix(before).removesuffix(after)


@pytest.mark.parametrize(
    "content, attributes",
    [
        ("<source>a</source>", ' s:locked="true"'),
        ("<source>a</source><target>b</target>", ' s:locked="true"'),
        ("<source>a</source><target>b</target>", ' approved="yes"'),
        ("<source>a</source><target state='final'>b</target>", ""),
        ('<source>a</source><target state="signed-off">b</target>', ""),
        ("<source>a</source><target>b</target>", ' s:confirmed="1"'),
        ("<source>a</source><target>b</target>", ' s:status="ManuallyConfirmed"'),
        ("<source>a</source><target/>", ' approved="yes"'),
    ],
)
def test_what_a_person_confirmed_is_never_overwritten(content: str, attributes: str, tmp_path: Path) -> None:
    text = unit(content, attributes)
    assert result_of(text, tmp_path, overwrite=True) == text


def test_confirmed_segments_stay_beside_others(tmp_path: Path) -> None:
    def text(second: str, state: str = "") -> str:
        sides = "<source>one. two. three.</source><seg-source>{}</seg-source><target{}>{}</target>"
        marks = [MARK.format(n, word) for n, word in enumerate(["one.", "two.", "three."])]
        targets = [MARK.format(n, word) for n, word in enumerate(["eins.", second, "drei."])]
        definitions = '<s:seg-defs><s:seg id="0" locked="true"/><s:seg id="1"/><s:seg id="2" conf="Translated"/>'
        return unit(sides.format("".join(marks), state, " ".join(targets)) + f"{definitions}</s:seg-defs>")

    assert result_of(text("zwei."), tmp_path, overwrite=True) == text("TWO.", STATE)
    assert result_of(text(""), tmp_path) == text("TWO.", STATE)
    assert result_of(text("zwei."), tmp_path) == text("zwei.")
    locked = text("zwei.").replace("zwei.", "").replace('id="1"/>', 'id="1" locked="true"/>')
    assert result_of(locked, tmp_path) == locked
    new = text("zwei.", ' state="new"').replace("eins.", "").replace("drei.", "one.")
    assert f"<target{STATE}>{MARK.format(0, '')} {MARK.format(1, 'TWO.')} {MARK.format(2, 'one.')}<" in result_of(
        new, tmp_path
    )
    without = new[: new.index("<target")] + new[new.index("<s:seg-defs") :]
    assert f"<target{STATE}>{MARK.format(0, '')}{MARK.format(1, 'TWO.')}{MARK.format(2, 'THREE.')}<" in result_of(
        without, tmp_path
    )
    twice = result_of(without.replace('mid="1"', 'mid="2"'), tmp_path)
    assert f"{MARK.format(2, 'TWO.')}{MARK.format(2, 'THREE.')}</target>" in twice
    version_2 = '<segment state="final"><source>a</source><target>b</target></segment>'
    assert result_of(version_2, tmp_path, overwrite=True, file=VERSION_2) == version_2


def test_empty_marks_are_filled_and_other_text_stays(tmp_path: Path) -> None:
    def text(target: str) -> str:
        sides = "<source>one. two.</source><seg-source>{} {}</seg-source>{}"
        return unit(sides.format(MARK.format(1, "one."), MARK.format(2, "two."), target))

    target = '<target>\n<mrk mtype="seg" mid="1" /> {} mehr</target>'.format(MARK.format(2, "zwei."))
    filled = f"<target{STATE}>\n{MARK.format(1, 'ONE.')} {MARK.format(2, 'zwei.')} mehr</target>"
    assert result_of(text(target), tmp_path) == text(filled)
    for kept in ("<target>alles</target>", f"<target>{MARK.format(1, '')}{MARK.format(1, '')}alles</target>"):
        assert result_of(text(kept), tmp_path) == text(kept)
    whole = f"<target{STATE}>{MARK.format(1, 'ONE.')} {MARK.format(2, 'TWO.')}</target>"
    assert result_of(text(kept), tmp_path, overwrite=True) == text(whole)


def test_a_target_without_some_marks_keeps_what_is_confirmed(tmp_path: Path) -> None:
    marks = [MARK.format(number, text) for number, text in enumerate(["one.", "two.", "three."])]
    definitions = '<s:seg-defs><s:seg id="0" locked="true"/><s:seg id="1"/></s:seg-defs>'

    def text(*target_marks: str, state: str = "") -> str:
        target = f"<target{state}>{''.join(target_marks)}</target>"
        return unit(f"<source>all</source><seg-source>{''.join(marks)}</seg-source>{target}{definitions}")

    old = text(MARK.format(0, "eins."), MARK.format(1, "zwei."))
    added = text(MARK.format(0, "eins."), MARK.format(1, "zwei."), MARK.format(2, "THREE."), state=STATE)
    assert result_of(old, tmp_path) == added
    assert result_of(old, tmp_path, overwrite=True) == added


def test_attributes_are_set_where_they_are(tmp_path: Path) -> None:
    text = unit(
        "<source>a</source><target x=' state=\"new\"' state='new' state-qualifier = \"exact-match\" >b</target>"
    )
    expected = (
        '<target x=\' state="new"\' state="needs-review-translation" state-qualifier = "mt-suggestion">A</target>'
    )
    assert expected in result_of(text, tmp_path)
    named = FILE.replace(' target-language="de"', " x=\"source-language='fr'\"")
    result = translated(tmp_path / "a.xlf", named.format(unit("<source>a</source>")))
    assert 'x="source-language=\'fr\'" target-language="de">' in result
    assert translated(tmp_path / "a.xlf", named.format("")) == named.format("")
    unnamed = translated(tmp_path / "a.xlf", named.format(unit("<source>a</source>")), ("en", "tgt"))
    assert "x=\"source-language='fr'\">" in unnamed


def test_white_space_references_and_protected_text(tmp_path: Path) -> None:
    protected = '<mrk mtype="x" translate="no">no <g id="1">no</g></mrk>'
    source = f"  one\n\ttwo &#65;&amp;lt; {protected} <![CDATA[a<b]]>\n"
    text = unit(f"<source>{source}</source>", ' xml:space="preserve"')
    assert f"<target{STATE}>  ONE\n\tTWO A&amp;lt; {protected} A&lt;B\n</target>" in result_of(text, tmp_path)
    side = text.replace(' xml:space="preserve"', "").replace("<source>", '<source xml:space="preserve">')
    assert "ONE\n\tTWO" in result_of(side, tmp_path)
    folded = result_of(text.replace(' xml:space="preserve"', ""), tmp_path)
    assert f"<target{STATE}>  ONE TWO A&amp;lt; {protected} A&lt;B\n</target>" in folded


def test_a_part_may_be_translated_after_all(tmp_path: Path) -> None:
    group = '<group translate="no">{}{}</group>'
    kept = unit("<source>a</source>")
    first, other = (
        unit(f"<source>b</source>{target}", ' translate="yes"') for target in ("", f"<target{STATE}>B</target>")
    )
    assert result_of(group.format(kept, first), tmp_path) == group.format(kept, other)


def test_an_empty_seg_source_is_none(tmp_path: Path) -> None:
    result = result_of(unit("<source>a</source><seg-source/>"), tmp_path)
    assert result == unit(f"<source>a</source><seg-source/><target{STATE}>A</target>")


def test_a_target_without_some_marks_is_completed(tmp_path: Path) -> None:
    def text(target: str) -> str:
        sides = "<source>one. two.</source><seg-source>{} {}</seg-source>{}"
        return unit(sides.format(MARK.format(1, "one."), MARK.format(2, "two."), target))

    whole = f"<target{STATE}>{MARK.format(1, 'Eins.')} {MARK.format(2, 'TWO.')}</target>"
    assert result_of(text(f"<target> {MARK.format(1, 'Eins.')} </target>"), tmp_path) == text(whole)
    kept = text(f"<target>{MARK.format(1, 'Eins.')} mehr</target>")
    assert result_of(kept, tmp_path) == kept


def test_a_copied_source_in_the_state_initial_is_no_translation(tmp_path: Path) -> None:
    segment = '<segment state="initial"><source>a</source><target>{}</target></segment>'
    result = segment.format("A").replace("initial", "translated")
    assert result_of(segment.format("a"), tmp_path, file=VERSION_2) == result
    for kept in (segment.format("b"), segment.format("a").replace(' state="initial"', "")):
        kept += segment.format("c").replace(' state="initial"', "")
        assert result_of(kept, tmp_path, file=VERSION_2) == kept


@pytest.mark.parametrize(
    "num_copies, others, are_translated",
    [(1, "", True), (11, '<trans-unit id="x"><source>b</source><target>c</target></trans-unit>', True),
     (11, '<trans-unit id="x"><source>b</source><target state="final">c</target></trans-unit>', False),
     (8, '<trans-unit id="x"><source>b</source><target>c</target></trans-unit>', False),
     (3, '<trans-unit id="x"><source>42</source><target>42</target></trans-unit>', True)],
)  # fmt: skip
def test_targets_that_repeat_their_source_are_translated_where_a_program_wrote_all_so(
    num_copies: int, others: str, are_translated: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    result = result_of(unit("<source>a</source><target>a</target>") * num_copies + others, tmp_path)
    assert result.count("A</target>") == (num_copies if are_translated else 0)
    copies = "1 translation" if num_copies == 1 else f"{num_copies} translations"
    replaced = f"{copies} identical to the source: translated"
    assert (replaced if are_translated else f"{num_copies} left ({num_copies} copied sources)") in caplog.text


def test_locked_copies_are_no_copied_sources(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    copy = "<source>a</source><target>a</target>"
    result_of(unit(copy) * 2 + unit(copy).replace("<trans-unit", '<trans-unit approved="yes"'), tmp_path)
    assert "2 translations identical to the source: translated" in caplog.text
    assert ": 2 segments translated, 1 left (1 locked segment)" in caplog.text
    sides = "<source>one. two.</source><seg-source>{}</seg-source><target>{}</target>"
    marks = "".join(MARK.format(n, word) for n, word in enumerate(["one.", "two."]))
    definitions = '<s:seg-defs><s:seg id="0" locked="true"/><s:seg id="1"/></s:seg-defs>'
    result_of(unit(sides.format(marks, marks) + definitions), tmp_path, overwrite=True)
    assert caplog.text.count(": 1 segment translated, 1 left (1 locked segment)") == 1


def test_only_copies_that_stay_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    text = unit("<source>a</source><target>a</target>") + unit("<source>b</source><target state='new'>b</target>")
    result_of(text, tmp_path)
    assert ": 1 segment translated, 1 left (1 copied source)" in caplog.text
    caplog.clear()
    result_of(text, tmp_path, overwrite=True)
    assert caplog.messages == [f"{tmp_path / 'a.xlf'}: 2 segments translated"]


def test_a_unit_of_only_an_emoji_gets_its_target(tmp_path: Path) -> None:
    units = unit("<source>👍</source>") + unit("<source>42</source>") + unit('<source><x id="1"/></source>')
    result = result_of(units, tmp_path)
    assert result.count("<target") == 2 and f"<target{STATE}>👍</target>" in result
    assert result_of(result, tmp_path) == result


@pytest.mark.parametrize("content", [
    '<source><ph id="1">👍</ph></source><target state="translated"><ph id="1">👍</ph></target>',
    '<source>a <mrk mtype="protected">B</mrk></source><target><mrk mtype="protected">B</mrk></target>',
    "<source>a %s</source><target>%s</target>",
    '<source><s:n>a</s:n></source><target state="translated"><s:n>b</s:n></target>',
])  # fmt: skip
def test_a_code_is_no_text_and_any_text_of_a_target_is_a_translation(content: str, tmp_path: Path) -> None:
    assert result_of(unit(content), tmp_path) == unit(content)


def test_placeholders_are_tags_and_choices_stay(tmp_path: Path) -> None:
    assert f"<target{STATE}>%1$@ A {{{{name}}}}</target>" in result_of(
        unit("<source>%1$@ a {{name}}</source>"), tmp_path
    )
    choice = unit("<source>{VAR_PLURAL, plural, =0 {none} other {some}}</source>")
    assert result_of(choice, tmp_path) == choice
    marks = MARK.format(1, "{n, plural, other {some}}") + MARK.format(2, "two.")
    result = result_of(unit(f"<source>some two.</source><seg-source>{marks}</seg-source>"), tmp_path)
    assert f"<target{STATE}>{MARK.format(1, '')}{MARK.format(2, 'TWO.')}</target>" in result


@pytest.mark.parametrize("state", ["", ' state="initial"', ' state="new"', ' state="needs-translation"'])
@pytest.mark.parametrize(
    "target", ["", "<target/>", '<target state="needs-translation"/>', '<target state="new">a b</target>']
)
@pytest.mark.parametrize("attributes", ["", " id='s' subState='x:y'"])
def test_a_segment_of_version_2_is_translated_once(state: str, target: str, attributes: str, tmp_path: Path) -> None:
    text = f"<segment{attributes}{state}><source>a b</source>{target}</segment>"
    kept = "<segment state='translated'><source>c</source><target>d</target></segment>"
    once = result_of(text + kept, tmp_path, file=VERSION_2)
    assert once.count('"translated"') == (2 if "<target s" in target else 1) and once.endswith(kept)
    assert ">A B</target>" in once and "subState" not in once and "new" not in once and "needs" not in once
    for edited in (once, once.replace("A B", "a b"), once.replace("A B", "a person's words")):
        assert result_of(edited, tmp_path, file=VERSION_2) == edited
    assert ">A B</target>" in result_of(once.replace("A B", "b"), tmp_path, overwrite=True, file=VERSION_2)


@pytest.mark.parametrize("state", ["new", "needs-translation", "needs-adaptation", "needs-l10n", "x-own", ""])
@pytest.mark.parametrize("of_unit", ["", ' state="new"', ' approved="no"'])
def test_a_segment_of_version_1_is_translated_once(state: str, of_unit: str, tmp_path: Path) -> None:
    target = f"<target state={state!r}/>" if state else ""
    once = result_of(unit(f"<source>a b</source>{target}", of_unit) + unit("<source>c</source>"), tmp_path)
    for edited in (once, once.replace("A B", "a b"), once.replace("A B", "a person's words")):
        assert result_of(edited, tmp_path) == edited
