// Elements, requests and formats. Content is only ever set as text: nothing here parses markup.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(9).filter((one) => one !== null && one !== undefined && one !== false));
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

export class Refused extends Error {
  constructor(status, body) {
    super(body.error || `status ${status}`);
    this.status = status;
    this.body = body;
  }
}

async function answered(response) {
  const text = await response.text();
  let body;
  try { body = JSON.parse(text); } catch { body = {error: text.trim()}; }
  if (!response.ok) throw new Refused(response.status, body);
  return body;
}

export const get = async (path) => answered(await fetch(path));
export const post = async (path, body) => answered(await fetch(path, {
  method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body),
}));
export const part = encodeURIComponent;

const whole = new Intl.NumberFormat("en-US");
export const number = (value) => whole.format(Math.round(value));
export function short(value) {
  if (value < 10000) return value < 100 && value % 1 ? value.toFixed(1) : number(value);
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) if (value >= size) return (value / size).toFixed(1) + unit;
}
export function bytes(value) {
  for (const [size, unit] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [1024, "KiB"]])
    if (value >= size) return (value / size).toFixed(1) + " " + unit;
  return value + " B";
}
export const when = (ms) => ms > 0 ? new Date(ms).toLocaleString(undefined, {dateStyle: "short", timeStyle: "medium"}) : "–";

export function pretty(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}
export function dump(hex) {
  const lines = [];
  for (let at = 0; at < hex.length; at += 32) {
    const row = hex.slice(at, at + 32).match(/../g) || [];
    const text = row.map((one) => { const c = parseInt(one, 16); return c > 31 && c < 127 ? String.fromCharCode(c) : "."; }).join("");
    lines.push((at / 2).toString(16).padStart(6, "0") + "  " + row.join(" ").padEnd(48) + " " + text);
  }
  return lines.join("\n");
}
export const payload = (one) => h("pre", {tabindex: 0},
  (one.text !== null ? pretty(one.text) : dump(one.hex)) + (one.cut ? `\n… ${number(one.size)} bytes in all` : "") || "(empty)");

export function table(heads, rows, empty) {
  if (!rows.length) return h("p", {class: "empty"}, empty);
  return h("div", {class: "scroll"}, h("table", {},
    h("thead", {}, h("tr", {}, heads.map((head) => h("th", {class: head.endsWith("#") ? "n" : null, scope: "col"}, head.replace("#", ""))))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, at) =>
      h("td", {class: heads[at].endsWith("#") ? "n" : at === 0 ? "name" : null}, cell)))))));
}

export function plot(points, {format = short, two = false} = {}) {
  const width = 300, height = 100, top = Math.max(...points.map((one) => one[1]), 1e-9);
  const first = points[0]?.[0] ?? 0, span = Math.max((points.at(-1)?.[0] ?? 1) - first, 1);
  const path = points.map(([x, y], at) => `${at ? "L" : "M"}${((x - first) / span * width).toFixed(1)} ${(height - y / top * (height - 6)).toFixed(1)}`).join("");
  const shape = svg("svg", {class: two ? "plot two" : "plot", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img",
    "aria-label": `from ${format(points[0]?.[1] ?? 0)} to ${format(points.at(-1)?.[1] ?? 0)}, at most ${format(top)}`});
  if (points.length > 1) shape.append(svg("path", {class: "fill", d: `${path}L${width} ${height}L0 ${height}Z`}), svg("path", {class: "line", d: path}));
  const ago = Math.round(span);
  return h("div", {}, shape, h("div", {class: "plotfoot"}, h("span", {}, points.length > 1 ? `${ago} s ago` : "waiting for a second sample"), h("span", {}, `max ${format(top < 1e-6 ? 0 : top)}`), h("span", {}, "now")));
}
export const plotPanel = (title, points, options = {}) => h("section", {class: "panel"},
  h("div", {class: "plothead"}, h("h2", {}, title), h("b", {}, (options.format || short)(points.at(-1)?.[1] ?? 0) + (options.unit || ""))), plot(points, options));

export function toast(text) {
  const line = h("div", {}, text);
  document.getElementById("toast").append(line);
  setTimeout(() => line.remove(), 6000);
}
export const errorBox = (error) => h("div", {class: "error", role: "alert"}, error.message || String(error));

// The lines that were removed and added, by the longest common subsequence.
export function diff(before, after) {
  const a = pretty(before).split("\n").slice(0, 400), b = pretty(after).split("\n").slice(0, 400);
  const lengths = Array.from({length: a.length + 1}, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--) for (let j = b.length - 1; j >= 0; j--) lengths[i][j] = a[i] === b[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
  const lines = [];
  let i = 0, j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) { lines.push(h("span", {}, `  ${a[i++]}\n`)); j++; }
    else if (j < b.length && (i >= a.length || lengths[i][j + 1] > lengths[i + 1][j])) lines.push(h("span", {class: "add"}, `+ ${b[j++]}\n`));
    else lines.push(h("span", {class: "del"}, `- ${a[i++]}\n`));
  }
  return h("pre", {class: "diff", tabindex: 0}, lines);
}
