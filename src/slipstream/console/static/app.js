// Router: the address behind # names the view; each view gets its element and returns what stops it.
import {h, svg, get, errorBox, loading, empty, banner} from "/static/dom.js";
import {overview} from "/static/overview.js";
import {streams} from "/static/streams.js";
import {messages} from "/static/messages.js";
import {consumers} from "/static/consumers.js";
import {buckets} from "/static/kv.js";
import {objects} from "/static/objects.js";
import {trust} from "/static/trust.js";
import {pipelines} from "/static/pipelines.js";

const main = document.getElementById("main"), nav = document.getElementById("nav"), dialog = document.getElementById("dialog");
const VIEWS = [
  ["", "Overview", overview, "M3 12h4l3-8 4 16 3-8h4"],
  ["streams", "Streams", streams, "M4 6h16M4 12h16M4 18h10"],
  ["messages", "Messages", messages, "M4 5h16v11H9l-5 4z"],
  ["consumers", "Consumers", consumers, "M12 4v10m-4-4 4 4 4-4M5 19h14"],
  ["kv", "Key-Value", buckets, "M8 15a4 4 0 1 1 3-6h9v3h-3v3h-3v-3h-3a4 4 0 0 1-3 3z"],
  ["objects", "Objects", objects, "M12 3l8 4.5v9L12 21l-8-4.5v-9zM4 7.500l8 4.500 8-4.500M12 12v9"],
  ["trust", "Trust", trust, "M12 3l7 3v5c0 5-3 8-7 10-4-2-7-5-7-10V6zm-3 9 2 2 4-4"],
  ["pipelines", "Pipelines", pipelines, "M4 6h5v4H4zm11 8h5v4h-5zM15 4h5v4h-5zM9 8h3v8h3M12 8V6h3"],
];
const KEYS = [["1 to 8", "choose a view"], ["/", "go to the filter"], ["↑ ↓", "move in a list"], ["[ ]", "older and newer messages"], ["Esc", "close a dialog"], ["?", "this list"]];
let stop = null, shown = 0;
const about = {};

async function show() {
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/").map((one) => { try { return decodeURIComponent(one); } catch { return one; } });
  const found = VIEWS.find((one) => one[0] === name) || VIEWS[0], turn = ++shown;
  if (stop) stop();
  stop = null;
  for (const link of nav.children) link.dataset.view === found[0] ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  nav.querySelector("[aria-current]")?.scrollIntoView({block: "nearest", inline: "nearest"});
  document.title = `${rest[0] ? rest[0] + " · " : ""}${found[1]} · Slipstream`;
  const view = h("div", {class: "view"}, loading());
  main.replaceChildren(view);
  try {
    const end = await found[2](view, rest, about);
    if (turn === shown) stop = end || null; else if (end) end();
  } catch (error) {
    if (turn !== shown) return;
    if (error.status === 401) view.replaceChildren(empty("This address is of a console that has ended.", "Open the address that the running console has printed: it has a new token."));
    else view.replaceChildren(h("h1", {}, found[1]), errorBox(error, show));
  }
}

for (const [name, title, , icon] of VIEWS) {
  const link = h("a", {href: `#/${name}`}, svg("svg", {viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true"}, svg("path", {d: icon})), h("span", {}, title));
  link.dataset.view = name;
  nav.append(link);
}

function theme(wanted) {
  const root = document.documentElement;
  wanted === "auto" ? delete root.dataset.theme : root.dataset.theme = wanted;
  try { localStorage.setItem("theme", wanted); } catch { /* no storage here: the choice lasts as long as the page */ }
}
try { theme(localStorage.getItem("theme") || "auto"); } catch { /* the same */ }

function help() {
  const choice = h("select", {id: "theme", onchange: () => theme(choice.value)}, ["auto", "light", "dark"].map((one) => h("option", {value: one, selected: (document.documentElement.dataset.theme || "auto") === one}, one === "auto" ? "as the system" : one)));
  dialog.replaceChildren(h("h2", {id: "dialog-title"}, "Keys"), h("dl", {}, KEYS.map(([key, text]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)])),
    h("label", {class: "across"}, "Colours", choice), h("p", {class: "dim"}, `Slipstream ${about.console || ""}. Streams are read by Direct Get: looking at them makes no consumer and changes nothing.`),
    h("div", {class: "row end"}, h("button", {class: "primary", onclick: () => dialog.close()}, "Close")));
  dialog.showModal();
}

addEventListener("hashchange", () => { show(); main.focus({preventScroll: true}); scrollTo(0, 0); });
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
  const list = event.target.closest?.("[data-list]");
  if (list && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
    const rows = [...list.querySelectorAll("[data-row]")].filter((one) => one.offsetParent), at = rows.indexOf(event.target);
    const next = rows[at + (event.key === "ArrowDown" ? 1 : -1)];
    if (next) { next.focus(); event.preventDefault(); }
    return;
  }
  if (event.target.closest?.("input,textarea,select")) return;
  const at = Number(event.key);
  if (at >= 1 && at <= VIEWS.length) location.hash = `#/${VIEWS[at - 1][0]}`;
  else if (event.key === "/") { const field = main.querySelector("input:not([type=hidden]):not([type=range])"); if (field) { field.focus(); event.preventDefault(); } }
  else if (event.key === "?") help();
  else if (event.key === "[" || event.key === "]") main.querySelector(event.key === "[" ? "[data-older]" : "[data-newer]")?.click();
});

async function start() {
  const place = document.getElementById("about");
  try {
    Object.assign(about, await get("/api/about"));
    banner("");
    place.replaceChildren(h("span", {class: "server", title: about.server}, about.server.length > 24 ? about.server.slice(0, 10) + "…" : about.server), h("span", {}, `nats ${about.version}`),
      h("span", {class: about.write ? "badge warn" : "badge"}, about.write ? "may write" : "read-only"), h("button", {class: "small", "aria-label": "Keys and colours", onclick: help}, "?"));
  } catch (error) {
    if (error.status === 503) { banner(error.message); setTimeout(() => start().then(show), 1000); }
    else if (error.status !== 401) place.replaceChildren(h("span", {class: "badge bad"}, error.message));
  }
}
await start();
show();
