// The last minutes of numbers, kept by the page, and line charts of them.
import { chartWidth, element, svgElement } from "./dom.js";

const MAX_POINTS = 300;
const series = new Map();

/** Adds the numbers of a snapshot. */
export function remember(snapshot) {
  const add = (name, value) => {
    const points = series.get(name) ?? [];
    points.push([snapshot.now_ms, value]);
    if (points.length > MAX_POINTS) points.shift();
    series.set(name, points);
  };
  if (!snapshot.store.available) return;
  add("jobs", snapshot.jobs.pending);
  add("refused", snapshot.stats?.refused ?? 0);
  const earlier = points("refused").at(-2);
  for (const { name, refusals } of snapshot.policies) {
    // A policy is known from its first use on: it had refused nobody before.
    if (earlier && !series.has(`refused ${name}`)) series.set(`refused ${name}`, [[earlier[0], 0]]);
    add(`refused ${name}`, refusals);
  }
  for (const queue of snapshot.queues) {
    add(`queue ${queue.name}`, queue.due);
    add(`wait ${queue.name}`, (queue.oldest_due_ms ?? 0) / 1000);
  }
}

/** Points of a series; with `perSecond`, its growth. */
export function points(name, perSecond = false) {
  const all = series.get(name) ?? [];
  if (!perSecond) return all;
  return all.slice(1).map(([at, value], index) => {
    const [before, earlier] = all[index];
    return [at, Math.max(0, value - earlier) / Math.max(1, (at - before) / 1000)];
  });
}

/** Growth of a series since its first point. A count that begins anew does not fall. */
export function growth(name) {
  const all = points(name);
  return all.slice(1).reduce((sum, [, value], index) => sum + Math.max(0, value - all[index][1]), 0);
}

/** Latest growth of a series per second. */
export function perSecond(name) {
  return points(name, true).at(-1)?.[1] ?? 0;
}

/** Line chart of up to five series, with its highest value as text, and a legend of their names. */
export function chart(caption, lines, names = []) {
  const width = chartWidth(), height = 120, base = 100;
  const all = lines.flat();
  const top = Math.max(1, ...all.map(([, value]) => value));
  const first = Math.min(...all.map(([at]) => at)), last = Math.max(...all.map(([at]) => at));
  const x = (at) => 40 + (width - 50) * (last > first ? (at - first) / (last - first) : 1);
  const y = (value) => base - (base - 10) * (value / top);
  const svg = svgElement("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": [caption, ...names].join(", ") });
  svg.append(svgElement("line", { class: "axis", x1: 40, x2: width - 10, y1: base, y2: base }),
    svgElement("text", { x: 4, y: 16 }, top >= 10 ? String(Math.round(top)) : top.toFixed(1)),
    svgElement("text", { x: 4, y: base + 4 }, "0"));
  lines.forEach((line, index) => svg.append(svgElement("polyline", {
    class: `line line-${index}`,
    points: line.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join(" "),
  })));
  const minutes = last > first ? Math.max(1, Math.round((last - first) / 60_000)) : 0;
  svg.append(svgElement("text", { x: 40, y: height - 4 }, minutes ? `${minutes} min ago` : "collecting"),
    svgElement("text", { x: width - 34, y: height - 4 }, "now"));
  const legend = names.map((name, index) => element("li", {}, svgElement("svg", { viewBox: "0 0 28 6", "aria-hidden": "true" },
    svgElement("line", { class: `line line-${index}`, x1: 0, x2: 28, y1: 3, y2: 3 })), name));
  return element("figure", { class: "chart" }, svg,
    element("figcaption", {}, caption, names.length ? element("ul", { class: "legend" }, legend) : null));
}
