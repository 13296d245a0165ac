"""The words with which models cite sources, by language; `answering/citation_forms.py` reads citations with them.

To add a language, add an entry to the tables. A word that ends in "*" also stands for its inflected forms, which are up
to four letters longer.
"""

from __future__ import annotations

from collections.abc import Mapping

SOURCE: Mapping[str, str] = {
    "en": "source src",
    "de": "quelle quellenangabe",
    "fr, en": "source",
    "es": "fuente",
    "it, pt": "fonte",
    "nl, af": "bron",
    "pl": "źródło źródła źródle źródłu źródłem",
    "cs, sk": "zdroj zdroje zdroji zdrojem zdroja zdrojom",
    "sv": "källa källan",
    "da, no": "kilde kilden kjelde kjelda",
    "is": "heimild",
    "fi": "lähde lähteen lähteessä lähteestä lähteeseen lähteellä",
    "et": "allikas allika allikat allikast",
    "lv": "avots avota avotā avotu",
    "lt": "šaltinis šaltinio šaltinį šaltinyje šaltiniu",
    "hu": "forrás forrása forrásban forrásból forrásnak",
    "ro": "sursa sursă sursei",
    "hr, sl": "izvor izvora izvoru vir vira viru",
    "sq": "burimi burim burimit",
    "eu": "iturria iturri iturriaren",
    "ru": "источник источника источнику источником источнике",
    "uk": "джерело джерела джерелу джерелом джерелі",
    "bg": "източник източника",
    "sr, mk": "извор извора извору изворот",
    "el": "πηγή πηγής",
    "tr": "kaynak kaynağa kaynağı kaynağın kaynakta kaynaktan",
    "az": "mənbə mənbəyə",
    "zh": "来源 來源 资料来源 資料來源 出处 出處 信源",
    "ja": "出典 ソース 情報源 出所",
    "ko": "출처 소스",
    "ar": "المصدر مصدر للمصدر بالمصدر والمصدر",
    "fa": "منبع مأخذ",
    "ur": "ماخذ ذریعہ",
    "he": "מקור המקור והמקור",
    "hi": "स्रोत",
    "bn": "উৎস",
    "th": "แหล่งที่มา แหล่งข้อมูล ที่มา",
    "vi": "nguồn",
    "id, ms": "sumber",
    "sw": "chanzo",
    "ga": "foinse",
    "cy": "ffynhonnell",
    "eo": "fonto",
}
"""Words for one source. Followed by a number, they cite it, with or without brackets."""

SOURCES: Mapping[str, str] = {
    "en, fr": "sources",
    "de": "quellen",
    "es": "fuentes",
    "it": "fonti",
    "pt": "fontes",
    "nl, af": "bronnen bronne",
    "pl": "źródła źródeł źródłach źródłom źródłami",
    "cs, sk": "zdroje zdrojů zdrojích zdrojům zdrojov zdrojoch",
    "sv": "källor källorna",
    "da, no": "kilder kilderne kildene kjelder",
    "is": "heimildir",
    "fi": "lähteet lähteiden lähteissä lähteistä",
    "et": "allikad",
    "lv": "avoti avotos",
    "lt": "šaltiniai",
    "hu": "források forrásokban",
    "ro": "surse sursele surselor",
    "hr, sl": "izvori izvorima viri",
    "ru": "источники источников источникам источниками источниках",
    "uk": "джерела джерелах",
    "bg": "източници",
    "sr": "извори",
    "el": "πηγές πηγών",
    "tr": "kaynaklar kaynaklara kaynaklarda",
    "ar": "المصادر مصادر للمصادر",
    "fa": "منابع",
    "he": "מקורות המקורות",
    "hi": "स्रोतों",
    "sw": "vyanzo",
    "eo": "fontoj",
}
"""Words for several sources, which are followed by a list of numbers."""

DOCUMENT: Mapping[str, str] = {
    "en": "document documents doc docs passage passages reference references ref refs citation citations cite excerpt"
    " excerpts extract snippet snippets evidence chunk chunks",
    "de": "dokument dokumente referenz referenzen beleg belege fundstelle verweis textstelle auszug",
    "fr": "référence références réf extrait extraits",
    "es, pt, it": "documento documentos documenti referencia referencias referência referências riferimento riferimenti"
    " pasaje fragmento extracto trecho passagem brano estratto",
    "ca": "font fonts",
    "nl": "documenten referentie referenties fragment",
    "pl, cs, sk, hr": "dokument* odniesieni* odkaz* úryv* referenc*",
    "sv, da, no": "dokumentet referens referenser reference referencer referanse referanser avsnitt utdrag uddrag",
    "fi, hu": "asiakirja* viite* dokumentum* hivatkozás*",
    "ru, uk, bg, sr": "документ* ссылк* фрагмент* посиланн*",
    "el": "έγγραφο εγγράφου αναφορά παραπομπή",
    "tr": "belge belgeye belgede doküman alıntı",
    "zh": "资料 資料 文档 文檔 文件 文献 文獻 参考 參考 引用 引文 段落 片段 参考资料 參考資料 参考文献 參考文獻",
    "ja": "文書 ドキュメント 参照 抜粋",
    "ko": "문서 자료 참고 참조 인용 문헌 참고문헌",
    "ar, fa, ur": "المستند مستند الوثيقة وثيقة المرجع مرجع سند دستاویز حوالہ",
    "he": "מסמך המסמך הפניה",
    "hi, bn": "दस्तावेज़ दस्तावेज संदर्भ নথি",
    "th, vi, id": "เอกสาร อ้างอิง liệu khảo dokumen referensi rujukan",
}
"""Words for a document or a passage, which cite a source in brackets, or after a phrase of `ACCORDING_TO`."""

IN_BRACKETS = (
    "id ids source_id sourceid doc_id docid chunk_id oaicite footnote fn context contexts text texte texto testo kb"
)
"""Words that cite a source in square brackets only."""

DOCUMENT_ALONE = (
    "document documents passage passages dokument dokumente dokumentet documento documentos documenti документ"
    " документе 文档 文檔 文書 문서 المستند"
)
"""Words of `DOCUMENT` that cite a source in running text if the passages do not contain the words themselves."""

ACCORDING_TO: Mapping[str, str] = {
    "en": "according to, as per, per, refer to, see, cf., cf, contrary to, unlike",
    "de": "laut, gemäß, gemäss, nach, siehe, vgl., vgl",
    "fr": "selon, d'après, d’après, suivant, voir, cf.",
    "es, pt": "según, de acuerdo con, conforme a, ver, véase, segundo, de acordo com, conforme, veja",
    "it": "secondo, in base a, vedi, cfr., stando a",
    "nl, af": "volgens, blijkens, zie",
    "pl, cs, sk, hr": "według, wg, zgodnie z, zob., podle, dle, viz, podľa, pozri, prema",
    "sv, da, no, fi": "enligt, ifølge, se, katso, i henhold til",
    "hu, ro": "lásd, conform, potrivit, vezi",
    "ru, uk, bg": "согласно, см., по, згідно з, див., според, съгласно",
    "el, tr": "σύμφωνα με, σύμφωνα με το, βλ., bkz., bkz",
    "zh, ja": "根据, 根據, 依据, 按照, 参见, 參見, 见",
    "ar, fa, he": "وفقا ل, وفقًا, حسب, بحسب, انظر, طبق, بر اساس, לפי, על פי, ראו",
    "vi, id, th": "theo, xem, menurut, berdasarkan, lihat, ตาม",
}
"""Phrases before a cited document in running text, separated by commas."""

JOIN = (
    "and or und oder sowie et ou y e o en of i oraz lub a nebo alebo och samt eller og ja sekä tai és vagy și sau"
    " in ili dhe eta и или та або και ή ve veya ile və 和 与 與 及 以及 或 と および 及び や または 및 와 과 또는"
    " و أو یا اور ו או और या एवं এবং และ หรือ và hoặc dan atau na au kaj aŭ"
)
"""Words between the numbers of a list."""

TO = "to through bis à tot till til do по до 至 到 から 부터 إلى تا עד से ถึง đến sampai hingga"
"""Words between the first and the last number of a range."""

PAGE = (
    "p pp pg page pages sec section sections para paragraph ch chapter line lines slide sheet row s seite seiten"
    " abschnitt kapitel zeile folie chapitre ligne pág págs página páginas sección capítulo línea pag pagina"
    " pagine sezione capitolo riga seção linha blz str strona strony strana strany sid sida sidan side sider"
    " kapittel sivu oldal с стр страница σ σελ σελίδα sayfa 第 页 頁 ページ 쪽 페이지 ص صفحة صفحه עמ עמוד पृष्ठ หน้า"
    " trang hal halaman"
)
"""Words before the number of a page or section, which may follow the number of a source."""

LABELS = (
    "arr lst buf vec dict"
    " section sections subsection clause paragraph para article art item step option equation eq formula figure"
    " fig table footnote point case class type level phase part chapter rule annex appendix schedule line row"
    " column question number no version grade stage category group example theorem lemma absatz abs artikel satz"
    " nummer nr ziffer schritt abschnitt abbildung abb tabelle gleichung formel punkt stufe teil kapitel seite"
    " anhang anlage paragraphe alinéa étape tableau partie chapitre annexe page artículo apartado párrafo paso"
    " figura tabla ecuación punto parte capítulo anexo articolo comma passo tabella equazione allegato artigo"
    " parágrafo inciso tabela equação ponto interval range domain scale between array list vector tuple matrix"
    " coordinates values items args argv data rows index result results intervall bereich skala zwischen liste"
    " vektor werte intervalle plage intervalo rango intervallo"
)
"""Words whose numbers in brackets do not cite a source, such as "step [1]" and "the interval [1, 2]"."""

COMPOUNDS = (
    "power water data energy light open voltage current heat sound noise radiation food news income fuel primary"
    " secondary main single backup supply signal input video audio ion gas point electron neutron pollution"
    " emission revenue second"
)
"""Words that form a term with "source", as in "power source 1"."""

UNITS = (
    "meter meters metre metres feet foot inch inches yard yards mile miles sec min mol rad hectometre kilometre"
    " kilometres kilometer kilometers centimetre centimetres centimeter centimeters millimetre millimetres"
    " millimeter millimeters quadratmeter kubikmeter mètre mètres metro metros arcsec arcmin"
)
"""Units whose exponents are not citations, in addition to all words of one or two letters."""

NUMBER_WORDS: Mapping[str, str] = {
    "en": "one two three four five six seven eight nine ten",
    "de": "eins zwei drei vier fünf sechs sieben acht neun zehn",
}
"""The words for the numbers from 1 to 10, as in "source one"."""

STATES = "says states notes reports mentions gives confirms explains describes shows adds does is has contains"
"""Verbs after a cited source; without one of them, "source one" may be an instruction."""

RESULTS = "use uses returns return gives prints print yields equals outputs contains returned value values list array"
"""Words before a number in brackets that is part of a text about source code."""
