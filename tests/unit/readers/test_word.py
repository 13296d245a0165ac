"""Word documents: fields, numbers of lists, headings, formulas, drawings, headers and hidden text."""

from __future__ import annotations

from typing import Any

import pytest

from llama_index_contextual.readers.files import ParsedFile
from tests.integration.readers.office_files import WORD, docx, part, read, replaced

OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006"
SPACES = (
    f'xmlns:w="{WORD}" xmlns:m="{OFFICE}/math" xmlns:r="{OFFICE}/relationships"'
    ' xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
    ' xmlns:wps="http://schemas.microsoft.com/office/word/2010/wordprocessingShape"'
    ' xmlns:wp="http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing"'
    ' xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"'
    ' xmlns:c="http://schemas.openxmlformats.org/drawingml/2006/chart"'
    ' xmlns:v="urn:schemas-microsoft-com:vml" xmlns:o="urn:schemas-microsoft-com:office:office"'
)


def letter(
    body: str, parts: dict[str, str] | None = None, relations: dict[str, tuple[str, str]] | None = None
) -> bytes:
    """Return a document with a body, further parts, and relationships (id, to kind and target)."""
    data = docx()
    rels = part(data, "word/_rels/document.xml.rels").decode()
    entries = "".join(
        f'<Relationship Id="{key}" Type="{OFFICE}/relationships/{kind}" Target="{target}"/>'
        for key, (kind, target) in (relations or {}).items()
    )
    files = {
        "word/document.xml": f"<w:document {SPACES}><w:body>{body}</w:body></w:document>",
        "word/_rels/document.xml.rels": rels.replace("</Relationships>", f"{entries}</Relationships>"),
        **(parts or {}),
    }
    return replaced(data, {name: text.encode() for name, text in files.items()})


def word(body: str, parts: dict[str, str] | None = None, relations: Any = None) -> ParsedFile:
    return read("a.docx", letter(body, parts, relations))


def run(text: str, properties: str = "") -> str:
    return f'<w:r><w:rPr>{properties}</w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'


def paragraph(content: str, properties: str = "") -> str:
    content = content if content.startswith("<") else run(content)
    return f"<w:p><w:pPr>{properties}</w:pPr>{content}</w:p>"


def field_mark(kind: str) -> str:
    return f'<w:r><w:fldChar w:fldCharType="{kind}"/></w:r>'


def field(instruction: str, result: str) -> str:
    marks = [field_mark(kind) for kind in ("begin", "separate", "end")]
    return f"{marks[0]}<w:r><w:instrText>{instruction}</w:instrText></w:r>{marks[1]}{result}{marks[2]}"


class TestFields:
    def test_simple_fields_are_read_wherever_they_stand(self) -> None:
        date = f'<w:fldSimple w:instr=" DATE ">{run("3 May 2025")}</w:fldSimple>'
        nested = f'<w:fldSimple w:instr=" IF "><w:fldSimple w:instr=" PAGE ">{run("7")}</w:fldSimple></w:fldSimple>'
        link = f'<w:hyperlink w:anchor="x"><w:fldSimple w:instr=" REF ">{run("Annex B")}</w:fldSimple></w:hyperlink>'
        text = word(paragraph(run("On ") + date + run(", page ") + nested + run(", see ") + link)).text
        assert text == "On 3 May 2025, page 7, see Annex B"

    def test_the_condition_of_a_field_is_not_read_and_its_result_is(self) -> None:
        inner = field(" MERGEFIELD Country ", run("DE"))
        begin, separate, end = (
            f'<w:r><w:fldChar w:fldCharType="{kind}"/></w:r>' for kind in ("begin", "separate", "end")
        )
        instruction = f"<w:r><w:instrText> IF </w:instrText></w:r>{inner}<w:r><w:instrText> = DE </w:instrText></w:r>"
        body = paragraph(run("VAT: ") + begin + instruction + separate + run("19 %") + end)
        assert word(body).text == "VAT: 19 %"

    def test_a_field_without_an_end_hides_nothing(self) -> None:
        assert word(paragraph(field_mark("begin") + run("kept")) + paragraph("also kept")).text == "kept\n\nalso kept"

    def test_the_selected_entry_of_a_drop_down_list(self) -> None:
        choices = "".join(f'<w:listEntry w:val="{entry}"/>' for entry in ("monthly", "yearly"))
        data = f'<w:ffData><w:ddList><w:result w:val="1"/>{choices}</w:ddList></w:ffData>'
        body = (
            f'<w:r><w:fldChar w:fldCharType="begin">{data}</w:fldChar></w:r><w:r><w:fldChar w:fldCharType="end"/></w:r>'
        )
        assert word(paragraph(run("Paid ") + body)).text == "Paid yearly"

    @pytest.mark.parametrize(
        ("instruction", "text"),
        [
            (" MACROBUTTON NoMacro [Enter the client] ", "For [Enter the client] only"),
            (r" EQ \f(12;b) ", "For (12)/(b) only"),
            (r' EQ \* jc2 \* "Font:Mincho" \o\ad(\s\up 9(とう),東) ', "For 東(とう) only"),
            (" SYMBOL 176 ", "For ° only"),
            (' XE "Law:civil" ', "For only"),
            (" EQ ", "For only"),
        ],
    )
    @pytest.mark.parametrize("ends", [["end"], ["separate", "end"]])
    def test_fields_without_a_result_that_show_their_instruction(
        self, instruction: str, text: str, ends: list[str]
    ) -> None:
        begin, *after = (field_mark(kind) for kind in ("begin", *ends))
        body = f"{begin}<w:r><w:instrText>{instruction}</w:instrText></w:r>{''.join(after)}"
        assert word(paragraph(run("For ") + body + run(" only"))).text == text

    def test_an_instruction_in_an_instruction_and_one_with_a_result_are_not_shown(self) -> None:
        inner = field(r" EQ \f(1,2) ", "")
        outer = f"{field_mark('begin')}<w:r><w:instrText> IF </w:instrText></w:r>{inner}{field_mark('end')}"
        assert word(paragraph(run("a") + outer + field(" SYMBOL 176 ", run("!")))).text == "a!"

    def test_fields_in_footnotes(self) -> None:
        note = (
            run("Table ") + field(" SEQ Table ", run("4")) + f'<w:fldSimple w:instr=" REF x ">{run("b")}</w:fldSimple>'
        )
        body = paragraph(run("See") + '<w:r><w:footnoteReference w:id="2"/></w:r>')
        notes = f'<w:footnotes {SPACES}><w:footnote w:id="2"><w:p>{note}</w:p></w:footnote></w:footnotes>'
        parts = {"word/footnotes.xml": notes}
        assert word(body, parts, {"rIdF": ("footnotes", "footnotes.xml")}).text == "See[1]\n\n1. Table 4b"

    def test_text_with_a_pronunciation_stays_one_word(self) -> None:
        ruby = "<w:r><w:ruby><w:rt>{}</w:rt><w:rubyBase>{}</w:rubyBase></w:ruby></w:r>"
        body = ruby.format(run("とう"), run("東")) + ruby.format(run("きょう"), run("京")) + run("支店")
        assert word(paragraph(body)).text == "東京(とうきょう)支店"

    def test_text_with_a_direction(self) -> None:
        inner = f'<w:bdo w:val="ltr"><w:dir w:val="rtl">{run("B-12")}</w:dir></w:bdo>'
        assert word(paragraph(run("Number ") + inner)).text == "Number B-12"


ABSTRACT = """<w:numbering xmlns:w="{space}">{lists}</w:numbering>"""


def numbering(*levels: tuple[str, str], extra: str = "", start: str = "1") -> str:
    """Return the part with one list (number 1), whose levels have a format and a text."""
    entries = "".join(
        f'<w:lvl w:ilvl="{at}"><w:start w:val="{start}"/><w:numFmt w:val="{kind}"/><w:lvlText w:val="{text}"/></w:lvl>'
        for at, (kind, text) in enumerate(levels)
    )
    one = f'<w:abstractNum w:abstractNumId="0">{entries}</w:abstractNum>'
    lists = f'{one}<w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num>{extra}'
    return ABSTRACT.format(space=WORD, lists=lists)


def item(text: str, level: int = 0, number: int = 1) -> str:
    return paragraph(text, f'<w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="{number}"/></w:numPr>')


class TestNumbers:
    @pytest.mark.parametrize(
        ("kind", "text", "expected"),
        [
            ("upperRoman", "%1.", ["I.", "II."]),
            ("lowerLetter", "%1)", ["a)", "b)"]),
            ("decimalZero", "Art. %1", ["Art. 01", "Art. 02"]),
            ("ordinal", "%1", ["1st", "2nd"]),
            ("chineseCounting", "第%1条", ["第一条", "第二条"]),
            ("bullet", "•", ["-", "-"]),
        ],
    )
    def test_numbers_are_shown_as_in_word(self, kind: str, text: str, expected: list[str]) -> None:
        parsed = word(item("one") + item("two"), {"word/numbering.xml": numbering((kind, text))})
        assert parsed.text == f"{expected[0]} one\n{expected[1]} two"

    def test_levels_count_on_and_restart(self) -> None:
        levels = numbering(("decimal", "%1."), ("decimal", "%1.%2"), ("lowerLetter", "(%3)"))
        body = item("A") + item("B", 1) + item("C", 1) + item("D", 2) + paragraph("text") + item("E", 2) + item("F")
        text = word(body + item("G", 1), {"word/numbering.xml": levels}).text
        assert [line.strip() for line in text.splitlines() if line] == [
            *("1. A", "1.1 B", "1.2 C", "(a) D", "text", "(b) E", "2. F", "2.1 G"),
        ]

    def test_another_list_with_the_same_definition_starts_again_if_it_says_so(self) -> None:
        override = '<w:lvlOverride w:ilvl="0"><w:startOverride w:val="5"/></w:lvlOverride>'
        extra = '<w:num w:numId="2"><w:abstractNumId w:val="0"/></w:num>'
        extra += f'<w:num w:numId="3"><w:abstractNumId w:val="0"/>{override}</w:num>'
        body = item("a") + item("b", number=2) + item("c", number=3) + item("d", number=3)
        text = word(body, {"word/numbering.xml": numbering(("decimal", "%1."), extra=extra)}).text
        assert text == "1. a\n2. b\n5. c\n6. d"

    def test_deleted_paragraphs_are_not_counted(self) -> None:
        mark = '<w:rPr><w:del w:id="1" w:author="x"/></w:rPr><w:numPr><w:ilvl w:val="0"/><w:numId w:val="1"/></w:numPr>'
        deleted = paragraph("<w:del><w:r><w:delText>gone</w:delText></w:r></w:del>", mark)
        text = word(item("a") + deleted + item("b"), {"word/numbering.xml": numbering(("decimal", "%1."))}).text
        assert text == "1. a\n2. b"

    def test_numbers_of_a_style_that_is_based_on_another(self) -> None:
        styles = (
            f'<w:styles xmlns:w="{WORD}"><w:style w:type="paragraph" w:styleId="Clause"><w:name w:val="Clause"/>'
            '<w:pPr><w:numPr><w:numId w:val="1"/></w:numPr></w:pPr></w:style><w:style w:type="paragraph"'
            ' w:styleId="Sub"><w:name w:val="Sub clause"/><w:basedOn w:val="Clause"/></w:style></w:styles>'
        )
        parts = {"word/numbering.xml": numbering(("decimal", "§ %1")), "word/styles.xml": styles}
        body = paragraph("Rent", '<w:pStyle w:val="Clause"/>') + paragraph("Term", '<w:pStyle w:val="Sub"/>')
        without = paragraph("Free", '<w:pStyle w:val="Sub"/><w:numPr><w:numId w:val="0"/></w:numPr>')
        assert word(body + without, parts).text == "§ 1 Rent\n§ 2 Term\n\nFree"

    def test_numbers_in_table_cells(self) -> None:
        rows = "".join(
            f"<w:tr><w:tc>{item('')}</w:tc><w:tc>{paragraph(text)}</w:tc></w:tr>" for text in ("Rent", "Deposit")
        )
        head = f"<w:tr><w:tc>{paragraph('No.')}</w:tc><w:tc>{paragraph('Item')}</w:tc></w:tr>"
        text = word(f"<w:tbl>{head}{rows}</w:tbl>", {"word/numbering.xml": numbering(("decimal", "%1."))}).text
        assert text == "No.  Item\n1.  Rent\n2.  Deposit"

    def test_numbers_and_lists_in_table_cells_stay_in_their_rows(self) -> None:
        rows = [[item("Rent"), paragraph("due") + item("in May") + item("in June")], [item("Deposit"), item("once")]]
        body = "".join(f"<w:tr>{''.join(f'<w:tc>{cell}</w:tc>' for cell in row)}</w:tr>" for row in rows)
        text = word(f"<w:tbl>{body}</w:tbl>", {"word/numbering.xml": numbering(("decimal", "%1."))}).text
        assert text == "1. Rent  due; 2. in May; 3. in June\n4. Deposit  5. once"


class TestHeadings:
    @pytest.mark.parametrize("name", ["heading 2", "Heading 2"])
    def test_styles_based_on_a_heading_and_outline_levels(self, name: str) -> None:
        styles = (
            f'<w:styles xmlns:w="{WORD}"><w:style w:type="paragraph" w:styleId="H2"><w:name w:val="{name}"/></w:style>'
            '<w:style w:type="paragraph" w:styleId="Firm"><w:name w:val="Firm"/><w:basedOn w:val="H2"/></w:style>'
            '<w:style w:type="paragraph" w:styleId="Firm3"><w:name w:val="Firm three"/><w:basedOn w:val="Firm"/>'
            '<w:pPr><w:outlineLvl w:val="2"/></w:pPr></w:style>'
            '<w:style w:type="paragraph" w:styleId="Toc"><w:name w:val="TOC Heading"/><w:basedOn w:val="H2"/>'
            '<w:pPr><w:outlineLvl w:val="9"/></w:pPr></w:style></w:styles>'
        )
        body = "".join(paragraph(style, f'<w:pStyle w:val="{style}"/>') for style in ("H2", "Firm", "Firm3", "Toc"))
        parsed = word(body + paragraph("Outline", '<w:outlineLvl w:val="0"/>'), {"word/styles.xml": styles})
        levels = [(heading.level, heading.title) for heading in parsed.map.headings]
        assert levels == [(2, "H2"), (2, "Firm"), (3, "Firm3"), (1, "Outline")]

    @pytest.mark.parametrize("name", ["Überschrift 2", "Titre 2", "標題 2", "見出し 2", "제목 2", "Заголовок 2"])
    def test_names_of_headings_in_other_languages(self, name: str) -> None:
        styles = (
            f'<w:styles xmlns:w="{WORD}"><w:style w:type="paragraph" w:styleId="a2"><w:name w:val="{name}"/></w:style>'
            "</w:styles>"
        )
        body = paragraph("Fees", '<w:pStyle w:val="a2"/>') + paragraph("text")
        assert word(body, {"word/styles.xml": styles}).text == "## Fees\n\ntext"

    def test_an_outline_level_is_inherited_over_two_styles(self) -> None:
        entries = (("A", "", '<w:pPr><w:outlineLvl w:val="1"/></w:pPr>'), ("B", "A", ""), ("C", "B", ""))
        styles = "".join(
            f'<w:style w:type="paragraph" w:styleId="{key}"><w:name w:val="Firm {key}"/><w:basedOn w:val="{base}"/>'
            f"{rest}</w:style>"
            for key, base, rest in entries
        )
        parts = {"word/styles.xml": f'<w:styles xmlns:w="{WORD}">{styles}</w:styles>'}
        assert word(paragraph("Fees", '<w:pStyle w:val="C"/>'), parts).text == "## Fees"

    def test_a_long_heading_is_read_whole_and_a_paragraph_in_its_style_is_a_paragraph(self) -> None:
        long = "Notice " + "of the right to withdraw " * 9
        body = (paragraph(f"{long}{end}", '<w:pStyle w:val="Heading1"/>') for end in ("under section 9302", "at once."))
        parsed = word("".join(body))
        assert parsed.text == f"# {long}under section 9302\n\n{long}at once."
        assert [heading.title[-4:] for heading in parsed.map.headings] == ["o w…"]

    def test_a_circle_of_styles_ends(self) -> None:
        styles = (
            f'<w:styles xmlns:w="{WORD}"><w:style w:type="paragraph" w:styleId="A"><w:name w:val="A"/>'
            '<w:basedOn w:val="B"/></w:style><w:style w:type="paragraph" w:styleId="B"><w:name w:val="B"/>'
            '<w:basedOn w:val="A"/></w:style></w:styles>'
        )
        assert word(paragraph("text", '<w:pStyle w:val="A"/>'), {"word/styles.xml": styles}).text == "text"


RAISED = '<w:vertAlign w:val="superscript"/>'


class TestRuns:
    def test_superscripts_do_not_join_the_number_before_them(self) -> None:
        pieces = ("10", "-3", " g in 3 m", "2", ", sold 45", "a", " on the 1", "st", " of May")
        body = "".join(run(text, RAISED if at % 2 else "") for at, text in enumerate(pieces))
        assert word(paragraph(body)).text == "10^-3 g in 3 m2, sold 45^a on the 1st of May"

    def test_text_may_be_raised_by_its_position(self) -> None:
        pieces = run("45") + run("3", '<w:position w:val="8"/>') + run(" and 10") + run("1", '<w:position w:val="1"/>')
        assert word(paragraph(pieces + run("2", '<w:position w:val="-6"/>'))).text == "45^3 and 101_2"

    def test_superscripts_by_a_style_and_real_footnotes(self) -> None:
        styles = (
            f'<w:styles xmlns:w="{WORD}"><w:style w:type="character" w:styleId="Ref"><w:name w:val="note ref"/>'
            f"<w:rPr>{RAISED}</w:rPr></w:style></w:styles>"
        )
        note = f'<w:footnotes xmlns:w="{WORD}"><w:footnote w:id="2">{paragraph("the note")}</w:footnote></w:footnotes>'
        by_style = '<w:rStyle w:val="Ref"/>'
        real = f'<w:r><w:rPr>{by_style}</w:rPr><w:footnoteReference w:id="2"/></w:r>'
        parts = {"word/styles.xml": styles, "word/footnotes.xml": note}
        relations = {"rIdNote": ("footnotes", "footnotes.xml")}
        parsed = word(paragraph(run("45") + run("3", by_style) + run(" and 12") + real), parts, relations)
        assert parsed.text.startswith("45^3 and 12[1]\n\n1. the note")

    def test_hidden_text_is_left_out_with_a_warning(self) -> None:
        styles = (
            f'<w:styles xmlns:w="{WORD}"><w:style w:type="character" w:styleId="Secret"><w:name w:val="Secret"/>'
            "<w:rPr><w:vanish/></w:rPr></w:style></w:styles>"
        )
        body = (
            run("seen ") + run("one", "<w:vanish/>") + run("two", "<w:vanish/>") + run("shown", '<w:vanish w:val="0"/>')
        )
        parsed = word(paragraph(body + run("three", '<w:rStyle w:val="Secret"/>')), {"word/styles.xml": styles})
        assert parsed.text == "seen shown"
        assert parsed.warnings == ("2 hidden passages are left out: show it in Word (Font, Hidden) to have it read",)

    @pytest.mark.parametrize("mark", ['<w:br w:type="page"/>', '<w:br w:type="column"/>', "<w:cr/>", "<w:ptab/>"])
    def test_breaks_within_a_run_separate_words(self, mark: str) -> None:
        text = word(paragraph(f"<w:r><w:t>first</w:t>{mark}<w:t>second</w:t></w:r>")).text
        assert text.split() == ["first", "second"]

    def test_a_formula_is_text_in_its_sentence(self) -> None:
        def element(name: str, *children: str) -> str:
            return f"<m:{name}>{''.join(children)}</m:{name}>"

        def letters(text: str) -> str:
            return f"<m:r><m:t>{text}</m:t></m:r>"

        power = element("sSup", element("e", letters("x")), element("sup", letters("2")))
        fraction = element("f", element("num", power), element("den", letters("a+b")))
        root = element("rad", element("deg"), element("e", letters("n")))
        body = run("The value ") + element("oMath", fraction, letters("="), root) + run(" is fixed.")
        assert word(paragraph(body)).text == "The value (x^2)/(a+b)=√n is fixed."

    @pytest.mark.parametrize(
        ("formula", "text"),
        [
            ("<m:acc><m:e>{x}</m:e></m:acc>{y}", "x̂y"),
            ('<m:acc><m:accPr><m:chr m:val="̃"/></m:accPr><m:e>{x}</m:e></m:acc>', "x̃"),
            ('<m:bar><m:barPr><m:pos m:val="top"/></m:barPr><m:e>{x}</m:e></m:bar>', "x̅"),
            ('<m:bar><m:barPr><m:pos m:val="top"/></m:barPr><m:e>{x}{y}</m:e></m:bar>', "¯(xy)"),
            ('<m:f><m:fPr><m:type m:val="noBar"/></m:fPr><m:num>{x}</m:num><m:den>{y}</m:den></m:f>', "x over y"),
            ("<m:sSup><m:e>{x}</m:e><m:sup>{y}</m:sup></m:sSup>{x}", "x^y x"),
            ("<m:m><m:mr><m:e>{x}</m:e><m:e>{y}</m:e></m:mr><m:mr><m:e>{y}</m:e></m:mr></m:m>", "x, y; y"),
        ],
    )
    def test_accents_stacks_and_matrices(self, formula: str, text: str) -> None:
        letters = {name: f"<m:r><m:t>{name}</m:t></m:r>" for name in "xy"}
        assert word(paragraph(f"<m:oMath>{formula.format(**letters)}</m:oMath>")).text == text

    def test_formulas_on_lines_of_their_own(self) -> None:
        lines = "".join(f"<m:oMath><m:r><m:t>{text}</m:t></m:r></m:oMath>" for text in ("a=1", "b=2"))
        assert word(paragraph(f"<m:oMathPara>{lines}</m:oMathPara>")).text == "a=1\nb=2"

    def test_fonts_of_symbols(self) -> None:
        symbols = run("\uf0b3", '<w:rFonts w:ascii="Symbol"/>') + run("5 \uf0b3")
        assert word(paragraph(symbols)).text == "≥5 \uf0b3"

    def test_a_formula_that_is_nested_too_deeply_is_refused_with_a_reason(self) -> None:
        from llama_index_contextual.errors import ReadError

        deep = "<m:d><m:e>" * 100 + "</m:e></m:d>" * 100
        with pytest.raises(ReadError, match="nested too deeply"):
            word(paragraph(f"<m:oMath>{deep}</m:oMath>"))


def text_box(text: str) -> str:
    return f"<w:txbxContent>{paragraph(text)}</w:txbxContent>"


class TestDrawings:
    @pytest.mark.parametrize(
        "box",
        [
            f"<w:drawing><wp:inline><wps:txbx>{text_box('Boxed.')}</wps:txbx></wp:inline></w:drawing>",
            f"<w:pict><v:oval><v:textbox>{text_box('Boxed.')}</v:textbox></v:oval></w:pict>",
            "<mc:AlternateContent><mc:Choice><w:drawing><wps:txbx>"
            f"{text_box('Boxed.')}</wps:txbx></w:drawing></mc:Choice></mc:AlternateContent>",
        ],
    )
    def test_text_boxes_of_all_kinds(self, box: str) -> None:
        assert (
            word(paragraph(f"{run('Before')}<w:r>{box}</w:r>") + paragraph("After")).text == "Before\n\nBoxed.\n\nAfter"
        )

    def test_decorative_text_is_read_in_the_text_and_in_page_headers(self) -> None:
        shape = '<w:r><w:pict><v:shape><v:textpath string="{}"/></v:shape></w:pict></w:r>'
        header = f"<w:hdr {SPACES}><w:p>{shape.format('DRAFT 9302')}</w:p></w:hdr>"
        body = paragraph(run("a") + shape.format("GRAND OPENING") + run("b"))
        body += '<w:sectPr><w:headerReference w:type="default" r:id="rIdH"/></w:sectPr>'
        parsed = word(body, {"word/header1.xml": header}, {"rIdH": ("header", "header1.xml")})
        assert parsed.text == "a GRAND OPENING b\n\nPage header: DRAFT 9302"

    def test_a_chart_becomes_a_table_below_its_paragraph(self) -> None:
        points = "".join(f'<c:pt idx="{at}"><c:v>{value}</c:v></c:pt>' for at, value in enumerate(("1.5", "#N/A")))
        labels = "".join(f'<c:pt idx="{at}"><c:v>{value}</c:v></c:pt>' for at, value in enumerate(("East", "West")))
        series = (
            "<c:ser><c:tx><c:v>Sales</c:v></c:tx><c:cat><c:strRef><c:strCache>"
            f"{labels}</c:strCache></c:strRef></c:cat><c:val><c:numRef><c:numCache>{points}</c:numCache></c:numRef>"
            "</c:val></c:ser>"
        )
        title = "<c:title><c:tx><c:rich><a:p><a:r><a:t>Two towns</a:t></a:r></a:p></c:rich></c:tx></c:title>"
        chart = f"<c:chartSpace {SPACES}><c:chart>{title}<c:plotArea><c:bar3DChart>{series}</c:bar3DChart></c:plotArea>"
        chart += "</c:chart></c:chartSpace>"
        frame = '<w:drawing><wp:inline><a:graphic><a:graphicData><c:chart r:id="rIdC"/></a:graphicData></a:graphic>'
        body = paragraph(f"{run('See:')}<w:r>{frame}</wp:inline></w:drawing></w:r>") + paragraph("After")
        parsed = word(body, {"word/charts/chart1.xml": chart}, {"rIdC": ("chart", "charts/chart1.xml")})
        assert parsed.text == "See:\n\nTwo towns\n\nSales\nEast  1.5\nWest  #N/A\n\nAfter"
        empty = word(
            body, {"word/charts/chart1.xml": f"<c:chartSpace {SPACES}/>"}, {"rIdC": ("chart", "charts/chart1.xml")}
        )
        assert empty.warnings == ("1 chart without values is left out: save it as a picture, or its values as a table",)

    def test_what_is_left_out_is_counted_in_the_warnings(self) -> None:
        embedded = '<w:r><w:object><o:OLEObject ProgID="Excel.Sheet.12" r:id="rId99"/></w:object></w:r>'
        symbol = '<w:r><w:sym w:font="Unknown" w:char="F0AA"/></w:r>'
        comments = f'<w:comments xmlns:w="{WORD}"><w:comment w:id="1">{paragraph("why?")}</w:comment></w:comments>'
        relations = {"rIdComments": ("comments", "comments.xml")}
        body = paragraph("text") + paragraph(embedded + embedded) + paragraph(symbol * 3)
        assert word(body, {"word/comments.xml": comments}, relations).warnings == (
            "2 embedded files are left out: save it as a file of its own to have it read",
            "1 comment is left out: move what is needed into the text",
            "Word: A w:sym element with an unsupported character was ignored: char F0AA in font Unknown",
        )


class TestPageHeaders:
    def part(self, kind: str, *lines: str) -> str:
        return f"<w:{kind} {SPACES}>{''.join(paragraph(line) for line in lines)}</w:{kind}>"

    def test_headers_and_footers_are_read_once_unless_the_text_has_them(self) -> None:
        page = field(" PAGE ", run("3"))
        parts = {
            "word/header1.xml": self.part("hdr", "Supply agreement no. 9302-K", "Opening words"),
            "word/header2.xml": self.part("hdr", "Supply agreement no. 9302-K"),
            "word/footer1.xml": self.part("ftr", run("Page ") + page, "Printed in Bonn"),
            "word/header3.xml": self.part("hdr", "unused"),
        }
        relations = {f"r{name}": (name[:-1], f"{name}.xml") for name in ("header1", "header2", "footer1", "header3")}
        used = "".join(f'<w:{name[:-1]}Reference r:id="r{name}"/>' for name in ("header1", "header2", "footer1"))
        parsed = word(paragraph("Opening words of it.") + f"<w:sectPr>{used}</w:sectPr>", parts, relations)
        assert parsed.text == (
            "Opening words of it.\n\nPage header: Supply agreement no. 9302-K\n\nPage footer: Printed in Bonn"
        )


class TestTables:
    def cell(self, content: str, properties: str = "") -> str:
        return f"<w:tc><w:tcPr>{properties}</w:tcPr>{content}</w:tc>"

    def test_a_row_that_begins_further_right_keeps_its_columns(self) -> None:
        head = "".join(self.cell(paragraph(text)) for text in ("Item", "2023", "2024"))
        late = '<w:trPr><w:gridBefore w:val="1"/></w:trPr>' + "".join(self.cell(paragraph(text)) for text in "56")
        assert word(f"<w:tbl><w:tr>{head}</w:tr><w:tr>{late}</w:tr></w:tbl>").text == "Item  2023  2024\n–  5  6"

    def test_bookmarks_between_rows_do_not_break_merged_cells(self) -> None:
        merged = '<w:vMerge w:val="restart"/>', "<w:vMerge/>"
        rows = [
            f"<w:tr>{self.cell(paragraph(first), merge)}{self.cell(paragraph(second))}</w:tr>"
            for (first, second), merge in zip((("North", "a"), ("", "b")), merged, strict=True)
        ]
        body = f'<w:tbl>{rows[0]}<w:bookmarkStart w:id="1" w:name="x"/>{rows[1]}</w:tbl>'
        assert word(body).text == "North  a\nNorth  b"


class TestDamage:
    """A part that is missing or damaged does not make the rest of a document unreadable."""

    PICTURE = (
        '<w:r><w:drawing><wp:inline><a:graphic><a:graphicData><pic:pic xmlns:pic="urn:x"><pic:blipFill>'
        '<a:blip r:embed="rId77"/></pic:blipFill></pic:pic></a:graphicData></a:graphic></wp:inline></w:drawing></w:r>'
    )

    @pytest.mark.parametrize("picture", [PICTURE, '<w:r><w:pict><v:imagedata r:id="rId77"/></w:pict></w:r>'])
    @pytest.mark.parametrize("relations", [{}, {"rId77": ("image", "media/x.png")}])
    def test_a_picture_that_is_missing(self, picture: str, relations: Any) -> None:
        parsed = word(paragraph(run("before ") + picture + run("after")), relations=relations)
        assert parsed.text == "before after"
        assert parsed.warnings == ("1 picture that the file does not contain is left out: insert it again",)

    def test_a_link_and_a_note_without_a_target(self) -> None:
        link = f'<w:hyperlink r:id="rId77">{run("link")}</w:hyperlink>'
        parsed = word(paragraph(run("a ") + link + '<w:r><w:endnoteReference w:id="9"/></w:r>' + run(" b")))
        assert parsed.text == "a link b"
        (warning,) = parsed.warnings
        assert warning.startswith("1 note that the file does not contain is left out: open the file, repair")

    @pytest.mark.parametrize("kind", ["footnotes", "numbering", "comments", "header"])
    def test_a_damaged_part_is_left_out_with_a_warning(self, kind: str) -> None:
        body = paragraph("text") + '<w:sectPr><w:headerReference w:type="default" r:id="rId77"/></w:sectPr>'
        parsed = word(body, {f"word/{kind}.xml": "<w:broken"}, {"rId77": (kind, f"{kind}.xml")})
        assert parsed.text == "text"
        (warning,) = parsed.warnings
        assert warning.startswith(f"word/{kind}.xml in the file is missing or damaged, and left out: ")

    def test_a_diagram_that_is_missing(self) -> None:
        space = 'xmlns:dgm="http://schemas.openxmlformats.org/drawingml/2006/diagram"'
        body = paragraph(f'<w:r><w:drawing><wp:inline><dgm:relIds {space} r:dm="rId77"/></wp:inline></w:drawing></w:r>')
        assert word(paragraph("text") + body).warnings == ("1 diagram without text is left out: save it as a picture",)
