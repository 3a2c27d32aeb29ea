// A tree of subjects or keys: one level is asked for when it is opened, and no level is longer than what is shown.
import {h, number, errorBox, plural} from "/static/dom.js";

export function tree(load, {unit, open, current = () => false}) {
  const level = (prefix) => {
    const list = h("ul", {class: "list", "data-list": true, role: prefix ? "group" : "tree"}), rows = new Map(), foot = h("li", {class: "dim foot"});
    const add = async (offset) => {
      foot.replaceChildren("Loading…");
      try {
        const found = await load(prefix, offset);
        for (const row of found.rows) draw(row);
        list.append(foot);
        foot.replaceChildren(rows.size ? "" : `no ${unit}s`, found.sample ? `${number(found.total)} in all; this level and its counts are of the last ${number(found.sample)} messages. A filter, or a branch, shows all. ` : "", found.tokens > found.rows.length ? `${number(found.tokens - found.rows.length)} more tokens on this level: filter for them ` : "",
          found.cut ? "more keys than are looked at: filter for them " : "",
          found.next ? h("button", {class: "small", onclick: () => add(found.next)}, `${number(found.read)} of ${number(found.total)} subjects read · read more`) : "");
      } catch (error) { foot.replaceChildren(errorBox(error, () => add(offset))); }
    };
    const draw = (row) => {
      const full = prefix ? `${prefix}.${row.token}` : row.token, known = rows.get(row.token);
      if (known) { known.messages += row.messages; known.subjects += row.subjects; known.count.textContent = number(known.messages); return; }
      const item = h("li", {role: "treeitem"}), count = h("span", {class: "dim", title: plural(row.messages, unit)}, number(row.messages)), mine = {...row, count};
      const line = (deeper) => {
        const button = h("button", {"data-row": true, "data-key": deeper ? null : full, "aria-current": !deeper && current(full) ? "true" : null, "aria-expanded": deeper ? "false" : null, onclick: () => {
          if (!deeper) return open(full);
          const shown = button.getAttribute("aria-expanded") === "true";
          button.setAttribute("aria-expanded", String(!shown));
          shown ? button.nextSibling.remove() : button.after(h("div", {class: "sub"}, level(full)));
        }}, h("span", {class: deeper ? "branch" : "leaf"}, row.token || "(empty)"), deeper || !row.deeper ? count : "");
        return button;
      };
      if (row.leaf || !row.deeper) item.append(line(false));
      if (row.deeper) item.append(line(true));
      rows.set(row.token, mine);
      list.append(item);
    };
    list.append(foot);
    add(0);
    return list;
  };
  return level("");
}
