// Lines over time: drawn as SVG, changed in place, with the values under the pointer or the keyboard's cursor.
import {h, svg, short} from "/static/dom.js";

const WIDTH = 600, HEIGHT = 120;

// A round number at or above the largest value, so that the scale does not jump with every sample.
function ceiling(value) {
  if (!(value > 0)) return 1;
  const size = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].find((step) => step * size >= value) * size;
}

// `series`: [{name, kind}]; `update` gets points [time in s, value, value, …].
export function plot(heading, series, {format = short, unit = ""} = {}) {
  const lines = series.map((one) => svg("path", {class: `line ${one.kind || ""}`})), fills = series.map((one) => svg("path", {class: `fill ${one.kind || ""}`}));
  const grid = [0.25, 0.5, 0.75].map((at) => svg("line", {class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT * at, y2: HEIGHT * at}));
  const picture = svg("svg", {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true"}, ...grid, ...fills, ...lines);
  const top = h("span", {class: "top"}), from = h("span"), now = h("b"), cursor = h("span", {class: "cursor", hidden: true}), tip = h("span", {class: "tip", hidden: true});
  const area = h("div", {class: "area", tabindex: 0, role: "img"}, picture, top, cursor, tip);
  const legend = series.length > 1 ? h("div", {class: "legend"}, series.map((one) => h("span", {class: one.kind || null}, one.name))) : "";
  let points = [], at = -1;
  const show = (index) => {
    at = Math.max(0, Math.min(points.length - 1, index));
    const point = points[at];
    cursor.hidden = tip.hidden = !point;
    if (!point) return;
    const share = points.length > 1 ? (point[0] - points[0][0]) / Math.max(points.at(-1)[0] - points[0][0], 1) : 1;
    cursor.style.left = `${share * 100}%`;
    tip.style[share > 0.5 ? "right" : "left"] = `${(share > 0.5 ? 1 - share : share) * 100}%`;
    tip.style[share > 0.5 ? "left" : "right"] = "auto";
    tip.textContent = `${new Date(point[0] * 1000).toLocaleTimeString("sv-SE")}  ` + series.map((one, n) => `${series.length > 1 ? one.name + " " : ""}${point[n + 1] === null ? "–" : format(point[n + 1]) + unit}`).join(", ");
  };
  const hide = () => { at = -1; cursor.hidden = tip.hidden = true; };
  area.addEventListener("pointermove", (event) => {
    if (!points.length) return;
    const box = area.getBoundingClientRect(), moment = points[0][0] + (event.clientX - box.left) / box.width * (points.at(-1)[0] - points[0][0]);
    let best = 0;
    points.forEach((point, index) => { if (Math.abs(point[0] - moment) < Math.abs(points[best][0] - moment)) best = index; });
    show(best);
  });
  area.addEventListener("pointerleave", hide);
  area.addEventListener("blur", hide);
  area.addEventListener("keydown", (event) => {
    const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (step) { show(at < 0 ? points.length - 1 : at + step); event.preventDefault(); }
  });
  const element = h("section", {class: "panel plot"}, h("div", {class: "plothead"}, h("h2", {}, heading), now), area, h("div", {class: "plotfoot"}, from, legend, h("span", {}, "now")));
  return {
    element,
    update(given) {
      points = given;
      const values = points.flatMap((point) => point.slice(1)).filter((value) => value !== null && value !== undefined);
      const limit = ceiling(Math.max(0, ...values)), first = points[0]?.[0] ?? 0, span = Math.max((points.at(-1)?.[0] ?? 1) - first, 1);
      series.forEach((_, n) => {
        let path = "", begun = null, end = 0;
        for (const point of points) {
          if (point[n + 1] === null || point[n + 1] === undefined) continue;
          end = ((point[0] - first) / span * WIDTH).toFixed(1);
          begun ??= end;
          path += `${path ? "L" : "M"}${end} ${(HEIGHT - point[n + 1] / limit * (HEIGHT - 4)).toFixed(1)}`;
        }
        lines[n].setAttribute("d", points.length > 1 ? path : "");
        fills[n].setAttribute("d", points.length > 1 && path ? `${path}L${end} ${HEIGHT}L${begun} ${HEIGHT}Z` : "");
      });
      const last = points.at(-1);
      now.textContent = series.length > 2 ? "" : last ? last.slice(1).map((value) => value === null || value === undefined ? "–" : format(value) + unit).join(" · ") : "–";
      top.textContent = format(limit) + unit;
      from.textContent = points.length > 1 ? (span < 120 ? `${Math.round(span)} s ago` : `${Math.round(span / 60)} min ago`) : "collecting…";
      area.setAttribute("aria-label", `${heading}: ${now.textContent || series.map((one) => one.name).join(", ")}, at most ${top.textContent}; arrow keys show earlier values`);
      if (at >= 0) show(at);
    },
  };
}
