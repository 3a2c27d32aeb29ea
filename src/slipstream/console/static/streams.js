// Streams: the list, and one with its copies, subjects, consumers and configuration.
import {h, get, post, part, number, pace, bytes, when, live, liveTable, table, lagBadge, badge, toast, errorBox, loading, empty, panel, title, facts, diff, plural} from "/static/dom.js";
import {plot} from "/static/plots.js";
import {copies} from "/static/overview.js";
import {tree} from "/static/tree.js";

export function streams(view, [name], about) {
  if (name) return stream(view, name, about);
  let wanted = "", last = null;
  const search = h("input", {type: "search", placeholder: "Filter by name", "aria-label": "Filter by name", class: "grow", oninput: () => { wanted = search.value.toLowerCase(); draw(); }});
  const rows = liveTable(["Stream", "Messages#", "Size#", "Rate#", "Subjects#", "Consumers#", "Copies", "Last message"], empty("No stream matches.", "slipstream stream add NAME makes one."), {sort: [0, false]});
  const problem = h("div", {}, loading()), note = h("p", {class: "dim"});
  const draw = () => {
    if (!last) return;
    rows.update(last.streams.filter((one) => one.name.toLowerCase().includes(wanted)).map((one) => ({key: one.name, sort: [one.name, one.messages, one.bytes, one.rate, one.subjects, one.consumers, one.replica_lag, one.last_time],
      cells: [{text: one.name, href: `#/streams/${part(one.name)}`}, number(one.messages), bytes(one.bytes), pace(one.rate), number(one.subjects), number(one.consumers), copies(one), when(one.last_time)]})));
    note.textContent = last.more ? "Only the first 500 streams are shown." : "";
  };
  rows.element.hidden = true;
  view.replaceChildren(title("Streams"), h("div", {class: "row"}, search), h("section", {class: "panel"}, problem, rows.element, note));
  return live((sample) => { last = sample; problem.replaceChildren(); rows.element.hidden = false; draw(); }, (error) => problem.replaceChildren(errorBox(error)));
}

async function stream(view, name, about) {
  const info = await get(`/api/streams/${part(name)}`), {config, state} = info;
  const rate = plot("Messages stored", [{name: "stored"}], {unit: "/s"}), size = plot("Size", [{name: "bytes", kind: "two"}], {format: bytes});
  const points = info.history.slice(), draw = () => { rate.update(points.map((one) => [one[0], one[1]])); size.update(points.map((one) => [one[0], one[2]])); };
  const figures = h("section", {class: "panel"}, h("h2", {}, "State"));
  const drawState = (now) => figures.replaceChildren(h("h2", {}, "State"), facts(["Messages", number(now.messages)], ["Size", bytes(now.bytes)], ["Sequences", `${number(now.first)} to ${number(now.last)}`],
    ["Subjects", number(now.subjects || 0)], ["Deleted inside", state.num_deleted ? number(state.num_deleted) : ""], ["First message", when(Date.parse(state.first_ts))], ["Last message", when(now.last_time)]));
  drawState({messages: state.messages, bytes: state.bytes, first: state.first_seq, last: state.last_seq, subjects: state.num_subjects, last_time: Date.parse(state.last_ts)});
  const held = [...(info.cluster?.replicas || []).map((one) => [one.name, "replica", lagBadge(one.lag || 0)]), ...[info.mirror, ...(info.sources || [])].filter((one) => one?.name).map((one) => [one.name, info.mirror ? "mirrored stream" : "source", lagBadge(one.lag || 0)])];
  if (info.cluster?.leader) held.unshift([info.cluster.leader, "leader", badge("leads", "good")]);
  view.replaceChildren(title(name, [["Streams", "#/streams"]], h("a", {class: "button primary", href: `#/messages/${part(name)}`}, "Messages"), h("a", {class: "button", href: `#/trust/${part(name)}`}, "Trust")),
    config.description ? h("p", {class: "description"}, config.description) : "",
    h("div", {class: "grid two"}, rate.element, size.element),
    h("div", {class: "grid"}, figures, panel("Copies", table(["Name", "Role", "Lag"], held, empty("One copy", "on the server that leads it"))),
      panel("Subjects", tree((prefix, offset) => get(`/api/streams/${part(name)}/subjects?prefix=${part(prefix)}&offset=${offset}`), {unit: "message", open: (subject) => { location.hash = `#/messages/${part(name)}/${part(subject)}`; }}))),
    panel("Consumers", table(["Name", "To deliver#", "Unacked#", "Redelivered#", "Acked up to#"],
      info.consumers.map((one) => [{text: one.name, href: `#/consumers/${part(name)}/${part(one.name)}`}, number(one.num_pending), number(one.num_ack_pending), number(one.num_redelivered), number(one.ack_floor.stream_seq)]), empty("No consumers.", "Direct Get reads without one; slipstream consumer add makes one."))),
    panel("Configuration", h("pre", {tabindex: 0}, JSON.stringify(config, null, 2)), about.write ? configEditor(name, config, () => stream(view, name, about)) : h("p", {class: "dim"}, "Start the console with --write to change it.")));
  draw();
  return live((sample) => {
    const now = sample.streams.find((one) => one.name === name);
    if (!now) return;
    points.push([sample.totals.time, now.rate, now.bytes]);
    if (points.length > 300) points.shift();
    draw();
    drawState(now);
  });
}

function configEditor(name, config, saved) {
  const text = JSON.stringify(config, null, 2), editor = h("textarea", {"aria-label": "Configuration", class: "tall", spellcheck: "false", value: text}), review = h("div", {});
  const send = async (wanted) => {
    try { await post(`/api/streams/${part(name)}/config`, {shown: config, wanted}); toast("The configuration was changed."); await saved(); }
    catch (error) { review.replaceChildren(errorBox(error)); }
  };
  return h("details", {}, h("summary", {}, "Edit"), editor, h("div", {class: "row"}, h("button", {onclick: () => {
    let wanted;
    try { wanted = JSON.parse(editor.value); } catch (error) { return review.replaceChildren(errorBox(new Error(`This is not JSON: ${error.message}`))); }
    if (JSON.stringify(wanted) === JSON.stringify(config)) return review.replaceChildren(h("p", {class: "dim"}, "Nothing is changed."));
    const gone = Object.keys(config).filter((one) => !(one in wanted));
    review.replaceChildren(h("p", {}, "This is sent to the server:"), diff(text, editor.value), gone.length ? h("p", {class: "dim"}, `${plural(gone.length, "field")} without a value ${gone.length === 1 ? "gets its" : "get their"} default: ${gone.join(", ")}`) : "", h("button", {class: "primary", onclick: () => send(wanted)}, "Change it"));
  }}, "Review the change")), review);
}
