"""PdfStyles: the fonts, colours and distances of a PDF."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from sayso.agent.toolbox.glyphs import font_file

#: The fonts of words and of code, as reportlab knows them.
FONT, MONO = "SaysoSans", "SaysoMono"
#: Colours.
DARK, GREY, LIGHT, ACCENT = "#111827", "#6b7280", "#e5e7eb", "#4338ca"


def rule() -> Any:
    """A line across the page."""
    from reportlab.platypus import HRFlowable

    return HRFlowable(width="100%", thickness=0.7, color=LIGHT, spaceBefore=8, spaceAfter=10)


def table_style() -> Any:
    """Lines beneath the rows, a stronger one beneath the head."""
    from reportlab.platypus import TableStyle

    return TableStyle(
        [
            ("VALIGN", (0, 0), (-1, -1), "TOP"),
            ("LINEBELOW", (0, 0), (-1, 0), 0.9, GREY),
            ("LINEBELOW", (0, 1), (-1, -1), 0.4, LIGHT),
            ("TOPPADDING", (0, 0), (-1, -1), 4),
            ("BOTTOMPADDING", (0, 0), (-1, -1), 5),
        ]
    )


def indented(style: Any, depth: int) -> Any:
    """The style, as deep in lists and quotes as that."""
    if not depth:
        return style
    return style.clone(f"{style.name} {depth}", leftIndent=16 * depth + style.leftIndent, bulletIndent=16 * depth - 12)


@functools.lru_cache(maxsize=1)
def styles() -> Mapping[str, Any]:
    """Made once per process, with the font they need."""
    from reportlab.lib.enums import TA_CENTER, TA_LEFT, TA_RIGHT
    from reportlab.lib.styles import ParagraphStyle

    _register_fonts()
    body = ParagraphStyle(
        "body",
        fontName=FONT,
        fontSize=10.5,
        leading=15.5,
        spaceAfter=7,
        textColor=DARK,
        bulletFontName=FONT,
        bulletFontSize=10.5,
    )
    made = {"body": body, "quote": body.clone("quote", textColor=GREY, fontName=f"{FONT}-Oblique")}
    made["item"] = body.clone("item", spaceAfter=3)
    made["mark"] = body.clone("mark", spaceAfter=0, keepWithNext=1)
    made["code"] = body.clone(
        "code",
        fontName=MONO,
        fontSize=8.5,
        leading=12,
        backColor="#f3f4f6",
        borderPadding=6,
        spaceBefore=12,
        spaceAfter=14,
    )
    for level, size in enumerate((20, 15, 12.5, 11), 1):
        made[f"h{level}"] = body.clone(
            f"h{level}",
            fontName=f"{FONT}-Bold",
            fontSize=size,
            leading=size * 1.3,
            spaceBefore=size * 0.7,
            spaceAfter=size * 0.45,
            keepWithNext=1,
        )
    for side, alignment in (("left", TA_LEFT), ("center", TA_CENTER), ("right", TA_RIGHT)):
        made[f"cell {side}"] = body.clone(f"cell {side}", fontSize=9, leading=12.5, spaceAfter=0, alignment=alignment)
        made[f"head {side}"] = made[f"cell {side}"].clone(f"head {side}", fontName=f"{FONT}-Bold")
    return made


def _register_fonts() -> None:
    from reportlab.pdfbase.pdfmetrics import registerFont, registerFontFamily
    from reportlab.pdfbase.ttfonts import TTFont

    for style in ("", "Bold", "Oblique", "BoldOblique"):
        registerFont(TTFont(f"{FONT}-{style}" if style else FONT, str(font_file(style))))
    registerFont(TTFont(MONO, str(font_file("Mono"))))
    registerFontFamily(
        FONT, normal=FONT, bold=f"{FONT}-Bold", italic=f"{FONT}-Oblique", boldItalic=f"{FONT}-BoldOblique"
    )
