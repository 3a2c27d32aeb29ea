// Key-Value, objects, and reads one can trust.
import {h, get, post, part, number, bytes, when, table, payload, toast, errorBox, diff} from "/static/dom.js";
import {choose} from "/static/views.js";

export async function buckets(view, [name, chosen], about) {
  const names = await get("/api/buckets");
  if (!name) {
    view.replaceChildren(h("h1", {}, "Key-Value"), h("section", {class: "panel"}, table(["Bucket"], names.map((one) => [h("a", {href: `#/kv/${part(one)}`}, one)]), "No buckets. slipstream kv add NAME makes one.")));
    return;
  }
  const status = await get(`/api/buckets/${part(name)}`);
  const filter = h("input", {class: "grow", placeholder: "Filter, such as users.> or *.name", "aria-label": "Filter of keys"}), keys = h("ul", {class: "list"}), side = h("section", {class: "panel"}, h("p", {class: "empty"}, "Choose a key."));
  let timer = 0, open = "";
  const list = async () => {
    keys.replaceChildren(h("li", {class: "loading"}, "Loading…"));
    try {
      const found = await get(`/api/buckets/${part(name)}/keys?filter=${part(filter.value)}`);
      keys.replaceChildren(...found.keys.map((key) => h("li", {}, h("button", {"data-key": key, "aria-current": key === open, onclick: () => show(key)}, key))),
        found.keys.length ? "" : h("li", {class: "empty"}, "No key matches."), found.more ? h("li", {class: "dim"}, "the first 500; filter for others") : "");
    } catch (error) { keys.replaceChildren(h("li", {}, errorBox(error))); }
  };
  const show = async (key) => {
    open = key;
    clearInterval(timer);
    for (const button of keys.querySelectorAll("button")) button.toggleAttribute("aria-current", button.dataset.key === key);
    let shown = 0;
    const badge = h("span", {}), notice = h("div", {}), past = h("div", {}), value = h("div", {});
    const draw = (entry) => {
      const [now] = entry.history;
      shown = now ? now.revision : 0;
      notice.replaceChildren();
      const editor = h("textarea", {"aria-label": "Value", value: now && now.operation === "PUT" ? now.text ?? "" : ""}), review = h("div", {});
      const send = async () => {
        try { const saved = await post(`/api/buckets/${part(name)}/put`, {key, value: editor.value, last: now ? now.revision : 0}); toast(`saved as revision ${saved.revision}`); await refresh(true); }
        catch (error) {
          if (error.status !== 409) return toast(error.message);
          notice.replaceChildren(h("div", {class: "error", role: "alert"}, "Conflict: " + error.message, h("p", {}, "The value is now:"), error.body.current ? payload(error.body.current) : "(none)", h("button", {onclick: () => refresh(true)}, "Load it")));
        }
      };
      value.replaceChildren(now ? payload(now) : h("p", {class: "empty"}, "No value."), about.write && (!now || now.text !== null) ? h("details", {}, h("summary", {}, "Edit"), editor,
        h("div", {class: "row"}, h("button", {onclick: () => review.replaceChildren(diff(now?.text ?? "", editor.value), h("button", {class: "primary", onclick: send}, `Save over revision ${now ? now.revision : 0}`))}, "Review the change")), review) : "");
      badge.replaceChildren(now ? h("span", {class: "badge"}, `revision ${number(now.revision)}`) : "", " ", now?.expires ? h("span", {class: "badge warn"}, `expires ${when(now.expires)}`) : "");
      past.replaceChildren(h("h2", {}, "History"), ...entry.history.map((one, at) => h("details", {}, h("summary", {}, `${number(one.revision)} · ${one.operation} · ${when(one.created)}`), entry.history[at + 1] ? diff(entry.history[at + 1].text ?? "", one.text ?? "") : payload(one))));
    };
    const refresh = async (force) => {
      const entry = await get(`/api/buckets/${part(name)}/entry?key=${part(key)}`);
      if (open !== key) return;
      const editing = side.querySelector("details[open] textarea");
      if (force || !shown || (entry.history[0]?.revision !== shown && !editing)) draw(entry);
      else if (entry.history[0]?.revision !== shown) notice.replaceChildren(h("div", {class: "error"}, `Changed elsewhere: it is at revision ${entry.history[0]?.revision} now.`));
    };
    side.replaceChildren(h("h2", {}, h("code", {}, key), " ", badge), notice, value, past);
    try { await refresh(true); timer = setInterval(() => refresh(false).catch(() => {}), 1500); } catch (error) { side.append(errorBox(error)); }
  };
  view.replaceChildren(h("h1", {}, h("a", {class: "crumb", href: "#/kv"}, "Key-Value / "), name), status.description ? h("p", {class: "dim"}, status.description) : "",
    h("p", {class: "dim"}, `${number(status.keys)} keys · ${bytes(status.bytes)} · history ${status.history} · last revision ${number(status.last)}${status.ttl ? ` · kept for ${status.ttl} s` : ""}`),
    h("form", {class: "row", onsubmit: (event) => { event.preventDefault(); list(); }}, filter, h("button", {class: "primary"}, "Find"),
      about.write ? h("button", {type: "button", onclick: () => { const key = filter.value.trim(); key && !/[*>]/.test(key) ? show(key) : toast("write the new key into the filter first"); }}, "New key") : ""),
    h("div", {class: "split"}, h("section", {class: "panel"}, keys), side));
  await list();
  if (chosen) await show(chosen);
  return () => clearInterval(timer);
}

export async function objects(view, [name], about) {
  if (!name) {
    const stores = await get("/api/objects");
    view.replaceChildren(h("h1", {}, "Objects"), h("section", {class: "panel"}, table(["Bucket"], stores.map((one) => [h("a", {href: `#/objects/${part(one)}`}, one)]), "No object stores.")));
    return;
  }
  const found = await get(`/api/objects/${part(name)}`);
  const file = h("input", {type: "file", "aria-label": "File to upload"}), progress = h("progress", {max: 100, value: 0, hidden: true});
  const upload = () => {
    const [chosen] = file.files;
    if (!chosen) return toast("choose a file first");
    const request = new XMLHttpRequest(); // fetch reports no progress of uploads
    progress.hidden = false;
    request.upload.onprogress = (event) => { progress.value = 100 * event.loaded / event.total; };
    request.onload = () => { progress.hidden = true; request.status === 200 ? (toast(`${chosen.name} is stored`), objects(view, [name], about)) : toast(request.responseText); };
    request.onerror = () => toast("the upload failed");
    request.open("POST", `/api/objects/${part(name)}/upload?name=${part(chosen.name)}`);
    request.setRequestHeader("Content-Type", "application/octet-stream");
    request.send(chosen);
  };
  view.replaceChildren(h("h1", {}, h("a", {class: "crumb", href: "#/objects"}, "Objects / "), name), about.write ? h("div", {class: "row"}, file, h("button", {onclick: upload}, "Upload"), progress) : "", h("section", {class: "panel"}, table(["Name", "Size#", "Chunks#", "Changed", "Digest", ""],
    found.map((one) => [one.name, bytes(one.size), number(one.chunks), when(one.mtime), h("code", {}, one.digest.slice(0, 20) + "…"), h("a", {href: `/api/objects/${part(name)}/download?name=${part(one.name)}`, download: one.name}, "Download")]), "No objects.")));
}

const PATHS = {at_once: "the first answer proved itself", retried: "after more than one try", from_leader: "with the leader's word", failed: "not in time: the read raised"};
export async function trust(view, [name], about) {
  if (!name) return choose(view, "Trust", "#/trust/");
  const subject = h("input", {class: "grow", placeholder: "Subject", "aria-label": "Subject", required: true}), least = h("input", {size: 12, inputmode: "numeric", placeholder: "now", "aria-label": "min_last_seq"});
  const result = h("div", {}), copies = h("section", {class: "panel"});
  const read = async () => {
    try {
      const found = await get(`/api/trust/${part(name)}?subject=${part(subject.value)}&min_last_seq=${part(least.value)}`), {trusted} = found;
      const newest = trusted.seq || 0, stale = found.plain.filter((one) => one.seq < newest).length;
      result.replaceChildren(h("div", {class: "grid"},
        h("section", {class: "panel"}, h("h2", {}, "Plain reads"), h("p", {class: "dim"}, "12 Direct Gets, answered by whichever copy is first."), h("div", {class: "reads"}, found.plain.map((one) => h("div", {class: one.seq < newest ? "read stale" : "read fresh"}, h("b", {}, one.found ? number(one.seq) : "none"), one.who.slice(-14) || "a copy", h("div", {class: "dim"}, `${one.ms} ms`)))),
          h("p", {}, stale ? h("span", {class: "badge bad"}, `${stale} of 12 were stale`) : h("span", {class: "badge good"}, "none was stale"))),
        h("section", {class: "panel"}, h("h2", {}, "Trusted read"), trusted.error ? errorBox(new Error(trusted.error)) : h("dl", {}, h("dt", {}, "Answer"), h("dd", {}, trusted.absent ? "no message, and that is certain" : `sequence ${number(trusted.seq)}`), h("dt", {}, "Must have seen"), h("dd", {}, number(found.min_last_seq)), h("dt", {}, "Proved by"), h("dd", {}, PATHS[trusted.path] || trusted.path || "the server itself"), h("dt", {}, "From"), h("dd", {}, trusted.stream || "–"), h("dt", {}, "Took"), h("dd", {}, `${trusted.ms} ms`)),
          trusted.message ? payload(trusted.message) : "")));
      draw(found.replicas);
    } catch (error) { result.replaceChildren(errorBox(error)); }
  };
  const draw = (replicas) => copies.replaceChildren(h("h2", {}, "Copies"), table(["Replica", "Last sequence#", "State", ""], replicas.map((one) => [one.name, number(one.last_seq), one.leads ? h("span", {class: "badge good"}, "leads") : one.held ? h("span", {class: "badge bad"}, "held") : h("span", {class: "badge"}, "follows"),
    about.write && !one.leads ? h("button", {onclick: async () => { try { await post(`/api/faults/${one.held ? "release" : "hold"}`, {stream: name, replica: one.name}); await read(); } catch (error) { toast(error.message); } }}, one.held ? "Release" : "Hold") : ""]), about.faults ? "No replicas." : "Replicas can be held on a server that was started with --faults."));
  view.replaceChildren(h("h1", {}, h("a", {class: "crumb", href: `#/streams/${part(name)}`}, name + " / "), "Trust"), h("p", {class: "dim"}, "Read the last message of a subject as it must have seen a sequence, and see who answered and what proved it."),
    h("form", {class: "row", onsubmit: (event) => { event.preventDefault(); read(); }}, subject, h("label", {}, "min_last_seq", least), h("button", {class: "primary"}, "Read")), result, copies);
  draw([]);
}
