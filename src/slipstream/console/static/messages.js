// Messages of a stream: pages both ways over millions, a tail, a search, and publishing.
import {h, get, post, part, number, bytes, when, live, events, table, payload, toast, errorBox, loading, empty, panel, title, plural} from "/static/dom.js";

const KEPT = 500; // rows of a tail or a search

export async function messages(view, [name, subject = ""], about) {
  if (!name) return choose(view, "Messages", "#/messages/");
  const list = h("section", {class: "panel messages", "data-list": true}, loading()), state = h("span", {class: "dim"}), composer = h("div", {});
  const filter = h("input", {class: "grow", placeholder: "Subject, such as orders.>", "aria-label": "Subject filter", value: subject});
  const seq = h("input", {inputmode: "numeric", size: 10, placeholder: "Sequence", "aria-label": "Go to sequence"});
  const time = h("input", {type: "datetime-local", step: 1, "aria-label": "Go to a time"});
  const text = h("input", {class: "grow", type: "search", placeholder: "Text in payload, subject or headers", "aria-label": "Find text"});
  const slider = h("input", {type: "range", class: "grow", min: 1, max: 1, "aria-label": "Position in the stream"});
  let page = null, timer = 0, stopSearch = null, turn = 0;

  const summary = () => {
    const shown = page.messages;
    state.textContent = page.count ? `${shown.length ? `${number(shown[0].seq)} to ${number(shown.at(-1).seq)} of ` : ""}${number(page.first)} to ${number(page.last)} · ${plural(page.count, "message")}` : "no messages";
    slider.min = Math.max(page.first, 1);
    slider.max = Math.max(page.last, 1);
    slider.value = shown.length ? shown.at(-1).seq : page.last;
    slider.disabled = page.last <= page.first;
    older.disabled = !shown.length || shown[0].seq <= page.first;
    newer.disabled = !shown.length || shown.at(-1).seq >= page.last;
  };
  const load = async (query = "") => {
    const mine = ++turn;
    end();
    list.setAttribute("aria-busy", "true");
    try {
      const found = await get(`/api/streams/${part(name)}/messages?subject=${part(filter.value.trim())}${query}`);
      if (mine !== turn) return;
      page = found;
      list.replaceChildren(...(page.messages.length ? page.messages.toReversed().map(row) : [empty("No message here.", page.count ? "Another sequence, time or subject may have some." : "The stream is empty.")]));
      summary();
    } catch (error) { if (mine === turn) list.replaceChildren(errorBox(error, () => load(query))); }
    list.removeAttribute("aria-busy");
  };
  const row = (one) => {
    const item = h("div", {class: "msg"});
    item.append(h("button", {"aria-expanded": "false", "data-row": true, onclick: (event) => {
      const open = item.children.length > 1;
      event.currentTarget.setAttribute("aria-expanded", String(!open));
      if (open) item.lastChild.remove();
      else item.append(h("div", {class: "body"}, one.headers.length ? table(["Header", "Value"], one.headers.map(([head, value]) => [head, value]), "") : "", payload(one),
        h("div", {class: "row"}, h("span", {class: "dim"}, `${bytes(one.size)} · ${when(one.time)}`), about.write ? h("button", {class: "small", onclick: () => publish(one)}, "Republish…") : "")));
    }}, h("span", {class: "seq"}, number(one.seq)), h("span", {class: "what"}, h("span", {class: "subject"}, one.subject), h("code", {}, (one.text ?? "binary").slice(0, 160))), h("span", {class: "when"}, when(one.time))));
    return item;
  };

  // A copy keeps payload and headers byte for byte; what is sent is shown before it is.
  const publish = (copy = null) => {
    const where = h("input", {class: "grow", placeholder: "Subject", "aria-label": "Subject", value: copy?.subject || ""}), what = h("textarea", {"aria-label": "Payload", spellcheck: "false"});
    const heads = h("textarea", {class: "low", "aria-label": "Headers", placeholder: "Name: value, one on a line", spellcheck: "false"}), preview = h("div", {"aria-live": "polite"});
    const pairs = () => heads.value.split("\n").filter((line) => line.trim()).map((line) => { const at = line.indexOf(":"); if (at < 1) throw new Error(`A header must be Name: value, got ${line}`); return [line.slice(0, at).trim(), line.slice(at + 1).trim()]; });
    const review = () => {
      try {
        const headers = copy ? copy.headers.filter(([head]) => !/^nats-(msg-id|expected-|batch-|rollup|ttl|schedule)/i.test(head)) : pairs();
        const body = copy ? {subject: where.value, copy: {stream: name, seq: copy.seq}} : {subject: where.value, data: what.value, headers};
        const send = async (event) => {
          event.currentTarget.disabled = true;
          try { const ack = await post("/api/publish", body); toast(`Stored in ${ack.stream} as ${number(ack.seq)}.`); composer.replaceChildren(); load(); } catch (error) { preview.append(errorBox(error)); }
        };
        preview.replaceChildren(h("p", {}, "This is sent to ", h("code", {}, where.value), ":"), headers.length ? table(["Header", "Value"], headers, "") : h("p", {class: "dim"}, "without headers"),
          payload(copy || {text: what.value, hex: null, size: what.value.length, cut: false}), h("button", {class: "primary", onclick: send}, "Publish now"));
      } catch (error) { preview.replaceChildren(errorBox(error)); }
    };
    composer.replaceChildren(panel(copy ? `Republish message ${number(copy.seq)}` : "Publish", h("div", {class: "row"}, where), copy ? h("p", {class: "dim"}, "Payload and headers are copied as they are stored, without headers that instruct the server.") : [what, heads],
      h("div", {class: "row"}, h("button", {onclick: review}, "Review"), h("button", {onclick: () => composer.replaceChildren()}, "Cancel")), preview));
    where.focus();
    composer.scrollIntoView({block: "nearest"});
  };

  const older = h("button", {"data-older": true, onclick: () => load(`&before=${page.messages[0].seq}`)}, "← Older"), newer = h("button", {"data-newer": true, onclick: () => load(`&after=${page.messages.at(-1).seq + 1}`)}, "Newer →");
  const tail = h("button", {"aria-pressed": "false", onclick: async () => {
    if (tail.getAttribute("aria-pressed") === "true") return end();
    await load();
    tail.setAttribute("aria-pressed", "true");
    tail.textContent = "Stop tail";
    const mine = turn;
    const look = async () => {
      if (mine !== turn) return;
      try {
        const found = await get(`/api/streams/${part(name)}/messages?subject=${part(filter.value.trim())}&after=${(page.messages.at(-1)?.seq ?? page.last) + 1}`);
        if (mine !== turn) return;
        if (found.messages.length) {
          list.querySelector(".empty")?.remove();
          list.prepend(...found.messages.toReversed().map((one) => { const made = row(one); made.classList.add("new"); return made; }));
          while (list.children.length > KEPT) list.lastChild.remove();
        }
        page = {...found, messages: found.messages.length ? [page.messages[0] ?? found.messages[0], ...found.messages] : page.messages};
        summary();
        timer = setTimeout(look, found.messages.length >= found.page ? 50 : 800);
      } catch (error) { list.prepend(errorBox(error)); end(); }
    };
    look();
  }}, "Tail");
  function end() {
    clearTimeout(timer);
    if (stopSearch) stopSearch();
    stopSearch = null;
    tail.setAttribute("aria-pressed", "false");
    tail.textContent = "Tail";
  }

  const search = (start) => {
    ++turn;
    end();
    const found = [], foot = h("p", {class: "dim", role: "status"}, "Searching…"), rows = h("div", {});
    list.replaceChildren(rows, foot);
    older.disabled = newer.disabled = true;
    stopSearch = events(`/api/streams/${part(name)}/search?subject=${part(filter.value.trim())}&text=${part(text.value)}&start=${start}`, (one) => {
      if (one.hit) { found.push(one.hit); rows.append(row(one.hit)); }
      if (one.at) foot.textContent = `Searching… ${number(one.at)} of ${number(one.last)}, ${number(found.length)} found`;
      if (!one.end) return;
      end();
      foot.replaceChildren(`${number(found.length)} found in ${plural(one.looked, "message")}. `, one.next ? h("button", {class: "small", onclick: () => search(one.next)}, `Go on at ${number(one.next)} of ${number(one.last)}`) : "That is all.");
    }, (error) => { end(); foot.replaceChildren(errorBox(error)); });
  };
  const go = (event) => {
    event.preventDefault();
    if (text.value) return search(seq.value ? Number(seq.value.replace(/\D/g, "")) : page?.first || 1);
    load(seq.value ? `&after=${part(seq.value.replace(/\D/g, ""))}` : time.value ? `&time=${part(new Date(time.value).toISOString())}` : "");
  };
  slider.addEventListener("change", () => load(`&before=${Number(slider.value) + 1}`));
  view.replaceChildren(title("Messages", [[name, `#/streams/${part(name)}`]], about.write ? h("button", {onclick: () => publish()}, "Publish…") : ""),
    h("form", {class: "row", onsubmit: go}, filter, seq, time, text, h("button", {class: "primary"}, "Go")),
    h("div", {class: "row"}, older, newer, h("button", {onclick: () => load()}, "Newest"), tail, slider, state), composer, list);
  await load();
  return () => { turn++; end(); };
}

export function choose(view, heading, target) {
  return new Promise((done) => {
    const stop = live((sample) => {
      stop();
      view.replaceChildren(title(heading), panel("Of which stream?", table(["Stream", "Messages#", "Last message"],
        sample.streams.map((one) => [{text: one.name, href: target + part(one.name)}, number(one.messages), when(one.last_time)]), empty("No streams yet.", "slipstream stream add NAME makes one."))));
    }, (error) => view.replaceChildren(title(heading), errorBox(error)));
    done(stop);
  });
}
