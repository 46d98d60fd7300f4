"""How a report looks, and the few lines of JavaScript that tell the numbers under the pointer."""

from __future__ import annotations

from typing import Final

# Two colours that mean something (calm, wrong) and one between; everything else is grey.
STYLE: Final = """
:root { color-scheme: light dark;
  --paper: #f6f7f9; --card: #fff; --ink: #1c2330; --soft: #5d6778; --faint: #e4e8ee; --edge: #d9dee6;
  --main: #2f6bd8; --main-2: #7ea6ee; --main-3: #bdd2f8; --bad: #cf3a30; --warn: #d98a15; --quiet: #a9b2c0;
  --hover: rgba(40, 70, 130, .09); --badge: #fdeceb; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #12151b; --card: #1a1f28; --ink: #e6eaf1; --soft: #98a3b5; --faint: #2a313d; --edge: #2d3542;
  --main: #78a8ff; --main-2: #4a78cc; --main-3: #45669c; --bad: #ff7468; --warn: #f0ad4a; --quiet: #5f6a7c;
  --hover: rgba(160, 190, 255, .12); --badge: #3a2225; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); -webkit-text-size-adjust: 100%;
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 28px 20px 48px; }
header { display: flex; flex-wrap: wrap; gap: 4px 18px; align-items: baseline; margin-bottom: 18px; }
h1 { font-size: 24px; margin: 0; letter-spacing: -.01em; }
header p, footer { color: var(--soft); margin: 0; }
footer { margin-top: 22px; font-size: 13px; }
h2 { font-size: 17px; margin: 0; letter-spacing: -.005em; }
h2 + p { margin: 2px 0 14px; color: var(--soft); font-size: 13.5px; }
h3 { font-size: 13.5px; font-weight: 600; margin: 0 0 10px; }
section { background: var(--card); border: 1px solid var(--edge); border-radius: 10px; padding: 18px 20px;
  margin-top: 16px; min-width: 0; }
.pair { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 26px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(158px, 1fr)); gap: 12px; }
.tile { background: var(--card); border: 1px solid var(--edge); border-radius: 10px; padding: 12px 16px; }
.tile span { display: block; color: var(--soft); font-size: 13px; }
.tile b { display: block; font-size: 25px; font-weight: 600; letter-spacing: -.02em; line-height: 1.25;
  font-variant-numeric: tabular-nums; }
.tile.is-bad b { color: var(--bad); }
.legend { display: flex; flex-wrap: wrap; gap: 2px 16px;
  margin: 0 0 12px; font-size: 13px; color: var(--soft); }
.legend i { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 6px; }
.plot { display: grid; grid-template-columns: 60px minmax(0, 1fr) 34px; grid-template-rows: 170px 22px;
  font-size: 12px; color: var(--soft); font-variant-numeric: tabular-nums; }
.plot.plain { grid-template-columns: 60px minmax(0, 1fr) 8px; }
.plot.low { grid-template-rows: 96px 22px; }
.plot > div { position: relative; }
.plot .left span, .plot .right span { position: absolute; transform: translateY(50%); white-space: nowrap;
  line-height: 1; }
.plot .left span { right: 8px; }
.plot .right span { left: 6px; font-weight: 600; }
.plot .below { grid-column: 2; }
.plot .below span { position: absolute; top: 5px; transform: translateX(-50%); white-space: nowrap; }
.area { position: relative; min-width: 0; }
svg { position: absolute; inset: 0; width: 100%; height: 100%; overflow: visible; display: block; }
svg * { vector-effect: non-scaling-stroke; }
.grid { stroke: var(--faint); stroke-width: 1; }
.base { stroke: var(--quiet); stroke-width: 1; }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round; }
.hit { fill: transparent; } .hit:hover { fill: var(--hover); }
.fill.s-main { fill: var(--main); } .line.s-main { stroke: var(--main); }
i.s-main { background: var(--main); }
.fill.s-main-2 { fill: var(--main-2); } .line.s-main-2 { stroke: var(--main-2); }
i.s-main-2 { background: var(--main-2); }
.fill.s-main-3 { fill: var(--main-3); } .line.s-main-3 { stroke: var(--main-3); }
i.s-main-3 { background: var(--main-3); }
.fill.s-bad { fill: var(--bad); } .line.s-bad { stroke: var(--bad); } i.s-bad { background: var(--bad); }
.fill.s-warn { fill: var(--warn); } .line.s-warn { stroke: var(--warn); }
i.s-warn { background: var(--warn); }
.fill.s-quiet { fill: var(--quiet); } i.s-quiet { background: var(--quiet); }
span.s-main { color: var(--main); } span.s-main-2 { color: var(--soft); }
span.s-main-3 { color: var(--soft); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 500; color: var(--soft); font-size: 12.5px; white-space: nowrap;
  padding: 0 14px 6px 0; }
td { border-top: 1px solid var(--faint); padding: 6px 14px 6px 0; vertical-align: middle; }
th:last-child, td:last-child { padding-right: 0; }
.n { text-align: right; white-space: nowrap; }
.name { font-weight: 600; overflow-wrap: anywhere; min-width: 86px; }
.id { color: var(--soft); white-space: nowrap; font-size: 12.5px; }
.grow { width: 32%; } .less { width: 20%; } .soft { color: var(--soft); }
.red { color: var(--bad); font-weight: 600; }
.badge { background: var(--badge); color: var(--bad); border-radius: 4px; padding: 1px 7px; font-size: 12.5px;
  white-space: nowrap; }
.bar { height: 10px; min-width: 60px; background: var(--faint); border-radius: 3px; overflow: hidden; }
.bar i { display: block; height: 100%; border-radius: 3px; }
.range { position: relative; height: 14px; min-width: 110px; margin: 0 5px; }
.range::before { content: ""; position: absolute; left: -5px; right: -5px; top: 6.5px; height: 1px;
  background: var(--faint); }
.range i { position: absolute; top: 4.5px; height: 5px; background: var(--main-3); border-radius: 3px; }
.range b { position: absolute; top: 2px; width: 10px; height: 10px; margin-left: -5px; border-radius: 50%;
  border: 2px solid var(--card); background: var(--main-2); }
.range b.q50 { background: var(--main-3); } .range b.q99 { background: var(--main); }
.spark { position: relative; height: 22px; min-width: 90px; } .spark .line { stroke-width: 1.4; }
.strip { position: relative; height: 18px; min-width: 120px; }
.graph { display: grid;
  grid-template-columns: minmax(84px, 168px) minmax(0, 1fr) minmax(84px, 168px); gap: 10px; }
.graph > div { position: relative; }
.graph span { position: absolute; left: 0; right: 0; transform: translateY(-50%); font-weight: 600;
  font-size: 13.5px; line-height: 1.2; overflow-wrap: anywhere; }
.graph > div:first-child span { text-align: right; }
.graph small { display: block; font-weight: 400; color: var(--soft); font-size: 12px; }
.graph span span { position: static; }
.edge { fill: none; stroke: var(--main); opacity: .35; stroke-linecap: butt; }
.edge:hover { opacity: .8; } .edge.bad { stroke: var(--bad); opacity: .85; pointer-events: none; }
.nothing { color: var(--soft); margin: 4px 0; }
code { font: 12.5px ui-monospace, "SF Mono", Menlo, Consolas, monospace; background: var(--faint);
  border-radius: 4px; padding: 1px 5px; overflow-wrap: anywhere; }
.hint { font-size: 13px; color: var(--soft); margin: 10px 0 0; }
#tip { position: fixed; z-index: 9; pointer-events: none; white-space: pre-line; background: var(--ink);
  color: var(--card); border-radius: 6px; padding: 6px 10px; font-size: 12.5px; line-height: 1.4;
  font-variant-numeric: tabular-nums; max-width: 280px; visibility: hidden; }
@media (max-width: 760px) {
  main { padding: 18px 12px 32px; } section { padding: 14px; }
  .pair { grid-template-columns: minmax(0, 1fr); }
  .wide, .minor { display: none; } .tiles { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  .tile b { font-size: 21px; } .plot, .plot.plain { grid-template-columns: 52px minmax(0, 1fr) 30px; }
  .plot.plain { grid-template-columns: 52px minmax(0, 1fr) 4px; } td, th { padding-right: 9px; } }
@media print { body { background: #fff; } section, .tile { break-inside: avoid; } }
"""

# Numbers of what is pointed at or touched. Without JavaScript the page is complete but for these.
SCRIPT: Final = """
(() => {
  const tip = document.getElementById("tip");
  const show = (event) => {
    const words = event.target.dataset && event.target.dataset.t;
    tip.style.visibility = words ? "visible" : "hidden";
    if (!words) return;
    tip.textContent = words;
    const box = tip.getBoundingClientRect();
    const right = event.clientX + 14 + box.width > innerWidth;
    tip.style.left = Math.max(4, right ? event.clientX - 14 - box.width : event.clientX + 14) + "px";
    tip.style.top = Math.max(4, Math.min(event.clientY + 14, innerHeight - box.height - 4)) + "px";
  };
  document.addEventListener("pointermove", show);
  document.addEventListener("pointerdown", show);
  document.addEventListener("pointerleave", () => { tip.style.visibility = "hidden"; });
})();
"""
