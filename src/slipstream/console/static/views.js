// Overview, streams, messages, consumers.
import {h, get, post, part, number, short, bytes, when, table, plotPanel, payload, toast, errorBox, diff} from "/static/dom.js";

export function live(taken, failed) {
  const source = new EventSource("/api/live");
  source.onmessage = (event) => {
    const sample = JSON.parse(event.data);
    sample.error ? failed(new Error(sample.error)) : taken(sample);
  };
  source.onerror = () => failed(new Error("the console is not reachable; trying again"));
  return () => source.close();
}
const streamLink = (name) => h("a", {href: `#/streams/${part(name)}`}, name);
const lagBar = (value) => [h("span", {class: `bar w${value ? Math.min(5, Math.ceil(Math.log10(value + 1))) : 0}`}), number(value)];
const lagBadge = (lag) => lag === null ? "" : h("span", {class: lag ? "badge warn" : "badge good"}, lag ? `${number(lag)} behind` : "current");

export function overview(view) {
  const history = [];
  const points = (name) => history.map((one) => [one.time, one[name]]);
  return live((sample) => {
    if (sample.history && !history.length) history.push(...sample.history); else history.push(sample.totals);
    if (history.length > 300) history.shift();
    const {account, totals} = sample;
    const busy = [...sample.streams].sort((a, b) => b.rate - a.rate || b.messages - a.messages).slice(0, 12);
    const tile = (value, text) => h("div", {class: "tile"}, h("b", {}, value), h("span", {}, text));
    view.replaceChildren(h("h1", {}, "Overview"),
      h("div", {class: "tiles"}, tile(number(account.streams), "streams"), tile(number(account.consumers), "consumers"),
        tile(short(totals.messages), "messages"), tile(bytes(account.storage + account.memory), "stored"),
        tile(short(account.api), "API requests"), tile(short(account.api_errors), "API errors")),
      h("div", {class: "grid"}, plotPanel("Stored messages a second", points("rate"), {unit: "/s"}), plotPanel("Consumer lag", points("lag"), {two: true}),
        plotPanel("Bytes in streams", points("bytes"), {format: bytes})),
      h("section", {class: "panel"}, h("h2", {}, "Busiest streams"), table(["Stream", "Rate#", "Messages#", "Size#", "Replicas"],
        busy.map((one) => [streamLink(one.name), short(one.rate) + "/s", number(one.messages), bytes(one.bytes), one.replicas > 1 ? lagBadge(one.replica_lag) : lagBadge(one.upstream_lag)]),
        "No streams yet. slipstream stream add NAME makes one.")),
      h("section", {class: "panel"}, h("h2", {}, "Consumers by lag"), consumerTable(sample.consumers.slice(0, 12))));
  }, (error) => view.replaceChildren(h("h1", {}, "Overview"), errorBox(error)));
}

const consumerTable = (rows, extra = null) => table(["Consumer", "Stream", "Lag#", "Unacked#", "Redelivered#", "State", ...(extra ? [""] : [])],
  rows.map((one) => [one.name, streamLink(one.stream), h("span", {}, lagBar(one.pending + one.unacked)), number(one.unacked), number(one.redelivered),
    one.paused ? h("span", {class: "badge warn"}, "paused") : one.waiting ? h("span", {class: "badge good"}, `${one.waiting} pulls wait`) : h("span", {class: "badge"}, "idle"), ...(extra ? [extra(one)] : [])]), "No consumers.");

export function consumers(view, _, about) {
  const history = new Map();
  return live((sample) => {
    for (const one of sample.consumers) {
      const key = `${one.stream} ${one.name}`;
      if (!history.has(key)) history.set(key, []);
      history.get(key).push([Date.now() / 1000, one.pending + one.unacked]);
      if (history.get(key).length > 300) history.get(key).shift();
    }
    const act = about.write ? (one) => h("button", {onclick: async () => {
      try { await post(`/api/consumers/${part(one.stream)}/${part(one.name)}/pause`, {seconds: one.paused ? 0 : 600}); toast(one.paused ? "resumed" : "paused for 10 minutes"); } catch (error) { toast(error.message); }
    }}, one.paused ? "Resume" : "Pause 10 min") : null;
    view.replaceChildren(h("h1", {}, "Consumers"),
      h("div", {class: "grid"}, sample.consumers.slice(0, 3).map((one) => plotPanel(`Lag of ${one.name}`, history.get(`${one.stream} ${one.name}`), {two: true}))),
      h("section", {class: "panel"}, consumerTable(sample.consumers, act)));
  }, (error) => view.replaceChildren(h("h1", {}, "Consumers"), errorBox(error)));
}

export function streams(view, [name], about) {
  if (name) return stream(view, name, about);
  let wanted = "", last = null;
  const field = h("input", {type: "search", placeholder: "Filter by name", "aria-label": "Filter by name", class: "grow", oninput: () => { wanted = field.value.toLowerCase(); draw(); }});
  const body = h("section", {class: "panel"}, h("p", {class: "loading"}, "Loading…"));
  const draw = () => last && body.replaceChildren(table(["Stream", "Messages#", "Size#", "Rate#", "Subjects#", "Consumers#", "Copies", "Last message"],
    last.streams.filter((one) => one.name.toLowerCase().includes(wanted)).map((one) => [streamLink(one.name), number(one.messages), bytes(one.bytes), short(one.rate) + "/s", number(one.subjects),
      number(one.consumers), one.replicas > 1 ? lagBadge(one.replica_lag) : lagBadge(one.upstream_lag), when(one.last_time)]), "No stream matches."),
    last.more ? h("p", {class: "dim"}, "Only the first 500 streams are shown.") : "");
  view.replaceChildren(h("h1", {}, "Streams"), h("div", {class: "row"}, field), body);
  return live((sample) => { last = sample; draw(); }, (error) => body.replaceChildren(errorBox(error)));
}

async function stream(view, name, about) {
  const info = await get(`/api/streams/${part(name)}`), {config, state} = info;
  const fact = (title, value) => value === "" || value === undefined || value === null ? [] : [h("dt", {}, title), h("dd", {}, value)];
  const copies = [...(info.cluster?.replicas || []).map((one) => [one.name, "replica", lagBadge(one.lag || 0)]), ...[info.mirror, ...(info.sources || [])].filter((one) => one?.name).map((one) => [one.name, "upstream", lagBadge(one.lag || 0)])];
  if (info.cluster?.leader) copies.unshift([info.cluster.leader, "leader", h("span", {class: "badge good"}, "leads")]);
  view.replaceChildren(h("h1", {}, h("a", {class: "crumb", href: "#/streams"}, "Streams / "), name),
    config.description ? h("p", {class: "dim"}, config.description) : "",
    h("div", {class: "row"}, h("a", {class: "button", href: `#/messages/${part(name)}`}, "Messages"), h("a", {class: "button", href: `#/trust/${part(name)}`}, "Trust")),
    h("div", {class: "grid"},
      h("section", {class: "panel"}, h("h2", {}, "State"), h("dl", {}, fact("Messages", number(state.messages)), fact("Size", bytes(state.bytes)), fact("Sequences", `${number(state.first_seq)} to ${number(state.last_seq)}`),
        fact("Subjects", number(state.num_subjects || 0)), fact("Removed inside", number(state.num_deleted || 0)), fact("First", when(Date.parse(state.first_ts))), fact("Last", when(Date.parse(state.last_ts))))),
      h("section", {class: "panel"}, h("h2", {}, "Copies"), table(["Name", "Role", "Lag"], copies, "One copy, on the server that leads it.")),
      h("section", {class: "panel"}, h("h2", {}, "Subjects"), tree(name))),
    h("section", {class: "panel"}, h("h2", {}, "Consumers"), table(["Name", "To deliver#", "Unacked#", "Redelivered#", "Acked up to#"],
      info.consumers.map((one) => [one.name, number(one.num_pending), number(one.num_ack_pending), number(one.num_redelivered), number(one.ack_floor.stream_seq)]), "No consumers.")),
    h("section", {class: "panel"}, h("h2", {}, "Configuration"), h("pre", {tabindex: 0}, JSON.stringify(config, null, 2)), about.write ? configEditor(name, config, () => stream(view, name, about)) : ""));
}

function configEditor(name, config, saved) {
  const text = JSON.stringify(config, null, 2), editor = h("textarea", {"aria-label": "Configuration", class: "tall", value: text}), review = h("div", {});
  const send = async (wanted) => {
    try { await post(`/api/streams/${part(name)}/config`, {shown: config, wanted}); toast("the configuration was changed"); await saved(); }
    catch (error) { review.replaceChildren(errorBox(error)); }
  };
  return h("details", {}, h("summary", {}, "Edit"), editor, h("div", {class: "row"}, h("button", {onclick: () => {
    let wanted;
    try { wanted = JSON.parse(editor.value); } catch (error) { return review.replaceChildren(errorBox(error)); }
    review.replaceChildren(h("p", {class: "dim"}, "This is changed:"), diff(text, editor.value), h("button", {class: "primary", onclick: () => send(wanted)}, "Change it"));
  }}, "Review the change")), review);
}

function tree(name) {
  const level = (prefix) => {
    const list = h("ul", {class: "list"}, h("li", {class: "dim"}, "Loading…"));
    get(`/api/streams/${part(name)}/subjects?prefix=${part(prefix)}`).then((found) => {
      list.replaceChildren(...found.rows.map((row) => {
        const full = prefix ? `${prefix}.${row.token}` : row.token, item = h("li", {});
        const line = h("button", {onclick: () => {
          if (!row.deeper) location.hash = `#/messages/${part(name)}/${part(full)}`;
          else if (item.children.length > 1) item.lastChild.remove();
          else item.append(h("div", {class: "sub"}, level(full)));
        }}, h("span", {}, (row.deeper ? "▸ " : "") + row.token), h("span", {class: "dim"}, number(row.messages)));
        item.append(line);
        return item;
      }), found.cut ? h("li", {class: "dim"}, "more subjects than are shown") : "", found.rows.length ? "" : h("li", {class: "dim"}, "no subjects"));
    }, (error) => list.replaceChildren(h("li", {}, error.message)));
    return list;
  };
  const holder = h("div", {});
  holder.append(h("button", {onclick: () => holder.replaceChildren(level(""))}, "Show as a tree"));
  return holder;
}

export async function messages(view, [name, subject = ""], about) {
  if (!name) return choose(view, "Messages", "#/messages/");
  const list = h("section", {class: "panel"}, h("p", {class: "loading"}, "Loading…")), state = h("span", {class: "dim"});
  const filter = h("input", {class: "grow", placeholder: "Subject, such as orders.>", "aria-label": "Subject filter", value: subject});
  const seq = h("input", {inputmode: "numeric", size: 10, placeholder: "Sequence", "aria-label": "Go to sequence"});
  const time = h("input", {type: "datetime-local", step: 1, "aria-label": "Go to a time"});
  let page = null, timer = 0;
  const load = async (query = "", keep = false) => {
    if (!keep) list.replaceChildren(h("p", {class: "loading"}, "Loading…"));
    try {
      page = await get(`/api/streams/${part(name)}/messages?subject=${part(filter.value)}${query}`);
      state.textContent = `${number(page.first)} to ${number(page.last)}`;
      list.replaceChildren(...(page.messages.length ? page.messages.toReversed().map(row) : [h("p", {class: "empty"}, "No message here.")]));
    } catch (error) { list.replaceChildren(errorBox(error)); }
    older.disabled = !page?.messages.length || page.messages[0].seq <= page.first;
    newer.disabled = !page?.messages.length || page.messages.at(-1).seq >= page.last;
  };
  const row = (one) => {
    const item = h("div", {class: "msg"});
    item.append(h("button", {"aria-expanded": "false", onclick: (event) => {
      const open = item.children.length > 1;
      event.currentTarget.setAttribute("aria-expanded", String(!open));
      if (open) item.lastChild.remove();
      else item.append(h("div", {class: "body"}, one.headers.length ? table(["Header", "Value"], one.headers.map(([head, value]) => [head, value]), "") : "", payload(one),
        h("p", {class: "dim"}, `${bytes(one.size)} · ${when(one.time)}`), about.write ? h("button", {onclick: () => publish(one.subject, one.text || "")}, "Republish…") : ""));
    }}, h("span", {class: "seq"}, number(one.seq)), h("span", {class: "what"}, one.subject, h("code", {}, (one.text ?? "binary").slice(0, 160))), h("span", {class: "when"}, when(one.time))));
    return item;
  };
  const composer = h("div", {});
  const publish = (to = "", text = "") => {
    const where = h("input", {class: "grow", placeholder: "Subject", "aria-label": "Subject", value: to}), what = h("textarea", {"aria-label": "Payload", value: text}), preview = h("div", {});
    composer.replaceChildren(h("section", {class: "panel"}, h("h2", {}, "Publish"), h("div", {class: "row"}, where), what,
      h("div", {class: "row"}, h("button", {onclick: () => preview.replaceChildren(h("p", {class: "dim"}, `This is sent to ${where.value}:`), h("pre", {}, what.value || "(empty)"),
        h("button", {class: "primary", onclick: async () => { try { const ack = await post("/api/publish", {subject: where.value, data: what.value}); toast(`stored in ${ack.stream} as ${ack.seq}`); composer.replaceChildren(); load(); } catch (error) { toast(error.message); } }}, "Publish now"))}, "Review"),
      h("button", {onclick: () => composer.replaceChildren()}, "Cancel")), preview));
  };
  const older = h("button", {onclick: () => load(`&before=${page.messages[0].seq}`)}, "← Older"), newer = h("button", {onclick: () => load(`&after=${page.messages.at(-1).seq + 1}`)}, "Newer →");
  const tail = h("button", {"aria-pressed": "false", onclick: () => {
    clearInterval(timer);
    const on = tail.getAttribute("aria-pressed") === "false";
    tail.setAttribute("aria-pressed", String(on));
    tail.textContent = on ? "Stop tail" : "Tail";
    if (on) { load(); timer = setInterval(() => load("", true), 1000); }
  }}, "Tail");
  const go = (event) => { event.preventDefault(); load(seq.value ? `&after=${part(seq.value.replace(/\D/g, ""))}` : time.value ? `&time=${part(new Date(time.value).toISOString())}` : ""); };
  view.replaceChildren(h("h1", {}, h("a", {class: "crumb", href: `#/streams/${part(name)}`}, name + " / "), "Messages"),
    h("form", {class: "row", onsubmit: go}, filter, seq, time, h("button", {class: "primary"}, "Go")),
    h("div", {class: "row"}, older, newer, h("button", {onclick: () => load()}, "Newest"), tail, about.write ? h("button", {onclick: () => publish()}, "Publish…") : "", state), composer, list);
  await load();
  return () => clearInterval(timer);
}

export function choose(view, title, target) {
  return new Promise((done) => {
    const stop = live((sample) => {
      stop();
      view.replaceChildren(h("h1", {}, title), h("section", {class: "panel"}, h("h2", {}, "Of which stream?"), table(["Stream", "Messages#", "Last message"],
        sample.streams.map((one) => [h("a", {href: target + part(one.name)}, one.name), number(one.messages), when(one.last_time)]), "No streams yet.")));
    }, (error) => view.replaceChildren(errorBox(error)));
    done(stop);
  });
}
