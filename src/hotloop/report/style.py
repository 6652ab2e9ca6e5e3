"""The page's style sheet: two themes, chosen by the reader's system."""

CSS = (
    """
:root{--bg:#fff;--fg:#1b1f24;--dim:#5c6670;--line:#d5dae0;--panel:#f4f6f8;--good:#1a7f4b;--bad:#b3261e;
--plain:#57606a;--c0:#6b7785;--c1:#0b6bcb;--c2:#b5541c;--c3:#1a7f4b;
--p0:#c4453c;--p1:#d98032;--p2:#0b6bcb;--p3:#4f9be8;--p4:#7a5cc2;--p5:#1a7f4b;--p6:#b08900;--p7:#8a5a44;
--p8:#c2549b;--p9:#8b949e}
@media (prefers-color-scheme:dark){:root{--bg:#14171b;--fg:#e4e8ec;--dim:#98a2ad;--line:#333a42;
--panel:#1d2228;--good:#4cc38a;--bad:#ff7b72;--plain:#98a2ad;--c0:#98a2ad;--c1:#5aa9f5;--c2:#f0a067;
--c3:#4cc38a}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:16px/1.55 system-ui,sans-serif}
main{max-width:760px;margin:0 auto;padding:32px 20px 64px}
h1{font-size:1.1rem;color:var(--dim);margin:0 0 8px}
h2{font-size:1.15rem;margin:40px 0 12px;border-bottom:1px solid var(--line);padding-bottom:4px}
h3{font-size:1rem;margin:20px 0 6px}
.answer{font-size:1.35rem;line-height:1.4;margin:0 0 20px;padding-left:16px;border-left:5px solid var(--plain)}
.answer.good{border-color:var(--good)}.answer.bad{border-color:var(--bad)}
dl{display:grid;grid-template-columns:minmax(8em,max-content) 1fr;gap:2px 18px;margin:0}
@media (max-width:640px){dl{display:block}dt{margin-top:6px}dd{margin:0}}
dt,th{color:var(--dim);font-weight:500}dd{margin:0}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td,th{text-align:left;padding:3px 18px 3px 0;vertical-align:top}
td.number{text-align:right;white-space:pre}tr.total td{border-top:1px solid var(--line)}
.mono{font:13px/1.5 ui-monospace,monospace}code,pre{font:13px/1.5 ui-monospace,monospace}
pre{background:var(--panel);padding:12px;overflow-x:auto;white-space:pre-wrap;border-radius:6px}
svg{display:block;width:100%;height:auto;margin:6px 0}
svg text{font:12px system-ui,sans-serif;fill:var(--dim)}svg text.strong{fill:var(--fg);font-weight:600}
.axis{stroke:var(--dim)}.grid{stroke:var(--line)}.interval{fill:var(--c1);opacity:.45}
.mid{stroke:var(--fg);stroke-width:2}
.curve{fill:none;stroke-width:1.6;stroke-linejoin:round}.curve.c0{stroke-width:5;opacity:.45}
.swatch{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:7px}
.key{margin-right:20px}
"""
    + "".join(
        f".part.p{i}{{fill:var(--p{i})}}.swatch.p{i}{{background:var(--p{i})}}" for i in range(10)
    )
    + "".join(
        f".curve.c{i}{{stroke:var(--c{i})}}.swatch.c{i}{{background:var(--c{i})}}" for i in range(4)
    )
)
