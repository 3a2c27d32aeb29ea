// Consumers: by lag, and one with its figures over time, pause, resume and reset.
import {h, get, post, part, number, pace, when, live, liveTable, toast, confirm, errorBox, loading, empty, panel, title, facts, field, badge} from "/static/dom.js";
import {plot} from "/static/plots.js";

export const leastTable = () => liveTable(["Consumer", "Stream", "Lag#", "Rate#", "State"], empty("No consumers.", "slipstream consumer add STREAM NAME makes one."));
export const leastRow = (one) => { const row = consumerRow(one); return {key: row.key, cells: [0, 1, 2, 3, 6].map((at) => row.cells[at])}; };
export const consumerTable = (sort = null) => liveTable(["Consumer", "Stream", "Lag#", "Rate#", "Unacked#", "Redelivered#", "State"], empty("No consumers.", "slipstream consumer add STREAM NAME makes one."), {sort});
export const consumerRow = (one) => ({key: `${one.stream} ${one.name}`, sort: [one.name, one.stream, one.pending + one.unacked, one.rate, one.unacked, one.redelivered, one.paused ? 1 : 0],
  cells: [{text: one.name, href: `#/consumers/${part(one.stream)}/${part(one.name)}`}, {text: one.stream, href: `#/streams/${part(one.stream)}`}, {bar: one.pending + one.unacked, text: number(one.pending + one.unacked)}, pace(one.rate), number(one.unacked), number(one.redelivered),
    one.paused ? {badge: "paused", kind: "warn"} : one.waiting ? {badge: `${one.waiting} waiting`, kind: "good"} : {badge: "idle", kind: ""}]});

export function consumers(view, [stream, name], about) {
  if (name) return consumer(view, stream, name, about);
  const rows = consumerTable([2, true]), problem = h("div", {}, loading()), note = h("p", {class: "dim"});
  let wanted = "", last = null;
  const search = h("input", {type: "search", placeholder: "Filter by name or stream", "aria-label": "Filter by name or stream", class: "grow", oninput: () => { wanted = search.value.toLowerCase(); draw(); }});
  const draw = () => last && rows.update(last.consumers.filter((one) => `${one.stream} ${one.name}`.toLowerCase().includes(wanted)).map(consumerRow));
  rows.element.hidden = true;
  view.replaceChildren(title("Consumers"), h("div", {class: "row"}, search), h("section", {class: "panel"}, problem, rows.element, note));
  return live((sample) => {
    last = sample;
    problem.replaceChildren();
    rows.element.hidden = false;
    draw();
    note.textContent = sample.consumer_count > sample.consumers.length ? `The ${number(sample.consumers.length)} with the largest lag of ${number(sample.consumer_count)}.` : "";
  }, (error) => problem.replaceChildren(errorBox(error)));
}

async function consumer(view, stream, name, about) {
  const path = `/api/consumers/${part(stream)}/${part(name)}`, info = await get(path), points = info.history.slice();
  const lag = plot("Lag", [{name: "to deliver", kind: "two"}, {name: "unacked"}]), pace = plot("Deliveries", [{name: "deliveries"}], {unit: "/s"}), again = plot("Redelivered, waiting for an ack", [{name: "redelivered", kind: "bad"}]);
  const state = h("section", {class: "panel"}), controls = h("div", {class: "actions"});
  const draw = () => { lag.update(points.map((one) => [one[0], one[1], one[2]])); again.update(points.map((one) => [one[0], one[3]])); pace.update(points.map((one) => [one[0], one[4]])); };
  const act = async (work, text) => { try { await work(); toast(text); await refresh(); } catch (error) { toast(error.message, "bad"); } };
  let paused = null;
  const drawControls = (now) => {
    if (!about.write || paused === now) return;
    paused = now;
    const span = h("select", {"aria-label": "For how long"}, [[600, "10 minutes"], [3600, "1 hour"], [86400, "1 day"]].map(([value, text]) => h("option", {value}, text)));
    controls.replaceChildren(...(now ? [h("button", {onclick: () => act(() => post(`${path}/pause`, {seconds: 0}), "Resumed.")}, "Resume")] : [span, h("button", {onclick: () => act(() => post(`${path}/pause`, {seconds: Number(span.value)}), "Paused.")}, "Pause")]));
  };
  const refresh = async () => drawInfo(await get(path));
  const drawInfo = (now) => {
    state.replaceChildren(h("h2", {}, "State ", now.paused ? badge("paused", "warn") : ""), facts(["To deliver", number(now.num_pending)], ["Unacknowledged", number(now.num_ack_pending)], ["Redelivered", number(now.num_redelivered)], ["Waiting pulls", number(now.num_waiting || 0)],
      ["Delivered up to", number(now.delivered.stream_seq)], ["Acknowledged up to", number(now.ack_floor.stream_seq)], ["Deliveries", number(now.delivered.consumer_seq)], ["Created", when(Date.parse(now.created))]));
    drawControls(!!now.paused);
  };
  view.replaceChildren(title(name, [["Consumers", "#/consumers"], [stream, `#/streams/${part(stream)}`]], controls), info.config.description ? h("p", {class: "description"}, info.config.description) : "",
    h("div", {class: "grid"}, lag.element, pace.element, again.element),
    h("div", {class: "grid two"}, state, about.write ? resetPanel(stream, name, path, info, refresh) : panel("Reset", h("p", {class: "dim"}, "Start the console with --write to reset or pause consumers."))),
    panel("Configuration", h("pre", {tabindex: 0}, JSON.stringify(info.config, null, 2))));
  drawInfo(info);
  draw();
  const end = live((sample) => {
    const now = sample.consumers.find((one) => one.stream === stream && one.name === name);
    if (!now) return;
    points.push([sample.totals.time, now.pending, now.unacked, now.redelivered, now.rate]);
    if (points.length > 300) points.shift();
    draw();
    refresh().catch(() => {});
  });
  return end;
}

function resetPanel(stream, name, path, info, done) {
  const seq = h("input", {inputmode: "numeric", placeholder: "Sequence", size: 12}), time = h("input", {type: "datetime-local", step: 1});
  const result = h("div", {"aria-live": "polite"});
  const run = async (event) => {
    event.preventDefault();
    result.replaceChildren();
    let target = Number(seq.value.replace(/\D/g, ""));
    try {
      if (!target && time.value) { const found = await get(`/api/streams/${part(stream)}/at?time=${part(new Date(time.value).toISOString())}`); target = found.seq || found.last + 1; }
      if (!target) return result.replaceChildren(errorBox(new Error("A sequence or a time is needed.")));
      const at = info.ack_floor.stream_seq + 1, way = target < at ? "Messages that were acknowledged are delivered again." : target > at ? "Messages before it are never delivered." : "It stays where it is.";
      if (!await confirm(`Reset ${name}?`, [`The next message that it delivers is ${number(target)} or the first one after it. ${way}`, "Deliveries that wait for an ack are forgotten."], "Reset")) return;
      await send(target, false);
    } catch (error) { result.replaceChildren(errorBox(error)); }
  };
  const send = async (target, recreate) => {
    try {
      const found = await post(`${path}/reset`, {seq: target, recreate});
      toast(`Reset: ${number(found.pending)} to deliver from ${number(found.seq)} on.`);
      await done();
    } catch (error) {
      if (!error.body?.recreate) throw error;
      if (await confirm("Delete it and make it again?", [error.message, "Clients that pull from it go on; its counters begin anew."], "Delete and make again", {danger: true})) await send(target, true);
    }
  };
  return panel("Reset", h("p", {class: "dim"}, "Deliver again, or skip, from a sequence or the first message at a time."), h("form", {class: "row", onsubmit: run}, field("To sequence", seq), field("or time", time), h("button", {}, "Reset…")), result);
}
