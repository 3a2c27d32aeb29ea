// Router: the address behind # names the view; each view gets its element and returns what stops it.
import {h, get, errorBox} from "/static/dom.js";
import * as views from "/static/views.js";
import * as data from "/static/data.js";

const main = document.getElementById("main"), nav = document.getElementById("nav");
const VIEWS = [["", "Overview", views.overview], ["streams", "Streams", views.streams], ["messages", "Messages", views.messages],
  ["consumers", "Consumers", views.consumers], ["kv", "Key-Value", data.buckets], ["objects", "Objects", data.objects], ["trust", "Trust", data.trust]];
let stop = null, shown = 0;
export const about = {};

async function show() {
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  const found = VIEWS.find((one) => one[0] === name) || VIEWS[0], turn = ++shown;
  if (stop) stop();
  stop = null;
  for (const link of nav.children) link.toggleAttribute("aria-current", link.dataset.view === found[0]);
  document.title = `${found[1]} · Slipstream`;
  const view = h("div", {}, h("p", {class: "loading"}, "Loading…"));
  main.replaceChildren(view);
  try {
    const end = await found[2](view, rest, about);
    if (turn === shown) stop = end || null; else if (end) end();
  } catch (error) {
    view.replaceChildren(errorBox(error), h("p", {}, h("button", {onclick: show}, "Try again")));
  }
}

for (const [name, title] of VIEWS) {
  const link = h("a", {href: `#/${name}`}, title);
  link.dataset.view = name;
  nav.append(link);
}
addEventListener("hashchange", () => { show(); main.focus(); });
addEventListener("keydown", (event) => {
  if (event.target.closest("input,textarea,select") || event.ctrlKey || event.metaKey || event.altKey) return;
  const at = Number(event.key);
  if (at >= 1 && at <= VIEWS.length) location.hash = `#/${VIEWS[at - 1][0]}`;
});
try {
  Object.assign(about, await get("/api/about"));
  document.getElementById("about").append(h("span", {title: about.server}, `${about.server.length > 24 ? about.server.slice(0, 8) + "…" : about.server} · ${about.version}`),
    h("span", {class: about.write ? "badge warn" : "badge"}, about.write ? "may write" : "read-only"));
} catch (error) { document.getElementById("about").append(h("span", {class: "badge bad"}, error.message)); }
show();
