"""The frame of our HTML pages for reports and receipts: one file, no scripts, nothing loaded from elsewhere.

Readable from 390 pixels on, in light and dark, and on paper; wide tables scroll inside the page.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Final

_LIGHT: Final = "--text:#1b1f24;--soft:#57606a;--line:#d8dee4;--back:#fff;--free:#c8d1da"
_DARK: Final = "--text:#e6edf3;--soft:#9198a1;--line:#30363d;--back:#0d1117;--free:#3d444d"
STYLE: Final = f"""
:root{{color-scheme:light dark;{_LIGHT}}}
@media(prefers-color-scheme:dark){{:root{{{_DARK}}}}}
body{{font:15px/1.5 system-ui,sans-serif;margin:0;color:var(--text);background:var(--back)}}
main{{max-width:64em;margin:2em auto;padding:0 1em}}
h1{{font-size:1.5em;margin:0;overflow-wrap:anywhere}}h2{{font-size:1.1em;margin:1.6em 0 .4em}}p{{margin:.3em 0}}
.soft{{color:var(--soft)}}
.scroll{{overflow-x:auto}}.scroll:focus-visible{{outline:2px solid #2f6feb;outline-offset:2px}}
table{{border-collapse:collapse;font-variant-numeric:tabular-nums}}.scroll table{{width:100%}}
th,td{{padding:.25em .6em;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}}
thead th{{font-weight:600}}tbody th,tfoot th{{font-weight:400}}
th:first-child{{text-align:left;padding-left:0;white-space:normal;overflow-wrap:anywhere;min-width:7em}}
td.plot{{width:22%;min-width:8em}}tfoot th,tfoot td{{font-weight:600;border-top:2px solid var(--line)}}
table.facts{{margin-top:.8em}}table.facts th{{color:var(--soft);vertical-align:top}}
table.facts td{{text-align:left;white-space:normal;overflow-wrap:anywhere}}
svg{{display:block;width:100%}}svg.bar{{border-radius:2px}}.grid{{stroke:var(--line)}}
.axis{{fill:var(--soft);font-size:11px}}
.legend span{{display:inline-block;margin-right:1.2em;white-space:nowrap}}
.legend i{{display:inline-block;width:.8em;height:.8em;margin-right:.35em;border-radius:2px}}
.busy{{fill:#1a7f37;background:#1a7f37}}.idle{{fill:#7d8fa5;background:#7d8fa5}}
.idle-held{{fill:#d4a72c;background:#d4a72c}}
.unknown{{fill:#8250df;background:#8250df}}.owners{{fill:#2f6feb;background:#2f6feb}}
.unattributed{{fill:#8b949e;background:#8b949e}}.free{{fill:var(--free);background:var(--free)}}
.lost{{fill:#cf222e;background:#cf222e}}.stranded{{fill:#bf5b00;background:#bf5b00}}
ul{{padding-left:1.2em}}li{{margin:.2em 0}}code{{overflow-wrap:anywhere}}
@media(max-width:600px){{main{{margin:1em auto}}.scroll td.plot{{display:none}}.axis{{font-size:23px}}
.axis.between{{display:none}}}}
@media print{{:root{{color-scheme:light;{_LIGHT}}}main{{margin:0;max-width:none;padding:0}}
.scroll{{overflow:visible}}*{{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
h2{{break-after:avoid}}tr,svg,li{{break-inside:avoid}}}}
"""
CONTENT_SECURITY_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


def page(title: str, parts: Iterable[str]) -> str:
    """`parts` are HTML, already escaped."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body><main>\n"
        + "\n".join(part for part in parts if part)
        + "\n</main></body></html>\n"
    )


def scrolling(label: str, table: str) -> str:
    """A table that may be wider than the page. It takes the focus, so that it scrolls by keys too."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{html.escape(label)}">{table}</div>'


def legend(names: Iterable[str]) -> str:
    items = "".join(f'<span><i class="{name}"></i>{name}</span>' for name in names)
    return f'<p class="legend soft">{items}</p>' if items else ""


def sentences(title: str, texts: Iterable[str]) -> str:
    """A list, or nothing."""
    items = "".join(f"<li>{html.escape(text)}</li>" for text in texts)
    return f"<h2>{html.escape(title)}</h2><ul>{items}</ul>" if items else ""
