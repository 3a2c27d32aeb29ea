// Pipelines: the file as a graph, its outputs over time, and its dead letters.
import {h, svg, get, post, part, number, short, pace, seconds, when, bytes, events, liveTable, payload, toast, confirm, errorBox, empty, panel, title, badge, plural} from "/static/dom.js";
import {plot} from "/static/plots.js";

const BOX = {width: 190, height: 54, across: 70, down: 22};

export async function pipelines(view, [name], about) {
  const found = await get("/api/pipelines");
  if (!found.length) {
    view.replaceChildren(title("Pipelines"), panel("", empty("No pipeline file was given.", "slipstream console --pipeline orders.toml shows one; slipstream pipeline run orders.toml --console brings the console along.")));
    return;
  }
  const one = found.find((each) => each.name === name) || found[0], base = `/api/pipelines/${part(one.name)}`;
  const colours = ["", "two", "three", "bad"], series = one.outputs.slice(0, 4).map((output, at) => ({name: output, kind: colours[at]}));
  const plots = [[plot("Rows read", series, {unit: "/s"}), 0], [plot("Lag, messages", series), 1], [plot("Lag, age of the oldest", series, {format: seconds}), 2], [plot("Time of a batch", series, {format: seconds}), 3]];
  const outputs = liveTable(["Output", "Rows#", "Rate#", "Written#", "Behind#", "Age#", "Batch#", "Batch time#", "Dead letters#", "State"], "No outputs.");
  const state = h("p", {class: "dim"}), history = [], letters = letterPanel(one, base, about), picture = graph(one.graph);
  view.replaceChildren(title(one.name, [["Pipelines", "#/pipelines"]], found.length > 1 ? h("select", {"aria-label": "Pipeline", onchange: (event) => { location.hash = `#/pipelines/${part(event.target.value)}`; }}, found.map((each) => h("option", {value: each.name, selected: each === one}, each.name))) : ""),
    state, panel("Graph", picture.element), panel("Outputs", outputs.element), h("div", {class: "grid two"}, plots.map(([each]) => each.element)), letters.element);
  letters.load();
  let dead = -1;
  return events(`${base}/live`, (sample) => {
    if (sample.history) history.splice(0, history.length, ...sample.history); else history.push({time: sample.time, outputs: Object.fromEntries(Object.entries(sample.outputs).map(([key, each]) => [key, [each.rate, each.lag, each.lag_seconds, each.batch_seconds]]))});
    if (history.length > 300) history.shift();
    for (const [each, index] of plots) each.update(history.map((point) => [point.time, ...series.map((line) => point.outputs[line.name]?.[index] ?? null)]));
    state.replaceChildren(sample.pid ? badge(`running as process ${sample.pid}`, "good") : badge(sample.saved ? `not running; last seen ${sample.saved}` : "has not run yet"), " ", `every ${one.trigger}`, sample.away ? ` · ${sample.away}` : "");
    outputs.update(Object.entries(sample.outputs).map(([key, each]) => ({key, cells: [key, number(each.rows), pace(each.rate), each.written === null ? "–" : number(each.written), each.lag === null ? "–" : number(each.lag), seconds(each.lag_seconds), each.batch < 0 ? "–" : number(each.batch),
      each.batch_seconds ? seconds(each.batch_seconds) : "–", number(each.dead), each.failed ? {badge: "failed", kind: "bad"} : each.error ? {badge: "recovering", kind: "warn"} : {badge: sample.pid ? "running" : "stopped", kind: sample.pid ? "good" : ""}]})));
    picture.update(sample.outputs);
    const now = Object.values(sample.outputs).reduce((sum, each) => sum + each.dead, 0);
    if (dead >= 0 && dead !== now) letters.changed();
    dead = now;
  }, (error) => state.replaceChildren(errorBox(error)));
}

// Nodes in columns, flows as curves. Names are text nodes of SVG: nothing of the file is markup.
function graph({nodes, edges}) {
  const columns = [], at = new Map(), figures = new Map();
  for (const node of nodes) (columns[node.column] ||= []).push(node);
  const rows = Math.max(...columns.filter(Boolean).map((one) => one.length), 1), column = new Map(nodes.map((node) => [node.id, node.column])), skips = (edge) => column.get(edge.end) - column.get(edge.start) > 1, height = rows * (BOX.height + BOX.down) + BOX.down + (edges.some(skips) ? 2 * BOX.height : 0), width = columns.length * (BOX.width + BOX.across) - BOX.across + 4;
  columns.forEach((group, index) => group?.forEach((node, row) => at.set(node.id, [index * (BOX.width + BOX.across) + 2, (height - group.length * (BOX.height + BOX.down)) / 2 + row * (BOX.height + BOX.down) + BOX.down / 2])));
  const drawn = svg("svg", {viewBox: `0 0 ${width} ${height}`, class: "graph", width, height, role: "img", "aria-label": `${nodes.length} nodes: ` + edges.map((edge) => `${edge.start} to ${edge.end.replace("output:", "").replace("letters:", "dead letters")}`).join(", ")});
  for (const edge of edges) {
    const [x1, y1] = at.get(edge.start), [x2, y2] = at.get(edge.end), a = x1 + BOX.width, b = y1 + BOX.height / 2, c = y2 + BOX.height / 2, bend = Math.max(30, (x2 - a) / 2), lift = skips(edge) ? (edge.dead || c > b ? 1 : -1) * BOX.height * 1.6 : 0; // around the columns between
    const path = svg("path", {class: edge.dead ? "flow dead" : "flow", d: `M${a} ${b}C${a + bend} ${b + lift} ${x2 - bend} ${c + lift} ${x2} ${c}`});
    path.append(svg("title", {}, edge.columns ? edge.columns.join(", ") : edge.dead ? "what cannot be decoded" : "columns are known on Spark"));
    drawn.append(path);
  }
  for (const node of nodes) {
    const [x, y] = at.get(node.id), clip = (text, most) => text.length > most ? text.slice(0, most - 1) + "…" : text;
    const figure = svg("text", {x: x + BOX.width - 10, y: y + 21, class: "figure"});
    figures.set(node.id, figure);
    drawn.append(svg("g", {class: `node ${node.kind}`}, svg("title", {}, `${node.kind} ${node.name}: ${node.detail}`), svg("rect", {x, y, width: BOX.width, height: BOX.height, rx: 9}), svg("text", {x: x + 12, y: y + 22, class: "name"}, clip(node.name, 17)), svg("text", {x: x + 12, y: y + 41, class: "detail"}, clip(node.detail, 28)), figure));
  }
  return {
    element: h("div", {class: "scroll", tabindex: 0, "aria-label": "Graph of the pipeline"}, drawn),
    update(outputs) { for (const [key, each] of Object.entries(outputs)) { const figure = figures.get(`output:${key}`); if (figure) figure.textContent = each.rate ? `${short(each.rate)}/s` : ""; } },
  };
}

function letterPanel(one, base, about) {
  const list = h("div", {class: "messages", "data-list": true}), note = h("span", {class: "dim", role: "status"}), foot = h("div", {class: "row"});
  const origins = one.graph.nodes.filter((node) => node.kind === "source" || node.kind === "output").map((node) => node.name);
  const origin = h("select", {"aria-label": "Of which source or output", onchange: () => load()}, h("option", {value: ""}, "all sources and outputs"), [...new Set(origins)].map((name) => h("option", {value: name}, name)));
  const fresh = h("button", {class: "small", hidden: true, onclick: () => load()}, "Changed · refresh"), all = h("button", {hidden: true, onclick: () => resendAll()}, "Replay all…");
  let last = 0, total = 0;
  const load = async (before = 0) => {
    fresh.hidden = true;
    if (!before) list.replaceChildren(h("p", {class: "loading"}, "Loading…"));
    try {
      const found = await get(`${base}/letters?before=${before}&origin=${part(origin.value)}`);
      if (!before) list.replaceChildren();
      if (!found.kept) return list.replaceChildren(empty("This pipeline keeps no dead letters.", "dead_letter in [pipeline] names a stream for them."));
      last = found.last;
      total = found.total;
      note.textContent = total ? plural(total, "dead letter") : "";
      list.append(...found.letters.map(row));
      if (!list.children.length) list.replaceChildren(empty("No dead letters.", "What cannot be decoded, or a target rejects, is kept here with its reason."));
      all.hidden = !about.write || !found.letters.some((letter) => !letter.row);
      foot.replaceChildren(found.more ? h("button", {onclick: () => load(found.more)}, "Older") : "");
    } catch (error) { list.replaceChildren(errorBox(error, () => load(before))); }
  };
  const row = (letter) => {
    const item = h("div", {class: "msg"}), button = h("button", {"data-row": true, "aria-expanded": "false", onclick: () => {
      const open = item.children.length > 1;
      button.setAttribute("aria-expanded", String(!open));
      if (open) return item.lastChild.remove();
      item.append(h("div", {class: "body"}, h("p", {}, letter.reason || "no reason", letter.columns.length ? h("span", {class: "dim"}, ` · columns ${letter.columns.join(", ")}`) : ""), payload(letter), h("div", {class: "row"}, h("span", {class: "dim"}, `${bytes(letter.size)} · ${when(letter.time)} · from ${letter.row ? "output" : "source"} ${letter.origin}`),
        letter.row ? h("span", {class: "dim"}, "A row of an output: correct the step, then slipstream pipeline reset --output.") : about.write ? h("button", {class: "small", onclick: () => resendOne(letter, item)}, "Replay") : h("span", {class: "dim"}, "Start the console with --write to replay it."))));
    }}, h("span", {class: "seq"}, number(letter.seq)), h("span", {class: "what"}, badge(letter.origin), " ", letter.reason, h("code", {}, (letter.text ?? "binary").slice(0, 120))), h("span", {class: "when"}, when(letter.time)));
    item.append(button);
    return item;
  };
  const resendOne = async (letter, item) => {
    try { const done = await post(`${base}/resend`, {seq: letter.seq}); toast(done.replaced ? "Its key has a newer value: the letter was removed." : `Letter ${number(letter.seq)} was sent again.`); item.remove(); load(); }
    catch (error) { toast(error.message, "bad"); }
  };
  const resendAll = async () => {
    const which = origin.value ? `of ${origin.value} ` : "";
    if (!await confirm("Replay all dead letters?", `The messages of ${which ? "" : "at most "}${plural(total, "dead letter")} ${which}are sent to the streams they came from again, and their letters are removed. Rows of outputs stay.`, "Replay all")) return;
    let start = 1, sent = 0, replaced = 0;
    const end = last;
    all.disabled = true;
    try {
      while (start) {
        const done = await post(`${base}/resend`, {start, end, origin: origin.value});
        sent += done.sent;
        replaced += done.replaced;
        start = done.next;
        note.textContent = `${number(sent)} sent again…`;
      }
      toast(`${plural(sent, "message")} sent again${replaced ? `, ${number(replaced)} had a newer value` : ""}.`);
    } catch (error) { toast(error.message, "bad"); }
    all.disabled = false;
    load();
  };
  return {element: panel("Dead letters", h("div", {class: "row"}, origin, all, fresh, note), list, foot), load, changed: () => { fresh.hidden = false; }};
}
