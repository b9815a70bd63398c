"use strict";
// Small charts of courses over time as SVG; every text is a text node, so nothing can run.

const SVG = "http://www.w3.org/2000/svg";
const W = 560, H = 200, LEFT = 52, RIGHT = 12, TOP = 8, BOTTOM = 24;

function svg(tag, attributes, parent) {
  const node = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (parent) parent.append(node);
  return node;
}

function el(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function ticks(low, high, count) {
  const span = high - low || 1;
  const raw = span / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw - 1e-12);
  const found = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-6; v += step) {
    found.push(Math.abs(v) < step * 1e-9 ? 0 : v);
  }
  return found;
}

function timeUnit(spanMs) {
  if (spanMs > 3 * 86400e3) return [86400e3, "days"];
  if (spanMs > 3 * 3600e3) return [3600e3, "hours"];
  if (spanMs > 600e3) return [60e3, "minutes"];
  return [1e3, "seconds"];
}

// value of a course at an instant: the last one not after it; lines between points are drawn
// straight, but what is told is what was known.
function valueAt(points, t) {
  let low = 0, high = points.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] <= t) low = middle + 1; else high = middle;
  }
  return low ? points[low - 1][1] : null;
}

// host: where to draw. given: {title, series, from, to, format, marks, steps, note}
// series: [{name, cls, kind: area|step|line|dash|band|dots, points, low}]
function drawChart(host, given) {
  host.replaceChildren();
  host.append(el("h2", "", given.title));
  const shown = given.series.filter((s) => s.points.some((p) => p[1] !== null));
  const legend = el("div", "legend");
  for (const s of shown) {
    const item = el("span", "");
    const sign = el("i", `${s.kind} ${s.cls}`);
    item.append(sign, document.createTextNode(s.name));
    legend.append(item);
  }
  for (const [cls, name] of given.marks && given.marks.length ? given.told || [] : []) {
    const item = el("span", "");
    item.append(el("i", `mark ${cls}`), document.createTextNode(name));
    legend.append(item);
  }
  host.append(legend);
  if (!shown.length || !(given.to > given.from)) {
    host.append(el("div", "none", given.none || "nothing to show yet"));
    return;
  }
  const values = shown.flatMap((s) => [...s.points, ...(s.low || [])])
    .map((p) => p[1]).filter((v) => v !== null);
  let low = given.zero === false ? Math.min(...values) : Math.min(0, ...values);
  let high = Math.max(...values, given.least || 0);
  if (high === low) high = low + (Math.abs(low) || 1);
  high += (high - low) * 0.06;
  const x = (t) => LEFT + (W - LEFT - RIGHT) * (t - given.from) / (given.to - given.from);
  const y = (v) => H - BOTTOM - (H - TOP - BOTTOM) * (v - low) / (high - low);
  const root = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img" });
  svg("title", {}, root).textContent = given.title;
  axes(root, given, x, y, low, high);
  for (const s of shown) drawSeries(root, s, x, y, given.steps ? null : given.to);
  for (const mark of given.marks || []) {
    const at = x(mark.at);
    svg("line", { x1: at, x2: at, y1: TOP - 4, y2: TOP + 5, class: `tick ${mark.cls}` }, root);
  }
  const frame = el("div", "chart");
  frame.append(root);
  hover(frame, root, given, shown, x);
  host.append(frame);
}

function axes(root, given, x, y, low, high) {
  for (const v of ticks(low, high, 4)) {
    svg("line", { x1: LEFT, x2: W - RIGHT, y1: y(v), y2: y(v), class: "grid" }, root);
    const text = svg("text", { x: LEFT - 7, y: y(v) + 4, "text-anchor": "end" }, root);
    text.textContent = (given.axis || given.format)(v);
  }
  const [unit, name] = given.steps ? [1, "steps"] : timeUnit(given.to - given.from);
  const zero = given.steps ? 0 : given.from;
  const found = ticks((given.from - zero) / unit, (given.to - zero) / unit, 6);
  found.forEach((v, index) => {
    const at = x(zero + v * unit);
    const last = index === found.length - 1;
    const anchor = at > W - 40 ? "end" : "middle";
    const text = svg("text", { x: at, y: H - 6, "text-anchor": anchor }, root);
    text.textContent = v.toLocaleString("en") + (last ? ` ${name}` : "");
  });
}

function drawSeries(root, s, x, y, end) {
  const known = s.points.filter((p) => p[1] !== null);
  if (s.kind === "dots") {
    for (const [t, v] of known) {
      svg("circle", { cx: x(t), cy: y(v), r: 1.6, class: `dot ${s.cls}` }, root);
    }
    return;
  }
  const stepped = s.kind === "step" || s.kind === "area";
  const carried = stepped && end ? [...known, [end, known[known.length - 1][1]]] : known;
  const line = path(carried, x, y, stepped);
  if (s.kind === "area" || s.kind === "band") {
    const base = s.low ? (stepped && end ? [...s.low, [end, s.low[s.low.length - 1][1]]] : s.low)
      : [[carried[0][0], 0], [carried[carried.length - 1][0], 0]];
    const back = path([...base].reverse(), x, y, stepped, true);
    svg("path", { d: `${line}L${back.slice(1)}Z`, class: `${s.kind} ${s.cls}` }, root);
    return;
  }
  svg("path", { d: line, class: `line ${s.kind === "dash" ? "dash" : ""} ${s.cls}` }, root);
}

function path(points, x, y, stepped, backwards) {
  let text = "";
  points.forEach(([t, v], index) => {
    const px = x(t).toFixed(1), py = y(v).toFixed(1);
    if (!index) text += `M${px} ${py}`;
    else if (!stepped) text += `L${px} ${py}`;
    else text += backwards ? `V${py}H${px}` : `H${px}V${py}`;
  });
  return text;
}

function hover(frame, root, given, shown, x) {
  const hair = svg("line", { y1: TOP, y2: H - BOTTOM, class: "hair", visibility: "hidden" }, root);
  const tip = el("div", "tip");
  tip.hidden = true;
  frame.append(tip);
  const hide = () => { tip.hidden = true; hair.setAttribute("visibility", "hidden"); };
  root.addEventListener("pointerleave", hide);
  root.addEventListener("pointermove", (event) => {
    const box = root.getBoundingClientRect();
    const at = (event.clientX - box.left) / box.width * W;
    if (at < LEFT || at > W - RIGHT) { hide(); return; }
    const t = given.from + (at - LEFT) / (W - LEFT - RIGHT) * (given.to - given.from);
    const lines = [given.steps ? `step ${Math.round(t).toLocaleString("en")}` : when(t, given.from)];
    for (const s of shown) {
      const value = valueAt(s.told || s.points, t);
      if (value !== null && s.kind !== "band") lines.push(`${s.name}: ${given.format(value)}`);
    }
    tip.textContent = lines.join("\n");
    tip.hidden = false;
    const right = at > W / 2;
    tip.style.left = right ? "" : `${(at / W) * box.width + 12}px`;
    tip.style.right = right ? `${box.width - (at / W) * box.width + 12}px` : "";
    tip.style.top = "10px";
    hair.setAttribute("x1", at);
    hair.setAttribute("x2", at);
    hair.setAttribute("visibility", "visible");
  });
}

function when(t, from) {
  const [unit, name] = timeUnit(t - from);
  return `${((t - from) / unit).toFixed(1)} ${name}, ${stamp(t)}`;
}

function stamp(ms) {
  return new Date(ms).toISOString().replace("T", " ").slice(0, 19) + " UTC";
}
