// Objects: list, preview, download and upload with progress.
import {h, get, part, bytes, when, plural, table, payload, toast, errorBox, loading, empty, panel, title, badge} from "/static/dom.js";

export async function objects(view, [name], about) {
  if (!name) {
    const stores = await get("/api/objects");
    view.replaceChildren(title("Objects"), panel("", table(["Bucket"], stores.map((one) => [{text: one, href: `#/objects/${part(one)}`}]), empty("No object stores.", "slipstream object add NAME makes one."))));
    return;
  }
  const found = await get(`/api/objects/${part(name)}`), side = h("section", {class: "panel"}, empty("Choose an object to preview it."));
  const address = (kind, object) => `/api/objects/${part(name)}/${kind}?name=${part(object)}`;
  const preview = async (one) => {
    side.replaceChildren(h("h2", {}, one.name), loading());
    try {
      const shown = await get(address("preview", one.name));
      side.replaceChildren(h("h2", {}, one.name), h("p", {class: "dim"}, `${bytes(one.size)} · ${plural(one.chunks, "chunk")} · ${when(one.mtime)}`), one.description ? h("p", {class: "description"}, one.description) : "",
        shown.picture ? h("img", {class: "preview", alt: one.name, src: address("picture", one.name)}) : payload(shown), h("p", {class: "dim"}, h("code", {}, one.digest)), h("div", {class: "row"}, download(one)));
    } catch (error) { side.replaceChildren(h("h2", {}, one.name), errorBox(error, () => preview(one))); }
  };
  // Read by the page itself, so that progress can be shown and the address needs no token. Large ones go to the
  // browser's own downloads, which do not hold them in memory.
  const download = (one) => {
    const link = h("a", {class: "button", href: address("download", one.name), download: one.name.split("/").pop()}, "Download");
    if (one.size > 256 * 2 ** 20) return link;
    const bar = h("progress", {max: Math.max(one.size, 1), value: 0, "aria-label": "Download", hidden: true}), button = h("button", {onclick: async () => {
      button.disabled = true;
      bar.hidden = false;
      bar.value = 0;
      try {
        const answer = await fetch(address("download", one.name));
        if (!answer.ok) throw new Error((await answer.text()).trim());
        const reader = answer.body.getReader(), parts = [];
        for (let had = 0; ;) {
          const {done, value} = await reader.read();
          if (done) break;
          parts.push(value);
          bar.value = had += value.length;
        }
        link.href = URL.createObjectURL(new Blob(parts));
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 10000);
        toast(`${one.name} was downloaded.`);
      } catch (error) { toast(error.message, "bad"); }
      button.disabled = false;
      bar.hidden = true;
    }}, "Download");
    return h("span", {class: "progress"}, button, bar);
  };
  const file = h("input", {type: "file", "aria-label": "File to upload"}), progress = h("progress", {max: 100, value: 0, hidden: true, "aria-label": "Upload"}), note = h("span", {class: "dim", role: "status"});
  const upload = () => {
    const [chosen] = file.files;
    if (!chosen) return toast("Choose a file first.");
    const request = new XMLHttpRequest(); // fetch reports no progress of uploads
    progress.hidden = false;
    request.upload.onprogress = (event) => { progress.value = 100 * event.loaded / event.total; note.textContent = `${bytes(event.loaded)} of ${bytes(event.total)}`; };
    request.onload = () => {
      progress.hidden = true;
      note.textContent = "";
      if (request.status === 200) { toast(`${chosen.name} is stored.`); objects(view, [name], about); }
      else { let text = request.responseText; try { text = JSON.parse(text).error; } catch { /* as it is */ } toast(text, "bad"); }
    };
    request.onerror = () => { progress.hidden = true; toast("The upload failed.", "bad"); };
    request.open("POST", address("upload", chosen.name));
    request.setRequestHeader("Content-Type", "application/octet-stream");
    request.send(chosen);
  };
  view.replaceChildren(title(name, [["Objects", "#/objects"]], found.sealed ? badge("sealed") : ""), h("p", {class: "dim"}, `${bytes(found.bytes)} stored${found.more ? " · the first 1,000 objects" : ""}`), found.unreadable.length ? h("p", {class: "bad"}, `Not listed: ${found.unreadable.join("; ")}`) : "",
    about.write && !found.sealed ? h("div", {class: "row"}, file, h("button", {onclick: upload}, "Upload"), progress, note) : "",
    h("div", {class: "split wide"}, panel("", table(["Name", "Size#", "Changed", ""], found.objects.map((one) => [h("button", {class: "link", onclick: () => preview(one)}, one.name), bytes(one.size), when(one.mtime), download(one)]), empty("No objects.", "slipstream object put BUCKET FILE stores one."))), side));
}
