"""Graph of a pipeline: its sources, steps and outputs, with the columns that flow between them where the file tells.

As text for a terminal, as Mermaid for Markdown, or as a page of HTML with a picture (SVG), which loads nothing from
elsewhere. Nothing is started.
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import NamedTuple

from slipstream.spark.pipelines.checks.columns import known_columns
from slipstream.spark.pipelines.model import Output, Pipeline, Source
from slipstream.spark.pipelines.sql_tables import tables_in

STYLES = ("text", "mermaid", "html")
_MAX_COLUMNS = 6  # on an edge
_BOX, _ROW, _LINE = 44, 70, 16  # heights in the picture, in pixels: of a box, from box to box, of a line of text
_LETTER = 7.5  # width of a letter, about
_DEAD_LETTERS = "dead letters"  # of the picture: no name has a space
_PAGE = """<!doctype html>
<meta charset="utf-8">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<h1>{title}</h1>
{graph}
<h2>Text</h2>
<pre>
{text}
</pre>
"""


class Edge(NamedTuple):
    """Rows that flow from one node to another, with their columns; None if the file does not tell them."""

    start: str
    end: str
    columns: dict[str, str] | None


def explain(pipeline: Pipeline, style: str = "text") -> str:
    """The graph in one of the STYLES."""
    if style == "mermaid":
        return "\n".join(_mermaid(pipeline))
    text = "\n".join(_text(pipeline))
    if style == "text":
        return text
    title = html.escape(f"Pipeline {pipeline.name}")
    return _PAGE.format(title=title, graph="\n".join(_svg(pipeline)), text=html.escape(text))


def edges(pipeline: Pipeline) -> list[Edge]:
    """Every flow of rows between sources, steps and outputs. Names of outputs have `output:` in front."""
    known = known_columns(pipeline)
    views = pipeline.views()
    found = [
        Edge(name, step.name, known.get(name))
        for step in pipeline.steps
        for name in views
        if name != step.name and name in tables_in(step.sql, views)
    ]
    return found + [Edge(one.view, f"output:{one.name}", known.get(one.view)) for one in pipeline.outputs]


def _origin(source: Source) -> str:
    what = f"stream {source.stream}" if source.stream else f"changes of bucket {source.bucket}"
    return f"{what}, {source.format}"


def _target(output: Output) -> str:
    kind = {"files": "files in"}.get(output.kind, output.kind)
    return f"{kind} {output.target}, {output.mode}"


def _columns(columns: dict[str, str] | None, most: int = _MAX_COLUMNS) -> str:
    if columns is None:
        return "columns: see validate --deep"
    shown = [f"{name} {kind}".strip() for name, kind in columns.items() if not name.startswith("_")]
    more = f", {len(shown) - most} more" if len(shown) > most else ""
    return ", ".join(shown[:most]) + more


def _text(pipeline: Pipeline) -> Iterator[str]:
    """A tree per source; a part that was shown already is only named again."""
    known, flows, shown = known_columns(pipeline), edges(pipeline), set[str]()
    outputs = {f"output:{one.name}": one for one in pipeline.outputs}

    def below(name: str, indent: str) -> Iterator[str]:
        ends = [edge.end for edge in flows if edge.start == name]
        for index, end in enumerate(ends):
            is_last = index == len(ends) - 1
            branch, deeper = ("└─ ", "   ") if is_last else ("├─ ", "│  ")
            if end in outputs:
                yield f"{indent}{branch}output {outputs[end].name} → {_target(outputs[end])}"
                continue
            again = " (see above)" if end in shown else f"  [{_columns(known.get(end))}]"
            yield f"{indent}{branch}step {end}{again}"
            if end not in shown:
                shown.add(end)
                yield from below(end, indent + deeper)

    yield f"pipeline {pipeline.name}, trigger {pipeline.trigger}"
    for source in pipeline.sources:
        yield f"source {source.name} ← {_origin(source)}  [{_columns(known.get(source.name))}]"
        yield from below(source.name, "")
        if pipeline.dead_letter and source.format != "raw":
            yield f"   (what cannot be decoded → stream {pipeline.dead_letter})"
    for table in pipeline.tables:
        origin = f"state of bucket {table.bucket}, {table.format}"
        yield f"table {table.name} ← {origin}  [{_columns(known.get(table.name))}]"
        yield from below(table.name, "")
    reached = {edge.end for edge in flows}
    for step in pipeline.steps:
        if step.name not in reached:
            yield f"step {step.name} reads no source or step of this file"
            yield from below(step.name, "")


def _mermaid(pipeline: Pipeline) -> Iterator[str]:
    yield "flowchart LR"
    for source in pipeline.sources:
        yield f'    {_id(source.name)}[("{_label(source.name)}<br/>{_label(_origin(source))}")]'
    for table in pipeline.tables:
        label = f"{_label(table.name)}<br/>state of bucket {_label(table.bucket)}, {table.format}"
        yield f'    {_id(table.name)}[("{label}")]'
    for step in pipeline.steps:
        yield f'    {_id(step.name)}["{_label(step.name)}"]'
    for output in pipeline.outputs:
        yield f'    {_id(f"output:{output.name}")}[/"{_label(output.name)}<br/>{_label(_target(output))}"/]'
    for start, end, columns in edges(pipeline):
        text = "" if columns is None else f'|"{_label(_columns(columns, 4))}"|'
        yield f"    {_id(start)} -->{text} {_id(end)}"
    if pipeline.dead_letter:
        letters = _label(pipeline.dead_letter)
        yield f'    dead_letters[/"{letters}<br/>dead letters"/]'
        for source in pipeline.sources:
            if source.format != "raw":
                yield f"    {_id(source.name)} -.-> dead_letters"


def _svg(pipeline: Pipeline) -> Iterator[str]:
    """The picture: a column of boxes for each step away from the sources, and a line with its columns per edge."""
    flows = edges(pipeline)
    boxes = {one.name: (one.name, _origin(one)) for one in pipeline.sources}
    boxes |= {one.name: (one.name, f"state of bucket {one.bucket}, {one.format}") for one in pipeline.tables}
    boxes |= {one.name: (one.name, "step") for one in pipeline.steps}
    boxes |= {f"output:{one.name}": (one.name, _target(one)) for one in pipeline.outputs}
    if pipeline.dead_letter:
        boxes[_DEAD_LETTERS] = (pipeline.dead_letter, _DEAD_LETTERS)
        flows += [Edge(one.name, _DEAD_LETTERS, {}) for one in pipeline.sources if one.format != "raw"]
    levels = dict.fromkeys(boxes, 0)
    for name in boxes:  # in the order of their dependencies
        levels[name] = max((levels[start] + 1 for start, end, _ in flows if end == name), default=0)
    places, x, height = dict[str, tuple[float, float, float]](), 10.0, 0
    for level in range(max(levels.values()) + 1):
        names = [name for name in boxes if levels[name] == level]
        width = 20 + _LETTER * max(len(text) for name in names for text in boxes[name])
        for row, name in enumerate(names):
            places[name] = (x, 20.0 + row * _ROW, width)
        height = max(height, 20 + len(names) * _ROW)
        x += (
            width
            + 60
            + _LETTER * max((len(_edge_text(one)) for one in flows if levels[one.end] == level + 1), default=0)
        )
    yield f'<svg xmlns="http://www.w3.org/2000/svg" width="{x:.0f}" height="{height}" font-family="sans-serif"'
    yield '  font-size="13" fill="none" stroke="currentColor">'
    entered = dict.fromkeys(boxes, 0)
    for edge in flows:
        (left, top, width), (right, low, _) = places[edge.start], places[edge.end]
        begin, begin_y, end_y = left + width, top + _BOX / 2, low + _BOX / 2
        bend = begin + 40
        dashes = ' stroke-dasharray="4"' if edge.end == _DEAD_LETTERS else ""
        curve = f"M {begin:.0f} {begin_y:.0f} C {bend:.0f} {begin_y:.0f} {begin:.0f} {end_y:.0f} {bend:.0f} {end_y:.0f}"
        yield f'  <path d="{curve} H {right:.0f}"{dashes}/>'
        y = end_y - 4 + _LINE * entered[edge.end]
        entered[edge.end] += 1
        yield _svg_text(right - 6, y, _edge_text(edge), "end", 12)
    for name, (left, top, width) in places.items():
        rounded = 4 if levels[name] and not name.startswith("output:") and name != _DEAD_LETTERS else 14
        yield f'  <rect x="{left:.0f}" y="{top:.0f}" width="{width:.0f}" height="{_BOX}" rx="{rounded}"/>'
        for line, text in enumerate(boxes[name]):
            yield _svg_text(left + 10, top + 18 + line * _LINE, text)
    yield "</svg>"


def _edge_text(edge: Edge) -> str:
    return "" if edge.columns is None else _columns(edge.columns, 4)


def _svg_text(x: float, y: float, text: str, anchor: str = "start", size: int = 13) -> str:
    place = f'x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-size="{size}"'
    return f'  <text {place} fill="currentColor" stroke="none">{html.escape(text)}</text>'


def _id(name: str) -> str:
    """A node's id: `end` and the like are words of Mermaid, so each has a prefix."""
    prefix, name = ("o_", name.removeprefix("output:")) if name.startswith("output:") else ("v_", name)
    return prefix + name.replace("-", "_m_")


def _label(text: str) -> str:
    return text.replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
