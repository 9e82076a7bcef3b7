"""The report's style sheet: light and dark, wide and narrow, no outside resource."""

CSS = """
:root { color-scheme: light dark;
  --page:#ffffff; --card:#f7f8fa; --rule:#e3e6ea; --ink:#1c2024; --quiet:#60686f; --faint:#b4bbc1;
  --served:#8b949b; --window:#eef0f3; --bad:#b3261e;
  --c0:#0072b2; --c1:#d55e00; --c2:#009e73; --c3:#b3478c; --c4:#8c6d1f; --c5:#5b4db1; --c6:#2b9bb8;
  --c7:#a3423b; --onfill:#ffffff;
  --l0:#eef1f4; --l1:#fff0c2; --l2:#ffdc85; --l3:#ffb95e; --l4:#ff9466; --tokenink:#1c2024; }
@media (prefers-color-scheme: dark) { :root {
  --page:#14171a; --card:#1c2024; --rule:#30363c; --ink:#eceef0; --quiet:#9ba3aa; --faint:#596168;
  --served:#8b949b; --window:#20252a; --bad:#ff8a80;
  --c0:#5aaeea; --c1:#ff9152; --c2:#3ccfa3; --c3:#e58ac4; --c4:#d6b656; --c5:#a498f5; --c6:#66cbe4;
  --c7:#ec8880; --onfill:#14171a;
  --l0:#3a4249; --l1:#6b5a1e; --l2:#8a6a14; --l3:#a35a12; --l4:#b0431a; --tokenink:#ffffff; } }
* { box-sizing:border-box; }
body { margin:0; background:var(--page); color:var(--ink);
  font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif; }
main { max-width:1000px; margin:0 auto; padding:32px 20px 64px; }
h1 { font-size:1.6rem; line-height:1.25; margin:0 0 4px; letter-spacing:-.01em; }
h2 { font-size:1.15rem; margin:44px 0 8px; }
p { margin:0 0 12px; max-width:46rem; }
.lead { font-size:1.1rem; }
.quiet, .quiet td { color:var(--quiet); }
.small { font-size:.875rem; }
code, pre, .mono { font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace; }
.tiles { display:grid; grid-template-columns:repeat(auto-fit,minmax(128px,1fr)); gap:10px;
  margin:20px 0 8px; }
.tile { background:var(--card); border-radius:10px; padding:10px 14px; }
.tile b { display:block; font-size:1.25rem; font-variant-numeric:tabular-nums; }
.tile span { color:var(--quiet); font-size:.8125rem; }
.scroll { overflow-x:auto; -webkit-overflow-scrolling:touch; }
table { border-collapse:collapse; font-variant-numeric:tabular-nums; font-size:.9375rem; }
th { text-align:right; font-weight:600; font-size:.8125rem; color:var(--quiet);
  vertical-align:bottom; }
th, td { padding:7px 18px 7px 0; border-bottom:1px solid var(--rule); white-space:nowrap; }
td { text-align:right; }
th.l, td.l { text-align:left; }
td.wrap { white-space:normal; overflow-wrap:anywhere; }
.dot { display:inline-block; width:.7em; height:.7em; border-radius:50%; margin-right:.35em; }
.bad { color:var(--bad); }
.key { display:flex; flex-wrap:wrap; gap:4px 22px; margin:0 0 12px; color:var(--quiet);
  font-size:.875rem; }
.key i { display:inline-block; width:22px; vertical-align:middle; margin-right:7px;
  border-top:2px solid var(--c0); }
.key i.k-thick { border-top-width:4px; } .key i.k-thin { border-top-width:1px; }
.key i.k-served { border-color:var(--served); }
.readout { min-height:3em; margin:4px 0 0; font-size:.875rem; color:var(--quiet);
  font-variant-numeric:tabular-nums; }
.readout b { color:var(--ink); font-weight:600; } .readout span { margin-right:16px;
  white-space:nowrap; }
svg.chart { width:100%; height:auto; display:block; touch-action:pan-y; }
svg.narrow { display:none; }
@media (max-width:640px) { svg.wide { display:none; } svg.narrow { display:block; }
  main { padding:20px 14px 48px; } h1 { font-size:1.35rem; } }
svg text { font-size:12px; fill:var(--quiet); }
svg .name { font-weight:600; fill:var(--ink); } svg .end { text-anchor:end; }
svg .middle, svg .onfill, svg .onpage { text-anchor:middle; }
svg .strong { fill:var(--ink); } svg .onfill { fill:var(--onfill); font-weight:600; }
svg .onpage { fill:var(--ink); } svg .gap { fill:var(--page); }
svg .onpage.quiet { fill:var(--quiet); }
svg .line { fill:none; stroke-linejoin:round; stroke-linecap:round; }
svg .thin { stroke-width:1; opacity:.42; } svg .thick { stroke-width:2.8; }
svg .served { stroke:var(--served); stroke-width:1.3; }
svg .ink { stroke:var(--ink); stroke-width:1.5; } svg .faint { stroke:var(--faint); }
svg .area { fill:var(--ink); opacity:.1; } svg .grid { stroke:var(--rule); }
svg .axis { stroke:var(--faint); } svg .window { fill:var(--window); }
svg .mark { stroke:var(--quiet); stroke-dasharray:3 3; opacity:.7; }
svg .bracket { stroke:var(--ink); fill:none; stroke-width:1.3; }
svg .bracket.quiet { stroke:var(--faint); }
svg .cursor { stroke:var(--ink); opacity:.6; visibility:hidden; }
details { border-bottom:1px solid var(--rule); }
details > summary { cursor:pointer; padding:9px 0; list-style-position:outside; }
div.rollout { padding:8px 0 9px; border-bottom:1px solid var(--rule); }
.flow { margin-top:2px; overflow-wrap:anywhere; } .flow .got { color:var(--quiet); }
.reward { font-weight:600; font-variant-numeric:tabular-nums; }
.talk { margin:2px 0 16px; padding:12px 14px; background:var(--card); border-radius:10px;
  overflow-x:auto; font-size:.9375rem; }
.talk div { display:flex; gap:14px; padding:2px 0; }
.talk div > span:first-child { flex:0 0 92px; color:var(--quiet); font-size:.8125rem; }
.talk .text { white-space:pre-wrap; overflow-wrap:anywhere; }
.talk .got { margin-left:auto; color:var(--quiet); font-size:.8125rem; white-space:nowrap; }
.tok { border-radius:4px; padding:1px 3px; margin-right:1px; color:var(--tokenink); }
.tok.none { background:none; color:inherit; outline:1px solid var(--faint); outline-offset:-1px; }
.filters { display:flex; flex-wrap:wrap; gap:8px; margin:10px 0 12px; }
.filters label { color:var(--quiet); font-size:.875rem; }
select { font:inherit; font-size:.875rem; color:inherit; background:var(--card);
  border:1px solid var(--rule); border-radius:7px; padding:4px 8px; }
pre { background:var(--card); border-radius:10px; padding:14px; overflow-x:auto; font-size:.8125rem;
  line-height:1.45; margin:6px 0 14px; }
"""
CSS += "".join(
    f".c{k} {{ stroke:var(--c{k}); }} .f{k} {{ fill:var(--c{k}); }} "
    f".s{k} {{ stop-color:var(--c{k}); }} .b{k} {{ background:var(--c{k}); }}\n"
    for k in range(8)
)
CSS += "".join(f".l{k} {{ background:var(--l{k}); }}\n" for k in range(5))
