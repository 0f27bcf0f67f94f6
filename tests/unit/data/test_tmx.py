"""Translation memories: text of every element of TMX, without the codes of other programs."""

from pathlib import Path

from mtx.data.bilingual import Unit, Variant, date_of
from mtx.data.translation_memories import read_tmx

MEMORY = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<!-- a <tu> that is none -->
<tmx version="1.4">
  <header creationtool="X" srclang="*all*" segtype="sentence"><note>n</note><prop type="p">q</prop>
    <ude name="u"><map unicode="#xF8FF"/></ude></header>
  <body>
    <tu tuid="1" creationdate="20230101T000000Z" changedate="20240101T000000Z">
      <note>no text</note><prop type="p">q</prop>
      <tuv xml:lang="en-US"><note>no</note><seg>A <bpt i="1">&lt;b&gt;<sub>no</sub></bpt>big<ept i="1">&lt;/b&gt;</ept>
        dog &amp; <![CDATA[<cat>]]> &#233;.</seg></tuv>
      <tuv xml:lang="de-DE" changedate="20250101T000000Z">
        <seg>Ein <hi type="bold">großer <hi>Hund</hi></hi>.</seg></tuv>
    </tu>
    <tu><tuv lang="EN"><seg>one<ph type="lb">\\n</ph>two<it pos="end">x</it><ut>y</ut></seg></tuv>
      <tuv lang="FR"><seg/></tuv></tu>
  </body>
</tmx>
"""


def test_units_of_every_element(tmp_path: Path) -> None:
    (tmp_path / "m.tmx").write_text(MEMORY, encoding="utf-8")
    first, second = read_tmx(tmp_path / "m.tmx")
    assert first == Unit(
        8,
        [
            Variant("en-US", "A big dog & <cat> é.", date_of("20240101T000000Z")),
            Variant("de-DE", "Ein großer Hund.", date_of("20250101T000000Z")),
        ],
    )
    assert second == Unit(15, [Variant("EN", "one two"), Variant("FR", "")])
