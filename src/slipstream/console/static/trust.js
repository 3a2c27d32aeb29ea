// Trust: a subject read by a trusted read and by plain ones, and replicas that can be held on a server with --faults.
import {h, get, post, part, number, table, payload, toast, errorBox, empty, panel, title, badge, facts, field} from "/static/dom.js";
import {choose} from "/static/messages.js";

const PATHS = {at_once: "the first answer proved itself", retried: "after more than one try", from_leader: "with the leader's word", failed: "not in time: the read raised"};

// Names of replicas are long and differ in their ends.
const named = (who, replicas) => { const known = replicas.find((one) => one.name === who); return known ? (known.leads ? "leader" : `replica ${who.split("-").pop()}`) : who.length > 16 ? "…" + who.slice(-10) : who || "a copy"; };

export async function trust(view, [name, given = ""], about) {
  if (!name) return choose(view, "Trust", "#/trust/");
  const subject = h("input", {class: "grow", placeholder: "Subject", "aria-label": "Subject", required: true, value: given}), least = h("input", {size: 12, inputmode: "numeric", placeholder: "the newest"});
  const result = h("div", {"aria-live": "polite"}, panel("", empty("Read a subject.", "A trusted read answers as of min_last_seq or later, or raises. Plain reads answer with what the copy that is asked has."))), held = h("section", {class: "panel"});
  const watch = h("input", {type: "checkbox", onchange: () => { clearInterval(timer); if (watch.checked && subject.value) { read(); timer = setInterval(read, 1500); } }});
  let timer = 0;
  const read = async () => {
    try {
      const found = await get(`/api/trust/${part(name)}?subject=${part(subject.value)}&min_last_seq=${part(least.value.replace(/\D/g, ""))}`), {trusted} = found;
      const newest = trusted.seq || 0, stale = found.plain.filter((one) => one.seq < newest).length;
      result.replaceChildren(h("div", {class: "grid two"},
        panel("Plain reads", h("p", {class: "dim"}, "12 Direct Gets, answered by whichever copy is first."), h("div", {class: "reads"}, found.plain.map((one) => h("div", {class: one.seq < newest ? "read stale" : "read fresh"}, h("b", {}, one.found ? number(one.seq) : "none"), h("span", {title: one.who}, named(one.who, found.replicas)), h("div", {class: "dim"}, `${one.ms} ms`)))),
          h("p", {}, stale ? badge(`${stale} of 12 were stale`, "bad") : badge("none was stale", "good"))),
        panel("Trusted read", trusted.error ? errorBox(new Error(trusted.error)) : facts(["Answer", trusted.absent ? "no message, and that is certain" : `sequence ${number(trusted.seq)}`], ["Must have seen", number(found.min_last_seq)], ["Proved by", PATHS[trusted.path] || trusted.path || "the server itself"], ["From", trusted.stream || "–"], ["Took", `${trusted.ms} ms`]),
          trusted.message ? payload(trusted.message) : "")));
      draw(found.replicas);
    } catch (error) { result.replaceChildren(errorBox(error, read)); }
  };
  const fault = async (one) => {
    try { await post(`/api/faults/${one.held ? "release" : "hold"}`, {stream: name, replica: one.name}); toast(one.held ? `${one.name} follows again.` : `${one.name} is held: plain reads that it answers go stale.`); subject.value ? await read() : draw((await get(`/api/trust/${part(name)}/replicas`)).replicas); } catch (error) { toast(error.message, "bad"); }
  };
  const draw = (replicas) => held.replaceChildren(h("h2", {}, "Copies"), table(["Replica", "Last sequence#", "State", ""], replicas.map((one) => [one.name, number(one.last_seq), one.leads ? {badge: "leads", kind: "good"} : one.held ? {badge: "held", kind: "bad"} : {badge: "follows", kind: ""},
    about.write && !one.leads ? {button: one.held ? "Release" : "Hold", on: () => fault(one)} : ""]), about.faults ? "This stream has one copy; num_replicas gives it more." : empty("Who holds the copies is not told here.", "slipstream server --faults shows replicas, and can hold one back.")));
  view.replaceChildren(title("Trust", [[name, `#/streams/${part(name)}`]]), h("p", {class: "description"}, "Read the last message of a subject as it must have seen a sequence, and see who answered and what proved it."),
    h("form", {class: "row bottom", onsubmit: (event) => { event.preventDefault(); read(); }}, field("Subject", subject), field("min_last_seq", least), h("button", {class: "primary"}, "Read"), h("label", {class: "across"}, watch, "Repeat")), result, held);
  const found = await get(`/api/trust/${part(name)}/replicas`);
  draw(found.replicas);
  return () => clearInterval(timer);
}
