"use strict";

const DATA = JSON.parse(document.getElementById("data").textContent);
function theme() {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(name).trim();
  return { ink: value("--ink"), muted: value("--muted"), grid: value("--grid"), card: value("--card") };
}

/** `values`: what a logarithmic axis shows; few decades get ticks at 2 and 5 too. */
function axis(title, log, colors, values) {
  const out = {
    title: { text: title, standoff: 6 }, type: log ? "log" : "linear", gridcolor: colors.grid,
    linecolor: colors.grid, zerolinecolor: colors.grid, automargin: true,
    rangemode: log ? "normal" : "tozero",
  };
  if (!log || !values) return out;
  const [least, most] = [Math.min(...values), Math.max(...values)];
  if (most / least < 8) {
    // Less than a decade: even steps, of which some lie between the least and the most.
    const raw = Math.max(most - least, 0.05 * most) / 3;
    const unit = 10 ** Math.floor(Math.log10(raw));
    const step = unit * ([1, 2, 5].findLast((s) => s * unit <= raw) || 1);
    const ticks = [];
    for (let v = Math.ceil((0.9 * least) / step); v * step <= 1.1 * most; ++v) {
      if (v > 0) ticks.push(v * step);
    }
    const range = [0.9 * least, 1.1 * most].map(Math.log10);
    return { ...out, range, tickvals: ticks, ticktext: ticks.map((v) => String(Number(v.toPrecision(3)))) };
  }
  const low = Math.floor(Math.log10(least));
  const high = Math.ceil(Math.log10(most));
  const steps = high - low <= 2 ? [1, 2, 5] : [1];
  out.tickvals = [];
  for (let e = low; e <= high; ++e) steps.forEach((s) => out.tickvals.push(s * 10 ** e));
  out.ticktext = out.tickvals.map((v) => Number(v.toPrecision(3)).toLocaleString("en"));
  return out;
}

/** What all plots share; long legends go below, where a phone has room. */
function layout(title, x, y, colors) {
  return {
    title: { text: title, font: { size: 15, color: colors.ink }, x: 0.03, xanchor: "left" },
    paper_bgcolor: colors.card, plot_bgcolor: colors.card,
    font: { family: "system-ui, DejaVu Sans, sans-serif", size: 12, color: colors.muted },
    margin: { l: 52, r: 14, t: 44, b: 40 }, xaxis: x, yaxis: y, showlegend: true, hovermode: "closest",
    legend: { orientation: "h", y: -0.26, yanchor: "top", x: 0, font: { size: 12 } },
  };
}

/** Ticks at the lengths that were measured, as people write them. */
function lengthAxis(series, title, colors) {
  const lengths = [...new Set(series.flatMap((s) => s.x))].sort((a, b) => a - b);
  const short = (n) => (n >= 1024 && n % 1024 === 0 ? `${n / 1024}k` : `${n}`);
  return { ...axis(title, true, colors), tickvals: lengths, ticktext: lengths.map(short) };
}

function draw(id, traces, shape) {
  const config = { responsive: true, displayModeBar: false };
  return Plotly.react(id, traces, shape, config);
}

function drawPanel(id, panel) {
  const colors = theme();
  const traces = panel.series.map((s) => ({
    type: "scatter", mode: "lines+markers", name: s.name, x: s.x, y: s.y,
    line: { color: s.color, width: 2 }, marker: { size: 6 },
    hovertemplate: `%{y:.4g} ${panel.y} at %{x}<extra>${s.name}</extra>`,
  }));
  const y = axis(panel.y, panel.logY, colors, panel.series.flatMap((s) => s.y));
  return draw(id, traces, layout(panel.title, lengthAxis(panel.series, panel.x, colors), y, colors));
}

/** What draws each plot that is shown now; plots draw when they come near the window. */
const drawers = new Map();
const drawn = new Set();

function drawNow(id) {
  drawn.add(id);
  return drawers.get(id)();
}

const near = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting && !drawn.has(entry.target.id)) drawNow(entry.target.id);
    }
  },
  { rootMargin: "500px" },
);

function setDrawer(id, drawer) {
  drawers.set(id, drawer);
  if (drawn.has(id)) drawer();
  else near.observe(document.getElementById(id));
}

function showShape(index, shape) {
  const panels = DATA.files[index].shapes[shape];
  for (let i = 0; ; ++i) {
    const div = document.getElementById(`file${index}-${i}`);
    if (!div) return;
    div.hidden = i >= panels.length;
    if (div.hidden) {
      drawers.delete(div.id);
      drawn.delete(div.id);
      Plotly.purge(div);
    } else {
      setDrawer(div.id, () => drawPanel(div.id, panels[i]));
    }
  }
}

function drawRoofline(id, roof) {
  const colors = theme();
  const xs = roof.series.flatMap((s) => s.x);
  const left = Math.min(...xs) / 3;
  const top = Math.max(...roof.ceilings.map((c) => c.tflops));
  const right = Math.max(...xs, (1e3 * top) / roof.gbps) * 3;
  const lines = roof.ceilings.map((c) => {
    const ridge = (1e3 * c.tflops) / roof.gbps;
    return {
      type: "scatter", mode: "lines", name: `${c.name} peak`, x: [left, ridge, right],
      y: [(left * roof.gbps) / 1e3, c.tflops, c.tflops], hoverinfo: "name",
      line: { color: colors.muted, width: 1.5, dash: c.tflops === top ? "solid" : "dot" },
    };
  });
  const points = roof.series.map((s) => ({
    type: "scatter", mode: "markers", name: s.name, x: s.x, y: s.y, text: s.text,
    marker: { color: s.color, size: 7, opacity: 0.75 },
    hovertemplate: `%{text}: %{y:.3g} TFLOP/s, %{x:.3g} FLOP a byte<extra>${s.name}</extra>`,
  }));
  const y = axis(roof.y, true, colors, [...roof.series.flatMap((s) => s.y), top]);
  const shape = layout(roof.title, axis(roof.x, true, colors, [left, right]), y, colors);
  return draw(id, [...lines, ...points], shape);
}

function drawAccuracy(id, plot) {
  const colors = theme();
  const xs = plot.series.flatMap((s) => s.x);
  const ratios = plot.series.flatMap((s) => s.y);
  const ends = [Math.min(...xs) / 1.5, Math.max(...xs) * 1.5];
  const band = (ratio, dash) => ({
    type: "scatter", mode: "lines", x: ends, y: [ratio, ratio], hoverinfo: "skip", showlegend: false,
    line: { color: colors.muted, width: 1, dash },
  });
  const points = plot.series.map((s) => ({
    type: "scatter", mode: "markers", name: s.name, x: s.x, y: s.y, text: s.text,
    marker: { color: s.color, size: 7, opacity: 0.75 },
    hovertemplate: `%{text}: %{y:.3g} of the measured %{x:.4g} ms<extra>${s.name}</extra>`,
  }));
  const traces = [band(1, "solid"), band(1.25, "dash"), band(0.8, "dash")];
  const x = axis(plot.x, true, colors, ends);
  const y = { ...axis(plot.y, true, colors, ratios), tickvals: [0.25, 0.5, 0.8, 1, 1.25, 2, 4] };
  y.ticktext = y.tickvals.map(String);
  const shape = layout(plot.title, x, y, colors);
  return draw(id, [...traces, ...points], shape);
}

/** Draws every plot, also those far from the window, a plot at a time. */
async function drawEverything() {
  document.querySelectorAll("details").forEach((fold) => (fold.open = true));
  for (const id of drawers.keys()) {
    if (!drawn.has(id)) drawNow(id);
    await new Promise((resume) => setTimeout(resume));
  }
  document.documentElement.dataset.drawn = "all";
}

for (const select of document.querySelectorAll("select[data-file]")) {
  showShape(Number(select.dataset.file), select.value);
  select.addEventListener("change", () => showShape(Number(select.dataset.file), select.value));
}
DATA.rooflines.forEach((roof, i) => setDrawer(`roof${i}`, () => drawRoofline(`roof${i}`, roof)));
const accuracy = document.getElementById("accuracy");
accuracy.hidden = !DATA.accuracy;
if (DATA.accuracy) setDrawer("accuracy", () => drawAccuracy("accuracy", DATA.accuracy));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach(drawNow));
addEventListener("beforeprint", () => drawers.forEach((_, id) => drawNow(id)));

/** A link to what lies in a fold opens the fold. */
function unfold() {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  if (!target) return;
  for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  target.scrollIntoView();
}
addEventListener("hashchange", unfold);
unfold();
document.documentElement.dataset.drawn = "ready";
