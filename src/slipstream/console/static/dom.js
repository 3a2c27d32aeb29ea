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

async function sent(path, options) {
  let response;
  try { response = await fetch(path, options); } catch { throw new Error("the console is not reachable: it was stopped, or the connection was lost"); }
  return answered(response);
}
export const get = (path) => sent(path);
export const post = (path, body) => sent(path, {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body)});
export const part = encodeURIComponent;

// Server-sent events; `taken` gets each as an object. Returns what ends them.
export function events(path, taken, failed = () => {}) {
  const source = new EventSource(path);
  source.onmessage = (message) => {
    banner("");
    const value = JSON.parse(message.data);
    value.error ? failed(new Error(value.error)) : taken(value);
  };
  source.onerror = () => { if (source.readyState !== EventSource.CLOSED || document.visibilityState === "visible") banner("The console is not reachable. Trying again…"); };
  return () => source.close();
}
export const live = (taken, failed) => events("/api/live", taken, failed);

export function banner(text) {
  const place = document.getElementById("banner");
  if (place.textContent !== text) place.textContent = text;
}

const whole = new Intl.NumberFormat("en-US");
export const number = (value) => whole.format(Math.round(value));
export function short(value) {
  if (value < 10000) return value < 100 && value % 1 ? value.toFixed(1) : number(value);
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) if (value >= size) return (value / size).toFixed(1) + unit;
  return number(value);
}
export const pace = (value) => value === null || value === undefined ? "–" : short(value) + "/s";
export function bytes(value) {
  for (const [size, unit] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [1024, "KiB"]])
    if (value >= size) return (value / size).toFixed(1) + " " + unit;
  return Math.round(value) + " B";
}
export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1) return Math.round(value * 1000) + " ms";
  if (value < 120) return value.toFixed(value < 10 ? 1 : 0) + " s";
  if (value < 7200) return Math.round(value / 60) + " min";
  return value < 172800 ? (value / 3600).toFixed(1) + " h" : (value / 86400).toFixed(1) + " d";
}
export const when = (ms) => ms > 0 ? new Date(ms).toLocaleString("sv-SE", {dateStyle: "short", timeStyle: "medium"}) : "–";
export const plural = (count, one, many = one + "s") => `${number(count)} ${count === 1 ? one : many}`;

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
const hexOf = (text) => [...new TextEncoder().encode(text.slice(0, 4096))].map((one) => one.toString(16).padStart(2, "0")).join("");
const isJson = (text) => { try { return typeof JSON.parse(text) === "object"; } catch { return false; } };

// A payload as JSON, text or hexadecimal, whichever it can be shown as.
export function payload(one) {
  const views = one.text === null ? {Hex: () => dump(one.hex)} : {...(isJson(one.text) ? {JSON: () => pretty(one.text)} : {}), Text: () => one.text, Hex: () => dump(hexOf(one.text))};
  const body = h("pre", {tabindex: 0}), tabs = h("div", {class: "tabs", role: "group", "aria-label": "Show as"});
  const show = (name) => {
    body.textContent = (views[name]() || "(empty)") + (one.cut ? `\n… ${number(one.size)} bytes in all` : "");
    for (const tab of tabs.children) tab.setAttribute("aria-pressed", String(tab.textContent === name));
  };
  for (const name of Object.keys(views)) tabs.append(h("button", {type: "button", onclick: () => show(name)}, name));
  show(Object.keys(views)[0]);
  return h("div", {class: "payload"}, tabs, body);
}

export const badge = (text, kind = "") => h("span", {class: `badge ${kind}`}, text);
export const lagBadge = (lag) => lag === null || lag === undefined ? "" : badge(lag ? `${number(lag)} behind` : "current", lag ? "warn" : "good");
export const empty = (title, ...more) => h("div", {class: "empty"}, h("p", {class: "empty-title"}, title), ...more.map((one) => h("p", {}, one)));
export const loading = (text = "Loading…") => h("p", {class: "loading", role: "status"}, text);
export const errorBox = (error, retry) => h("div", {class: "error", role: "alert"}, h("span", {}, error.message || String(error)), retry ? h("button", {onclick: retry}, "Try again") : "");
export const panel = (title, ...children) => h("section", {class: "panel"}, title ? h("h2", {}, title) : "", ...children);
export const field = (label, input) => h("label", {}, label, input);
export function title(name, crumbs = [], ...actions) {
  return h("div", {class: "title"}, h("h1", {}, crumbs.map(([text, href]) => [h("a", {class: "crumb", href}, text), h("span", {class: "crumb", "aria-hidden": "true"}, " / ")]), name), h("div", {class: "actions"}, actions));
}
export const facts = (...pairs) => h("dl", {}, pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== false).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));

const numeric = (head) => head.endsWith("#");
export function table(heads, rows, nothing) {
  const made = liveTable(heads, nothing);
  made.update(rows.map((cells, at) => ({key: String(at), cells})));
  return made.element;
}

// A table that is changed in place: focus, selection and scroll position stay while figures move. A cell is text, an
// element, or {text, href, badge, bar, button}; a row has a key.
export function liveTable(heads, nothing, {sort = null} = {}) {
  const body = h("tbody"), none = typeof nothing === "string" ? empty(nothing) : nothing, rows = new Map();
  const scroll = h("div", {class: "scroll"});
  let order = sort, last = [];
  const headCells = heads.map((head, at) => {
    const text = head.replace("#", "");
    const cell = h("th", {class: numeric(head) ? "n" : null, scope: "col"});
    if (!sort || !text) { cell.append(text); return cell; }
    cell.append(h("button", {class: "sort", onclick: () => { order = order[0] === at ? [at, !order[1]] : [at, numeric(head)]; update(last); }}, text));
    return cell;
  });
  const element = h("div", {}, none, scroll);
  scroll.append(h("table", {}, h("thead", {}, h("tr", {}, headCells)), body));
  const made = (cell) => {
    if (cell === null || cell === undefined) return [""];
    if (cell instanceof Node || typeof cell !== "object") return [cell];
    if (Array.isArray(cell)) return cell.flatMap(made);
    const text = cell.href ? h("a", {href: cell.href}, cell.text) : cell.button ? h("button", {class: "small", onclick: cell.on}, cell.button) : cell.badge !== undefined ? badge(cell.badge, cell.kind) : cell.code ? h("code", {}, cell.text) : cell.text;
    return cell.bar === undefined ? [text] : [h("span", {class: `bar w${cell.bar ? Math.min(5, Math.ceil(Math.log10(cell.bar + 1))) : 0}`}), text];
  };
  function update(given) {
    last = given;
    if (order) {
      const [at, down] = order, value = (row) => row.sort?.[at] ?? row.cells[at]?.text ?? row.cells[at] ?? "";
      given = [...given].sort((a, b) => { const x = value(a), y = value(b); return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1); });
      headCells.forEach((cell, index) => index === at ? cell.setAttribute("aria-sort", down ? "descending" : "ascending") : cell.removeAttribute("aria-sort"));
    }
    none.hidden = given.length > 0;
    scroll.hidden = !given.length;
    const keys = new Set(given.map((row) => row.key));
    for (const [key, row] of rows) if (!keys.has(key)) { row.element.remove(); rows.delete(key); }
    given.forEach((row, index) => {
      let known = rows.get(row.key);
      if (!known) {
        known = {element: h("tr", {}, heads.map((head, at) => h("td", {class: numeric(head) ? "n" : at === 0 ? "name" : null}))), signs: []};
        rows.set(row.key, known);
      }
      row.cells.forEach((cell, at) => {
        const sign = cell instanceof Node ? null : JSON.stringify(cell);
        if (sign !== null && known.signs[at] === sign) return;
        known.signs[at] = sign;
        known.element.children[at].replaceChildren(...made(cell));
      });
      if (body.children[index] !== known.element) body.insertBefore(known.element, body.children[index] || null);
    });
  }
  update([]);
  return {element, update};
}

export function toast(text, kind = "") {
  const line = h("div", {class: kind}, text);
  document.getElementById("toast").append(line);
  setTimeout(() => line.remove(), 6000);
}

// Asks before something is changed: what is about to happen, and a button that says it. Resolves to whether it may.
export function confirm(heading, content, action, {danger = false} = {}) {
  const dialog = document.getElementById("dialog");
  return new Promise((done) => {
    const close = (answer) => { dialog.close(); done(answer); };
    dialog.oncancel = () => done(false);
    dialog.replaceChildren(h("h2", {id: "dialog-title"}, heading), ...[content].flat().map((one) => typeof one === "string" ? h("p", {}, one) : one),
      h("div", {class: "row end"}, h("button", {onclick: () => close(false)}, "Cancel"), h("button", {class: danger ? "primary danger" : "primary", onclick: () => close(true)}, action)));
    dialog.showModal();
  });
}

// The lines that were removed and added, by the longest common subsequence.
export function diff(before, after) {
  const all = [pretty(before).split("\n"), pretty(after).split("\n")], [a, b] = all.map((one) => one.slice(0, 400));
  const lengths = Array.from({length: a.length + 1}, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--) for (let j = b.length - 1; j >= 0; j--) lengths[i][j] = a[i] === b[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
  const lines = [];
  let i = 0, j = 0, changes = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) { lines.push(["", `  ${a[i++]}\n`]); j++; }
    else if (j < b.length && (i >= a.length || lengths[i][j + 1] > lengths[i + 1][j])) { lines.push(["add", `+ ${b[j++]}\n`]); changes++; }
    else { lines.push(["del", `- ${a[i++]}\n`]); changes++; }
  }
  const near = (at) => lines.slice(Math.max(0, at - 3), at + 4).some(([kind]) => kind);
  const shown = [];
  let skipped = 0;
  lines.forEach(([kind, text], at) => {
    if (lines.length > 24 && !kind && !near(at)) { skipped++; return; }
    if (skipped) { shown.push(h("span", {class: "dim"}, `  … ${plural(skipped, "line")} unchanged\n`)); skipped = 0; }
    shown.push(h("span", {class: kind || null}, text));
  });
  if (skipped) shown.push(h("span", {class: "dim"}, `  … ${plural(skipped, "line")} unchanged\n`));
  const cut = all.some((one) => one.length > 400) ? h("span", {class: "dim"}, "  only the first 400 lines are compared\n") : "";
  return h("pre", {class: "diff", tabindex: 0}, changes ? shown : h("span", {class: "dim"}, "  no difference\n"), cut);
}
