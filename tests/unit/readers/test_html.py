"""Web pages: superscripts, formulas, numbers of lists, buttons, hidden elements, and lists in table cells."""

from __future__ import annotations

import pytest

from tests.integration.readers.office_files import read


def page(body: str) -> str:
    return read("a.html", f"<html><head><meta charset=utf-8></head><body>{body}</body></html>".encode()).text


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("10<sup>6</sup> litres", "10^6 litres"),
        ("10<sup>-3</sup> l/s", "10^-3 l/s"),
        ("2<sup>n</sup> nodes", "2^n nodes"),
        ("45<sup><a href='#f1'>3</a></sup> million", "45[3] million"),
        ("45<a href='#f1'><sup>3</sup></a> million", "45[3] million"),
        ("45<sup>3</sup>7", "45^3 7"),
        ("Total<sup>a</sup>", "Total^a"),
        ("10<sup>2<sup>3</sup></sup> nodes", "10^23 nodes"),
        ("text<sup>[3]</sup>", "text[3]"),
        ("the 5<sup>th</sup> of 4 m<sup>2</sup>", "the 5th of 4 m2"),
        ("1<sup>er</sup>, n<sup>o</sup>, M<sup>me</sup>", "1er, no, Mme"),
        ("CO<sub>2</sub> and H<sub>2</sub>O", "CO2 and H2O"),
        ("101<sub>2</sub>", "101_2"),
        ("log<sub>2</sub>8", "log2 8"),
        ("<sup>1</sup> See the annex", "1 See the annex"),
        ("45<span style='font-size: 70%; vertical-align: super'>3</span> litres", "45^3 litres"),
        ("101<span style='vertical-align:sub'>2</span>", "101_2"),
        ("45<span style='vertical-align: top'>3</span>", "453"),
        ("<sup></sup>x<sup> </sup>y", "x y"),
    ],
)
@pytest.mark.parametrize("frame", ["<p>{}</p>", "<table><tr><td>{}<td>b</tr></table>", "<h2>{}</h2>"])
def test_superscripts_and_subscripts(html: str, text: str, frame: str) -> None:
    after = "  b" if "table" in frame else ""
    assert page(frame.format(html)).removeprefix("## ") == text + after


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<math><msup><mn>10</mn><mn>6</mn></msup></math>", "10^6"),
        ("<math><mfrac><mrow><mi>a</mi><mo>+</mo><mi>b</mi></mrow><mn>2</mn></mfrac></math>", "(a+b)/2"),
        ("<math><msubsup><mi>x</mi><mn>1</mn><mn>2</mn></msubsup></math>", "x_1^2"),
        ("<math><semantics><msqrt><mi>x</mi></msqrt><annotation>\\sqrt x</annotation></semantics></math>", "√x"),
        ("<ruby>東<rt>とう</rt>京<rt>きょう</rt></ruby>", "東京(とうきょう)"),
        (
            "<math><munderover><mo>∑</mo><mi>i</mi><mi>n</mi></munderover><msub><mi>x</mi><mi>i</mi></msub></math>",
            "∑_i^n x_i",
        ),
        ("<math><mover><mi>x</mi><mo>^</mo></mover><mo>+</mo><mover><mi>y</mi><mo>¯</mo></mover></math>", "x̂+y̅"),
        ("<math><mover><mi>x</mi><mi>n</mi></mover></math>", "x^n"),
        ("<math><mi>f</mi><mfenced open='[' close=']'><mi>a</mi><mi>b</mi></mfenced></math>", "f[a, b]"),
        ("<math><mo>(</mo><mfrac linethickness=0><mi>n</mi><mi>k</mi></mfrac><mo>)</mo></math>", "(n over k)"),
        ("<math><mmultiscripts><mi>C</mi><mprescripts/><mn>6</mn><mn>14</mn></mmultiscripts></math>", "_6^14C"),
        ("<math><mmultiscripts><mi>C</mi><mi>k</mi><none/></mmultiscripts></math>", "C_k"),
        ("<math><mi>x</mi><mtext>if</mtext><mi>y</mi><mspace width='1em'/><mn>4</mn></math>", "x if y 4"),
        ("<span class=katex><math><mi>x</mi></math><span class='katex-html'><span>x</span></span></span>", "x"),
        ("<span class=MathJax_Preview>x2</span><script type='math/tex'>x^2</script>", "x^2"),
        ("<img class=tex alt='x^2'>", "x^2"),
        ("<ruby>漢<rp>【</rp><rt>かん</rt><rp>】</rp></ruby>", "漢【かん】"),
    ],
)
def test_formulas_and_pronunciations(html: str, text: str) -> None:
    assert page(f"<p>See {html} here</p>") == f"See {text} here"


def test_a_formula_that_is_nested_too_deeply_is_read_symbol_by_symbol() -> None:
    assert page(f"<p><math>{'<mrow>' * 80}<mi>x</mi>{'</mrow>' * 80}</math> y</p>") == "x y"


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<ol start=5><li>x<li>y</ol>", "5. x\n6. y"),
        ("<ol type=a><li>x<li>y</ol>", "a. x\nb. y"),
        ("<ol type=I start=3><li>x<li value=9>y<li>z</ol>", "III. x\nIX. y\nX. z"),
        ("<ol reversed><li>x<li>y</ol>", "2. x\n1. y"),
        ("<ol style='list-style-type: upper-alpha'><li>x<ol start=2><li>y</ol><li>z</ol>", "A. x\n  2. y\nB. z"),
        ("<ol style='list-style: none'><li>x</ol>", "x"),
        ("<ol start=x type=?><li value=''>x</ol>", "1. x"),
        ("<ol start=-1><li>x<li>y<li>z</ol>", "-1. x\n0. y\n1. z"),
    ],
)
def test_list_items_have_the_numbers_that_a_browser_shows(html: str, text: str) -> None:
    assert page(html) == text


class TestButtonsAndHiddenElements:
    @pytest.mark.parametrize(
        "html",
        [
            "<h2><button>How long?</button></h2><div>A week.</div>",
            "<button aria-expanded=false aria-controls=x>How long?</button><div id=x hidden>A week.</div>",
            "<div class=faq><button>How long?</button><div class=answer style='display:none'>A week.</div></div>",
            "<button onclick=\"show('x')\">How long?</button><p id=x style='display: none'>A week.</p>",
            "<h3><button>How long?</button></h3><div hidden>A week.</div>",
            "<button>How long?</button><div hidden=until-found>A week.</div>",
            "<p>How long?<span id=more style='display:none'> A week.</span><button onclick='f()'>Read more</button>",
            "<div class=slide>How long?</div><div class=slide style='display:none'>A week.</div>",
            "<input type=checkbox id=q><label for=q>How long?</label><div style='display:none'>A week.</div>",
            "<button popovertarget=x>How long?</button><div id=x popover hidden>A week.</div>",
            "<button commandfor=x>How long?</button><dialog id=x hidden>A week.</dialog>",
            "<details name=faq><summary>How long?</summary><template shadowrootmode=open>A week.</template></details>",
        ],
    )
    def test_questions_and_answers_of_an_accordion(self, html: str) -> None:
        assert page(html).replace("#", "").split() == ["How", "long?", "A", "week."]

    @pytest.mark.parametrize(
        "html",
        [
            "<ul class=nav><li><button>Mac</button></ul><div class=tab-pane style='display:none'>Use brew.</div>",
            "<a role=tab aria-controls=m href='#m'>Mac</a><div id=m hidden>Use brew.</div>",
            "<div role=tablist><button role=tab>Mac</button></div><div role=tabpanel hidden>Use brew.</div>",
            "<a data-bs-toggle=tab data-bs-target='#m'>Mac</a><section id=m style='display:none'>Use brew.</section>",
        ],
    )
    def test_tabs(self, html: str) -> None:
        assert page(html).removeprefix("- ").split() == ["Mac", "Use", "brew."]

    @pytest.mark.parametrize(
        "html",
        [
            "<button>Subscribe</button>",
            "<button class='copy-button tab'>Copy</button>",
            "<button type=submit>Send?</button>",
            "<button aria-haspopup=true aria-expanded=false>Products</button>",
            "<button aria-controls=m class=menu-toggle>Menu</button><ul id=m class=menu hidden><li>x</ul>",
            "<div hidden>hidden</div><p style='visibility:hidden'>hidden",
            "<a data-toggle=modal data-target='#c'></a><div id=c class=modal style='display:none'>cookies</div>",
            "<div role=dialog hidden>dialog</div>",
            "<template>a row</template>",
            "<form><input type=checkbox id=q><label for=q></label><p style='display:none'>hidden</form>",
        ],
    )
    def test_controls_and_other_hidden_elements_are_left_out(self, html: str) -> None:
        assert page(f"<p>text</p>{html}") == "text"

    def test_buttons_in_sentences_and_heads_of_tables_are_read(self) -> None:
        assert page("<p>Press <button>Save as draft</button> to store.</p>") == "Press Save as draft to store."
        rows = "<tr><th><button>Name</button><th><div><button aria-sort=none>Fee</button></div><tr><td>A<td>5"
        assert page(f"<table>{rows}</table>") == "Name  Fee\nA  5"


class TestForms:
    def test_the_values_of_a_form_stand_beside_their_labels(self) -> None:
        form = (
            "<form><label>Name <input value=Marigold></label><label><input type=checkbox checked>agree</label>"
            "<label><input type=radio>no</label><select><option>red<option selected>blue</select>"
            "<textarea>two cranes</textarea> per day<input type=hidden value=x><input type=submit value=Send></form>"
        )
        assert page(form) == "Name Marigold ☒ agree ☐ no blue two cranes per day"

    @pytest.mark.parametrize(
        "html",
        [
            "<form class=search-form><input value=crane></form>",
            "<form><input name=search value=crane></form>",
            "<form><input type=checkbox><input placeholder=Name><select><option>red</select></form>",
            "<form><input style='display:none' value=x></form>",
            "<select><option selected>English</select><input type=radio checked>",
        ],
    )
    def test_blank_forms_and_controls_of_the_page_have_no_values(self, html: str) -> None:
        assert page(f"<p>text</p>{html}") == "text"


def test_deletions_are_left_out_with_a_warning() -> None:
    parsed = read("a.html", b"<p>The rent is <del>800</del><ins>900</ins> EUR<del> and more</del>.<del></del></p>")
    assert parsed.text == "The rent is 900 EUR."
    assert parsed.warnings == ("2 deletions are left out: remove the mark to have it read",)


class TestTables:
    def test_a_cell_that_spans_rows_and_columns_keeps_the_columns_of_the_rows_it_spans(self) -> None:
        rows = "<tr><th>a<th>b<th>c<tr><td rowspan=2 colspan=2>Block<td>31<tr><td>41<tr><td>x<td>y<td>51"
        assert page(f"<table>{rows}</table>") == "a  b  c\nBlock  –  31\nBlock  –  41\nx  y  51"
        rest = "<tr><td rowspan=0>Rest<td>1<tr><td>2<tr><td>3"
        assert page(f"<table>{rest}</table>") == "Rest  1\nRest  2\nRest  3"

    def test_lists_in_most_cells_stay_in_their_rows_below_heads_and_beside_labels(self) -> None:
        rows = "".join(f"<tr><td>{name}<td><ul><li>a<li>b</ul><td><ul><li>c<li>d</ul>" for name in ("Clerk", "Head"))
        text = page(f"<table><tr><td>Role<td>Duties<td>Powers{rows}</table>")
        assert text == "Role  Duties  Powers\nClerk  a; b  c; d\nHead  a; b  c; d"

    @pytest.mark.parametrize(
        ("cell", "text"),
        [
            ("<ul><li>files<li>copies</ul>", "files; copies"),
            ("<ol type=a><li>files<li>copies</ol>", "a. files; b. copies"),
            ("<h4>Duties</h4><p>files</p>", "Duties; files"),
            ("<table><tr><td>n1<td>n2</tr><tr><td>n3<td>n4</tr></table>", "n1 n2; n3 n4"),
            ("<pre>a = 1\nb = 2</pre>", "a = 1; b = 2"),
            ("<p>Both of:</p><ul><li>one.<li>two</ul>", "Both of: one. two"),
        ],
    )
    @pytest.mark.parametrize("head", ["th", "td"])
    def test_what_is_in_one_cell_stays_in_its_row(self, cell: str, text: str, head: str) -> None:
        rows = f"<tr><{head}>Role<{head}>Limit<{head}>Duties</tr><tr><td>Clerk<td>500 EUR<td>{cell}</tr>"
        parsed = read("a.html", f"<table>{rows}<tr><td>Head<td>900 EUR<td>signs</tr></table>".encode())
        assert parsed.text == f"Role  Limit  Duties\nClerk  500 EUR  {text}\nHead  900 EUR  signs"
        assert parsed.map.tables[0].head == "Role  Limit  Duties"

    @pytest.mark.parametrize(
        "html",
        [
            "<table><tr><td>Logo<td><ul><li>Home</ul></tr><tr><td><ul><li>x</ul><td><h1>Title</h1>text</tr></table>",
            "<table><tr><td><h2>One</h2>text<td><h2>Two</h2>text</tr><tr><td><h2>3</h2>t<td><h2>4</h2>t</tr></table>",
            f"<table><tr><td>Menu<td>Top</tr><tr><td>x<td><ul><li>{'word ' * 300}</ul></tr></table>",
            "<table role=presentation><tr><th>a<th>b</tr><tr><td>c<td><ul><li>d</ul></tr></table>",
        ],
    )
    def test_tables_for_the_layout_of_a_page_are_no_rows(self, html: str) -> None:
        assert not read("a.html", html.encode()).map.tables


def test_text_in_a_page_without_a_body_is_read() -> None:
    assert read("a.html", b"<meta charset=utf-8><details><summary>S</summary>inside</details>").text == "S\n\ninside"


@pytest.mark.parametrize("charset", ["iso-8859-1", "windows-1252", "us-ascii"])
def test_utf_8_is_recognised_even_if_a_page_declares_a_latin_encoding(charset: str) -> None:
    assert read("a.html", f"<meta charset={charset}><p>Größe – €".encode()).text == "Größe – €"


def test_the_text_of_a_drawing_is_read_but_is_not_the_title() -> None:
    drawing = b"<svg><title>Rents</title><path d='M0 0'/><text>Rent <tspan>900</tspan></text><text>Fee 5</text></svg>"
    parsed = read("a.html", b"<p>See:</p>" + drawing + b"<p>after <svg><title>Icon</title></svg></p>")
    assert parsed.text == "See:\n\nRent 900 Fee 5\n\nafter"
    assert parsed.title is None
