// Overview: what the account holds and does, on which servers, and who is connected.
import {h, get, part, number, short, pace, bytes, live, liveTable, errorBox, empty, panel, title, plural} from "/static/dom.js";
import {plot} from "/static/plots.js";
import {leastTable, leastRow} from "/static/consumers.js";

export function overview(view) {
  const history = [];
  const tiles = ["streams", "consumers", "messages", "stored", "API requests", "API errors"].map((text) => ({value: h("b", {}, "–"), text}));
  const plots = [
    [plot("Messages", [{name: "stored"}, {name: "delivered", kind: "two"}], {unit: "/s"}), ["rate", "delivered"]],
    [plot("Consumer lag", [{name: "lag", kind: "two"}]), ["lag"]],
    [plot("Traffic", [{name: "in"}, {name: "out", kind: "two"}], {unit: "/s"}), ["in", "out"]],
    [plot("Bytes in streams", [{name: "bytes"}], {format: bytes}), ["bytes"]],
  ];
  const servers = liveTable(["Server", "Version", "Connections#", "In#", "Out#", "CPU#", "Memory#", "Slow consumers#"], "No server has answered.");
  const streams = liveTable(["Stream", "Rate#", "Messages#", "Size#", "Copies"], empty("No streams yet.", "slipstream stream add NAME makes one."));
  const consumers = leastTable();
  const people = liveTable(["Connection", "Client", "Address", "Subscriptions#", "Waiting#", "In#", "Out#", "Since"], "No connections.");
  const note = h("p", {class: "dim"}), scope = h("p", {class: "dim"}), problem = h("div", {});
  let timer = 0, all = false;
  const more = h("button", {class: "small", hidden: true, onclick: () => { all = true; more.hidden = true; connected(); }}, "Show all");
  const connected = async () => {
    try {
      const found = await get("/api/connections"), rows = found.connections;
      note.textContent = !found.known ? "This login may not ask for connections; --monitor names a server's monitoring address." : `${plural(found.total, "connection")} of ${found.scope === "account" ? "this account" : "the monitored servers"}`;
      people.update(rows.slice(0, all ? 200 : 8).map((one) => ({key: `${one.server} ${one.cid}`, cells: [one.name || `#${one.cid}`, one.lang || one.kind, one.address, number(one.subscriptions), bytes(one.pending), number(one.in), number(one.out), one.uptime]})));
      more.hidden = all || rows.length <= 8;
    } catch (error) { note.textContent = error.message; }
  };
  view.replaceChildren(title("Overview"), problem, h("div", {class: "tiles"}, tiles.map((one) => h("div", {class: "tile"}, one.value, h("span", {}, one.text)))),
    h("div", {class: "grid two"}, plots.map(([one]) => one.element)),
    h("div", {class: "grid two"}, panel("Busiest streams", streams.element), panel("Consumers by lag", consumers.element)),
    panel("Servers", servers.element, scope), panel("Connections", people.element, h("div", {class: "row"}, note, more)));
  connected();
  timer = setInterval(connected, 5000);
  const end = live((sample) => {
    problem.replaceChildren();
    if (sample.history) history.splice(0, history.length, ...sample.history); else history.push(sample.totals);
    if (history.length > 300) history.shift();
    const {account, totals} = sample;
    [number(account.streams), number(account.consumers), short(totals.messages), bytes(account.storage + account.memory), short(account.api), short(account.api_errors)].forEach((text, at) => { tiles[at].value.textContent = text; });
    for (const [one, names] of plots) one.update(history.map((point) => [point.time, ...names.map((name) => point[name] ?? null)]));
    streams.update([...sample.streams].sort((a, b) => b.rate - a.rate || b.messages - a.messages).slice(0, 8).map((one) => ({key: one.name,
      cells: [{text: one.name, href: `#/streams/${part(one.name)}`}, pace(one.rate), number(one.messages), bytes(one.bytes), copies(one)]})));
    consumers.update(sample.consumers.slice(0, 8).map((one) => leastRow(one)));
    servers.update(sample.servers.map((one) => ({key: one.id, cells: [one.name.length > 40 ? one.name.slice(0, 12) + "…" : one.name, one.away ? {badge: "not reachable", kind: "bad"} : one.version, known(one.connections, number), known(one.in_rate, pace), known(one.out_rate, pace),
      known(one.cpu, (value) => value.toFixed(0) + " %"), known(one.memory, bytes), known(one.slow, number)]})));
    scope.textContent = sample.servers.some((one) => one.scope === "account") ? "Counts are of this account. --monitor names a monitoring address, for CPU, memory and all accounts." : "";
  }, (error) => problem.replaceChildren(errorBox(error)));
  return () => { clearInterval(timer); end(); };
}

const known = (value, format) => value === null || value === undefined ? "–" : format(value);
export const copies = (one) => {
  const lag = one.replicas > 1 ? one.replica_lag : one.upstream_lag;
  return lag === null || lag === undefined ? "" : {badge: lag ? `${number(lag)} behind` : "current", kind: lag ? "warn" : "good"};
};
