// Key-Value: keys as a tree that follows changes, an entry with its history, and edits that check the revision.
import {h, get, post, part, number, bytes, when, seconds, events, table, payload, toast, confirm, errorBox, loading, empty, panel, title, badge, diff, field, plural} from "/static/dom.js";
import {tree} from "/static/tree.js";

export async function buckets(view, [name, chosen], about) {
  if (!name) {
    const names = await get("/api/buckets");
    view.replaceChildren(title("Key-Value"), panel("", table(["Bucket"], names.map((one) => [{text: one, href: `#/kv/${part(one)}`}]), empty("No buckets.", "slipstream kv add NAME makes one."))));
    return;
  }
  const base = `/api/buckets/${part(name)}`, status = await get(base);
  const filter = h("input", {class: "grow", placeholder: "Filter, such as users.> or *.name", "aria-label": "Filter of keys"}), keys = h("div", {class: "keys"}), side = h("section", {class: "panel entry"}, empty("Choose a key."));
  const pulse = h("span", {class: "badge"}, "connecting");
  let open = "", refreshOpen = () => {}, changed = 0;

  const list = async () => {
    const pattern = filter.value.trim();
    if (!pattern) return keys.replaceChildren(tree((prefix, offset) => get(`${base}/tree?prefix=${part(prefix)}&offset=${offset}`), {unit: "key", open: show, current: (key) => key === open}));
    keys.replaceChildren(loading());
    try {
      const found = await get(`${base}/keys?filter=${part(pattern)}`);
      keys.replaceChildren(h("ul", {class: "list", "data-list": true}, found.keys.map((key) => h("li", {}, h("button", {"data-key": key, "data-row": true, "aria-current": key === open ? "true" : null, onclick: () => show(key)}, key))),
        found.keys.length ? "" : h("li", {}, empty("No key matches.")), found.more ? h("li", {class: "dim foot"}, "the first 500; filter for others") : ""));
    } catch (error) { keys.replaceChildren(errorBox(error, list)); }
  };

  const show = async (key) => {
    open = key;
    history.replaceState(null, "", `#/kv/${part(name)}/${part(key)}`);
    for (const button of keys.querySelectorAll("[data-key]")) button.dataset.key === key ? button.setAttribute("aria-current", "true") : button.removeAttribute("aria-current");
    const head = h("span", {class: "badges"}), notice = h("div", {"aria-live": "polite"}), value = h("div", {}), past = h("div", {});
    let shown = -1;
    const draw = (entry) => {
      const [now] = entry.history, lives = now && now.operation === "PUT";
      shown = now ? now.revision : 0;
      notice.replaceChildren();
      head.replaceChildren(...(now ? [badge(`revision ${number(now.revision)}`)] : [badge("no value")]), ...(now && !lives ? [badge(now.operation === "DEL" ? "deleted" : "purged", "bad")] : []), ...(now?.expires ? [badge(`expires ${when(now.expires)}`, "warn")] : []));
      value.replaceChildren(lives ? payload(now) : empty(now ? "This key has no value any more." : "This key has no value yet."), about.write ? editor(key, now, lives) : "");
      past.replaceChildren(h("h2", {}, "History"), ...(entry.history.length ? entry.history.map((one, at) => h("details", {}, h("summary", {}, h("b", {}, number(one.revision)), ` ${one.operation} · ${when(one.created)} · ${bytes(one.size)}`),
        entry.history[at + 1] && one.text !== null ? [h("p", {class: "dim"}, `Changed since ${number(entry.history[at + 1].revision)}:`), diff(entry.history[at + 1].text ?? "", one.text)] : payload(one))) : [h("p", {class: "dim"}, "Nothing was written.")]));
    };
    const editor = (target, now, lives) => {
      if (lives && (now.text === null || now.cut)) return h("p", {class: "dim"}, now.cut ? "This value is too long to be edited here." : "This value is not text and cannot be edited here.");
      const last = lives ? now.revision : 0, old = lives ? now.text : "", area = h("textarea", {"aria-label": "Value", spellcheck: "false", value: old}), review = h("div", {"aria-live": "polite"});
      const ttl = h("input", {inputmode: "numeric", size: 8, placeholder: "none", "aria-label": "Expires after seconds"});
      const send = async () => {
        try { const saved = await post(`${base}/put`, {key: target, value: area.value, last, ttl: Number(ttl.value) || 0}); toast(`Saved as revision ${number(saved.revision)}.`); await refresh(true); }
        catch (error) {
          if (error.status !== 409) return review.replaceChildren(errorBox(error));
          const {current} = error.body;
          notice.replaceChildren(h("div", {class: "error conflict", role: "alert"}, h("p", {}, h("b", {}, "Conflict: "), error.message, ". Nothing was written."), h("p", {}, "What the other client wrote, compared with your text:"),
            current ? diff(current.text ?? "", area.value) : h("p", {}, "(no value)"), h("button", {onclick: () => refresh(true)}, "Load theirs")));
          notice.scrollIntoView({block: "nearest"});
        }
      };
      const remove = async () => {
        if (!await confirm(`Delete ${target}?`, `Revision ${number(last)} is marked as deleted; its history stays as long as the bucket keeps it.`, "Delete", {danger: true})) return;
        try { await post(`${base}/delete`, {key: target, last}); toast("Deleted."); await refresh(true); } catch (error) { notice.replaceChildren(errorBox(error)); }
      };
      return h("details", {class: "edit", open: !lives}, h("summary", {}, lives ? "Edit" : "Write a value"), area, h("div", {class: "row"}, status.value_ttl ? field("Expires after (s)", ttl) : "",
        h("button", {onclick: () => review.replaceChildren(diff(old, area.value), h("button", {class: "primary", onclick: send}, last ? `Save over revision ${number(last)}` : "Create"))}, "Review the change"),
        lives ? h("button", {onclick: remove}, "Delete…") : ""), review);
    };
    const refresh = async (force) => {
      const entry = await get(`${base}/entry?key=${part(key)}`);
      if (open !== key) return;
      const revision = entry.history[0]?.revision ?? 0, editing = value.querySelector(".edit[open] textarea");
      if (force || shown < 0 || (revision !== shown && !editing)) draw(entry);
      else if (revision !== shown) notice.replaceChildren(h("div", {class: "error"}, h("span", {}, `Changed elsewhere: it is at revision ${number(revision)} now.`), h("button", {onclick: () => refresh(true)}, "Load it")));
    };
    refreshOpen = (key, operation) => { if (key === open) refresh(false).catch(() => {}); };
    side.replaceChildren(h("div", {class: "title"}, h("h2", {}, h("code", {}, key)), head), notice, value, past);
    try { await refresh(true); } catch (error) { side.append(errorBox(error)); }
  };

  const fresh = h("button", {class: "small", hidden: true, onclick: () => { changed = 0; fresh.hidden = true; list(); }});
  const notes = [plural(status.keys, "key"), bytes(status.bytes), `history ${status.history}`, `last revision ${number(status.last)}`, ...(status.ttl ? [`kept for ${seconds(status.ttl)}`] : []), ...(status.value_ttl ? ["TTLs per key"] : []), ...(status.codecs.length ? [`through ${status.codecs.join(", ")}`] : [])];
  view.replaceChildren(title(name, [["Key-Value", "#/kv"]], h("a", {class: "button", href: `#/streams/${part(status.stream)}`}, "Stream")), status.description ? h("p", {class: "description"}, status.description) : "",
    h("p", {class: "dim"}, notes.join(" · ")),
    h("form", {class: "row", onsubmit: (event) => { event.preventDefault(); list(); }}, filter, h("button", {class: "primary"}, "Find"),
      about.write ? h("button", {type: "button", onclick: () => { const key = filter.value.trim(); key && !/[*>]/.test(key) ? show(key) : toast("Write the new key into the filter first."); }}, "New key") : ""),
    h("div", {class: "split"}, h("section", {class: "panel"}, h("div", {class: "row"}, h("h2", {}, "Keys"), pulse, fresh), keys), side));
  await list();
  if (chosen) await show(chosen);
  return events(`${base}/changes`, (one) => {
    pulse.textContent = "live";
    pulse.className = "badge good";
    if (!one.changes) return;
    changed += one.changes.length;
    const known = new Set([...keys.querySelectorAll("[data-key]")].map((button) => button.dataset.key));
    for (const change of one.changes) {
      refreshOpen(change.key, change.operation);
      const button = [...keys.querySelectorAll("[data-key]")].find((each) => each.dataset.key === change.key);
      if (button) { button.classList.remove("flash"); void button.offsetWidth; button.classList.add("flash"); }
    }
    if (one.changes.some((change) => !known.has(change.key))) { fresh.textContent = `${plural(changed, "change")} · refresh`; fresh.hidden = false; }
  }, () => { pulse.textContent = "not live"; pulse.className = "badge warn"; });
}
