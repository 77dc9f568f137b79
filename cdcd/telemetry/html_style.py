"""Style and script of the page. Both are inline, and the Content-Security-Policy allows exactly them."""

import base64
import hashlib
from collections.abc import Mapping
from typing import Final

STYLE: Final = """
:root { color-scheme: light dark; --back: #f6f7f9; --card: #fff; --text: #1d2530; --soft: #5c6878; --line: #dde2e9;
  --bar: #2f6fde; --good: #1a7f45; --warn: #9a6400; --bad: #c0262d; --goodback: #e3f4ea; --warnback: #fdf1d8;
  --badback: #fde8e8; }
@media (prefers-color-scheme: dark) { :root { --back: #12161c; --card: #1a2029; --text: #e4e9f0; --soft: #97a3b4;
  --line: #2c3542; --bar: #5b93f5; --good: #58c98a; --warn: #e5b04c; --bad: #ff7b7b; --goodback: #16301f;
  --warnback: #332811; --badback: #3a1a1c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text); font: 15px/1.45 system-ui, "Segoe UI", sans-serif; }
main, footer, #away { max-width: 1120px; margin: 0 auto; padding: 0 16px; }
header { display: flex; flex-wrap: wrap; gap: 4px 12px; align-items: baseline; padding: 20px 0 12px; }
h1 { font-size: 1.45rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1rem; margin: 0 0 8px; }
header .summary { flex: 1 1 16rem; }
.soft { color: var(--soft); }
.small { font-size: .85rem; }
.tag { border-radius: 999px; padding: 1px 10px; font-size: .85rem; font-weight: 600; white-space: nowrap; }
.good { color: var(--good); background: var(--goodback); }
.warning { color: var(--warn); background: var(--warnback); }
.error, .critical { color: var(--bad); background: var(--badback); }
.cards { display: grid; gap: 12px; grid-template-columns: repeat(3, 1fr); }
.card, section { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 12px 16px; }
section { margin-top: 12px; }
.card h2 { color: var(--soft); font-size: .85rem; font-weight: 600; margin: 0; }
.big { font-size: 1.5rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.note { border-left: 4px solid var(--bad); margin-bottom: 12px; }
.note.soon { border-left-color: var(--warn); }
.note p { margin: 2px 0; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 4px 8px; border-top: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-size: .8rem; font-weight: 600; border-top: 0; }
th:first-child, td:first-child { text-align: left; padding-left: 0; white-space: normal; overflow-wrap: anywhere;
  min-width: 9rem; }
th:last-child, td:last-child { padding-right: 0; }
td.left { text-align: left; }
tr.idle td { color: var(--soft); }
progress { width: 8rem; accent-color: var(--bar); }
.share { display: inline-block; width: 3rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 14px; margin: 0; }
dt { color: var(--soft); }
dd { margin: 0; font-family: ui-monospace, monospace; font-size: .9rem; overflow-wrap: anywhere; }
svg { display: block; width: 100%; height: auto; }
rect { fill: var(--bar); }
line { stroke: var(--line); }
svg text { fill: var(--soft); font-size: 11px; }
.pair svg text { font-size: 20px; }
.problem { border-top: 1px solid var(--line); padding: 8px 0; overflow-wrap: anywhere; }
.problem:first-of-type { border-top: 0; }
.problem p { margin: 2px 0; }
.hint { color: var(--soft); }
pre { margin: 8px 0; font: .85rem/1.45 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
summary { cursor: pointer; font-weight: 600; }
a { color: var(--bar); }
footer { padding-top: 14px; padding-bottom: 30px; }
#away { position: sticky; top: 0; padding: 8px 16px; font-weight: 600; }
.pair { display: grid; gap: 0 12px; grid-template-columns: repeat(auto-fit, minmax(320px, 1fr)); }
@media (max-width: 720px) { .cards { grid-template-columns: repeat(2, 1fr); } }
@media (max-width: 640px) { .card { padding: 10px; }
  .big { font-size: 1.2rem; } .pair { grid-template-columns: 1fr; } th, td { padding: 4px 5px; }
  .more { display: none; } progress { width: 4rem; } svg text { font-size: 20px; } }
"""

SCRIPT: Final = """
const away = document.getElementById("away");
let last = new Date();
async function refresh() {
  // Text that somebody is copying stays.
  if (!document.hidden && getSelection().isCollapsed) {
    try {
      const answer = await fetch(location.href, {signal: AbortSignal.timeout(5000)});
      if (!answer.ok) throw new Error(answer.status);
      const text = await answer.text();
      const fresh = new DOMParser().parseFromString(text, "text/html");
      const unfolded = [...document.querySelectorAll("details")].map((each) => each.open);
      document.querySelector("main").replaceWith(fresh.querySelector("main"));
      document.querySelectorAll("details").forEach((each, index) => { each.open = unfolded[index] ?? each.open; });
      document.title = fresh.title;
      last = new Date();
      away.hidden = true;
    } catch {
      away.textContent = `cdcd does not answer. This page shows the state at ${last.toLocaleTimeString()}.`;
      away.hidden = false;
    }
  }
  setTimeout(refresh, 2000);
}
setTimeout(refresh, 2000);
"""


def _source(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": f"default-src 'none'; style-src {_source(STYLE)}; script-src {_source(SCRIPT)}; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
"""HTTP headers of the page. Names and errors are escaped, but even if an escape were forgotten, the browser would
run nothing."""
