// Elements and texts. Values of the store reach the page as text nodes only, never as markup.

/** Creates an element. `attributes` may contain `on` handlers; children are nodes or text. */
export function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

/** Like `element`, for SVG. */
export function svgElement(name, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

/** Width of a chart, so that a unit of it is a pixel and its text keeps its size. */
export function chartWidth() {
  return Math.max(240, document.getElementById("page").clientWidth - 50);
}

/** Table of rows. A column is `[heading, row => cell, isNumber]`. */
export function table(caption, columns, rows, emptyText) {
  if (rows.length === 0) return element("div", { class: "scroll" }, element("p", { class: "empty" }, emptyText));
  const head = columns.map(([heading, , isNumber]) =>
    element("th", { scope: "col", class: isNumber ? "number" : null }, heading));
  const body = rows.map((row) => element("tr", {}, columns.map(([, cell, isNumber]) =>
    element("td", { class: isNumber ? "number" : null }, cell(row) ?? "–"))));
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    element("table", {}, element("thead", {}, element("tr", {}, head)), element("tbody", {}, body)));
}

/** Card with a number. */
export function card(label, value, note, grade) {
  return element("div", { class: "card" },
    element("dt", {}, label),
    element("dd", { class: grade }, String(value), note ? element("small", {}, note) : null));
}

/** Field of a form: a label around an input. */
export function field(label, attributes) {
  return element("label", {}, label, element("input", { autocomplete: "off", ...attributes }));
}

/** Select of a form. */
export function choice(label, name, options, chosen) {
  return element("label", {}, label, element("select", { name }, options.map(([value, text]) =>
    element("option", { value, selected: value === chosen }, text))));
}

/** Milliseconds as "8.2 s", "3 min", "2 h". */
export function duration(ms) {
  if (ms === null || ms === undefined) return null;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 3_600_000) return `${Math.floor(ms / 60_000)} min ${Math.floor((ms % 60_000) / 1000)} s`;
  return `${Math.floor(ms / 3_600_000)} h ${Math.floor((ms % 3_600_000) / 60_000)} min`;
}

/** Unix milliseconds as local date and time. */
export function pointInTime(ms) {
  return ms ? new Date(ms).toLocaleString() : null;
}

/** Bytes as "1.2 MiB". */
export function bytes(count) {
  if (count < 1024) return `${count} B`;
  if (count < 1024 * 1024) return `${(count / 1024).toFixed(1)} KiB`;
  return `${(count / 1024 / 1024).toFixed(1)} MiB`;
}
