"""The page's style sheet: two themes, chosen by the reader's system; any width from 320 px; print."""

from __future__ import annotations

PHASE_COLOURS: dict[str, tuple[str, str]] = {
    "data_wait": ("#b47603", "#000"),
    "host_to_device": ("#fbbb0a", "#000"),
    "forward": ("#519bf4", "#000"),
    "backward": ("#1f46b7", "#fff"),
    "grad_sync": ("#7e4e91", "#fff"),
    "optimizer": ("#558e57", "#000"),
    "sync": ("#b0dc79", "#000"),
    "checkpoint": ("#4c5150", "#fff"),
    "eval": ("#14e3ff", "#000"),
    "logging": ("#dccdb7", "#000"),
    "unattributed": ("#9494a1", "#000"),
    "other": ("#7d8a99", "#000"),
}
"""Fill of a phase and the colour of letters on it, the same in both themes. Chosen by search so that any two
stay apart for every kind of colour blindness (`tests/report/test_style.py` holds them to it)."""

DASHES = ("", "", "7 4", "2 3", "9 3 2 3", "1 4")
"""Lines differ in more than colour."""

CSS = (
    """
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--dim:#57606a;--line:#d5dae0;--panel:#f4f6f8;
--good:#1a7f4b;--bad:#b3261e;--plain:#57606a;
--s0:#8a94a0;--s1:#1f6fd6;--s2:#c2510a;--s3:#0a7d55;--s4:#8446b0;--s5:#6b5d00}
@media (prefers-color-scheme:dark){:root{--bg:#14171b;--fg:#e4e8ec;--dim:#9ba5b0;--line:#333a42;
--panel:#1d2228;--good:#4cc38a;--bad:#ff8078;--plain:#9ba5b0;
--s0:#8a94a0;--s1:#6db3ff;--s2:#ff9d57;--s3:#4cc38a;--s4:#cf9cf2;--s5:#d8c84a}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--fg);font:16px/1.55 system-ui,sans-serif;overflow-wrap:break-word}
main{max-width:1180px;margin:0 auto;padding:28px 20px 64px}
h1{font-size:1.05rem;font-weight:600;color:var(--dim);margin:0 0 8px}
h2{font-size:1.2rem;margin:44px 0 12px;border-bottom:1px solid var(--line);padding-bottom:4px}
h3{font-size:1rem;margin:22px 0 6px}
p,ul{max-width:78ch}
a{color:var(--s1)}
nav{font-size:.9rem;margin:18px 0 0}nav a{margin-right:16px;white-space:nowrap}
.answer{font-size:1.35rem;line-height:1.4;margin:0 0 18px;padding-left:16px;border-left:5px solid var(--plain)}
.answer.good{border-color:var(--good)}.answer.bad{border-color:var(--bad)}
.missing{background:var(--panel);border-left:5px solid var(--bad);padding:10px 16px;margin:0 0 18px}
.missing.mild{border-color:var(--plain)}
.missing p{margin:0}.missing ul{margin:4px 0 0;padding-left:20px}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(205px,1fr));gap:0 28px;margin:0}
.facts div{border-top:1px solid var(--line);padding:7px 0;min-width:0}
.facts dt{color:var(--dim);font-size:.82rem}.facts dd{margin:0;font-weight:500}
th{color:var(--dim);font-weight:500}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td,th{text-align:left;padding:3px 18px 3px 0;vertical-align:top}
td{overflow-wrap:anywhere}
td:first-child{overflow-wrap:normal}
td.number,th.number{text-align:right;white-space:pre}tr.total td{border-top:1px solid var(--line)}
.mono{font:13px/1.5 ui-monospace,monospace}.mono td:first-child{overflow-wrap:anywhere}
code,pre{font:13px/1.5 ui-monospace,monospace;overflow-wrap:break-word}
pre{background:var(--panel);padding:12px;white-space:pre-wrap;border-radius:6px}
pre.whole{user-select:all}
figure{margin:18px 0 26px;min-width:0}
figcaption{line-height:1.4}
.unit,.note,.xname{color:var(--dim);font-size:.85rem}.unit{font-weight:400}
.note,.xname{margin:2px 0 0;max-width:120ch}.xname{text-align:center;padding-left:72px}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:0 32px}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:0 18px;margin:2px 0 4px;padding:0;font-size:.85rem;
max-width:none}
.key{display:inline-block;margin-right:7px;vertical-align:middle}
.key.box{width:12px;height:12px;border-radius:2px}.key.line{width:22px;height:0;border-top:2.5px solid}
.key.line.s0{border-top-width:6px;opacity:.55}
.key.line.s2{border-top-style:dashed}.key.line.s3{border-top-style:dotted}.key.line.s4{border-top-style:dashed}
.key.line.s5{border-top-style:dotted}.key.line.one{border-color:var(--fg);width:0;height:12px;border-top:0;
border-left:2px dashed}
.key.dot{width:10px;height:10px;border-radius:5px}.key.dot.pair{background:var(--fg)}
.key.noise{background:var(--line)}.key.interval{background:var(--s1);opacity:.55}
.plot{display:grid;grid-template-columns:72px 1fr;grid-template-rows:190px;margin-top:10px}
.plot.tall{grid-template-rows:240px}.plot.flat{grid-template-rows:74px;grid-template-columns:0 1fr}
.plot.none{grid-template-rows:0;margin:0}
.plot svg,.tags svg{display:block;width:100%;height:100%;overflow:visible}
.y,.x{position:relative;font-size:12px;line-height:1;color:var(--dim);font-variant-numeric:tabular-nums}
.y span{position:absolute;right:8px;transform:translateY(-50%);white-space:nowrap}
.x{grid-column:2;height:22px}.x span{position:absolute;top:7px;white-space:nowrap}
.x .mid{transform:translateX(-50%)}.x .last{transform:translateX(-100%)}
path{vector-effect:non-scaling-stroke;fill:none}
path.grid{stroke:var(--line);stroke-width:1}
path.line{stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}
path.line.s0{stroke-width:6;opacity:.5}
path.dot{stroke-width:9;stroke-linecap:round}
path.band{opacity:.22;stroke:none}
path.limit{stroke:var(--fg);stroke-width:1.2;stroke-dasharray:5 4;opacity:.7}
path.break{stroke:var(--dim);stroke-width:1;stroke-dasharray:2 3}
path.hover{fill:transparent;pointer-events:all}path.hover:hover{fill:var(--fg);fill-opacity:.07}
path.cut{stroke:var(--bg);stroke-width:5;stroke-dasharray:3 3}
path.one{stroke:var(--fg);stroke-width:1.5;stroke-dasharray:4 3}
path.noise{fill:var(--line)}
path.interval{stroke:var(--s1);stroke-width:14;opacity:.5}
path.mid{stroke:var(--fg);stroke-width:2.5}
path.pair{stroke:var(--fg);stroke-width:8;stroke-linecap:round;opacity:.75}
path.link{stroke:var(--dim);stroke-width:1.5}
path.mark{stroke:var(--fg);stroke-width:2.5}
.tags{grid-column:1/-1;display:grid;grid-template-columns:72px 1fr;grid-template-rows:15px;font-size:11px;line-height:15px;
color:var(--dim)}
.plot>.tags:nth-of-type(2){margin-top:7px}
.tags span{padding-right:8px;text-align:right;white-space:nowrap;overflow:hidden;text-overflow:ellipsis}
.plot .tags svg,.tags svg{height:15px;overflow:hidden;border-bottom:1px solid var(--line)}
.rows{max-width:760px}
.row{display:grid;grid-template-columns:minmax(60px,max-content) 1fr 132px;gap:12px;align-items:center;margin:5px 0}
.rows .row{grid-template-columns:92px 1fr 132px}
.row .value{font-variant-numeric:tabular-nums;text-align:right;white-space:nowrap}
.row .name{overflow:hidden;text-overflow:ellipsis}
.track{display:block;height:20px}.fill{display:block;height:100%;border-radius:2px}
.pairs .row{grid-template-columns:72px 1fr 56px;gap:0;height:22px;margin:0;font-size:.85rem}
.pairs svg{display:block;width:100%;height:22px;overflow:visible}
.pairs+.plot.none{padding-right:56px}
.stack{display:flex;height:30px;margin:4px 0;border-radius:3px;overflow:hidden}
.stack span{min-width:0;overflow:hidden;white-space:nowrap;font-size:.8rem;line-height:30px;text-align:center;
border-right:1px solid var(--bg);text-overflow:clip}
.stack span:last-child{border-right:0}
.stack span,.swatch,.key.box{box-shadow:inset 0 0 0 1px var(--dim)}
.breakdown td:first-child{white-space:nowrap}.breakdown th.number{white-space:normal;vertical-align:bottom}
.swatch{display:inline-block;width:12px;height:12px;border-radius:2px;margin-right:8px;vertical-align:-1px}
.targets td{padding-top:5px;padding-bottom:5px;border-top:1px solid var(--line)}
@media (min-width:641px){.targets td:nth-child(4){white-space:nowrap}}
.targets .status{white-space:nowrap;font-weight:600}
.targets .pass .status{color:var(--good)}.targets .fail .status{color:var(--bad)}
.targets .not_applicable .status,.targets .why{color:var(--dim)}
details{margin:4px 0 10px}summary{cursor:pointer;color:var(--s1)}
footer{margin-top:48px;color:var(--dim);font-size:.85rem}
@media (max-width:640px){
main{padding:18px 14px 48px}.answer{font-size:1.15rem;padding-left:12px}
.facts{grid-template-columns:1fr 1fr;gap:0 16px}
.plot,.tags{grid-template-columns:60px 1fr}.tags{font-size:10px}.tags span{padding-right:4px}.xname{padding-left:60px}.x .odd{display:none}
.plot.flat{grid-template-columns:0 1fr}
.rows .row{grid-template-columns:1fr auto;gap:0 8px}.rows .track{grid-column:1/-1;grid-row:2}
.pairs .row{grid-template-columns:60px 1fr 52px}.pairs+.plot.none{padding-right:52px}
.targets thead{display:none}.targets,.targets tbody{display:block}
.targets tr{display:grid;grid-template-columns:4.2em 1fr auto;gap:0 8px;border-top:1px solid var(--line);padding:6px 0}
.targets td{border:0;padding:0}.targets td:nth-child(4){grid-column:2/-1}.targets td:nth-child(5){grid-column:2/-1}
.mono thead{display:none}.mono,.mono tbody{display:block}
.mono tr{display:grid;grid-template-columns:1fr auto;gap:0 12px;border-top:1px solid var(--line);padding:4px 0}
.mono td{padding:0}.mono td:nth-child(3){grid-column:1/-1;color:var(--dim)}
.pairs-of,.pairs-of tbody{display:block}.pairs-of tr{display:grid;grid-template-columns:minmax(7em,38%) 1fr;gap:0 10px}
.pairs-of td{padding:2px 0}.pairs-of td:first-child{color:var(--dim)}
.fixes thead{display:none}.fixes,.fixes tbody{display:block}
.fixes tr{display:grid;grid-template-columns:auto 1fr;gap:0 10px;border-top:1px solid var(--line);padding:6px 0}
.fixes td{padding:0;grid-column:1/-1}.fixes td:nth-child(1){grid-column:1}.fixes td:nth-child(2){grid-column:2}
.fixes td:empty{display:none}.fixes td:nth-child(n+4){color:var(--dim)}
td,th{padding-right:12px}
}
@media print{
:root{color-scheme:light;--bg:#fff;--fg:#000;--dim:#444;--line:#bbb;--panel:#f4f4f4;--good:#12633a;--bad:#9c1c15;
--plain:#444;--s0:#8a94a0;--s1:#1f6fd6;--s2:#c2510a;--s3:#0a7d55;--s4:#8446b0;--s5:#6b5d00}
body{font-size:11pt}main{max-width:none;padding:0}nav{display:none}
figure,.facts,tr{break-inside:avoid}h2,h3{break-after:avoid}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}
}
"""
    + "".join(
        f"path.ph-{name}{{fill:{fill}}}.ph-{name}:not(path){{background:{fill};color:{letters}}}"
        for name, (fill, letters) in PHASE_COLOURS.items()
    )
    + "".join(
        f"path.line.s{i},path.dot.s{i}{{stroke:var(--s{i})}}path.band.s{i}{{fill:var(--s{i})}}"
        f".key.line.s{i}{{border-color:var(--s{i})}}.key.dot.s{i},.fill.s{i}{{background:var(--s{i})}}"
        + (f"path.line.s{i}{{stroke-dasharray:{dash}}}" if dash else "")
        for i, dash in enumerate(DASHES)
    )
)
