// The properties of a box of the drawing: what it is called, what it reads, and what it does.

import { Card, Choice, html, Input, useEffect, useRef, useState } from "../ui.js";
import { branchesOf, connected, disconnected, edited, portsOf } from "./state.js";

const FUNCTIONS = ["count(*)", "sum", "avg", "min", "max", "count", "count distinct", "first", "last", "collect_set", "stddev"];
const PORTS = { join: ["left input", "right input"] };

function Area({ label, value, onInput, hint, rows = 2 }) {
  return html`<label class="field area"><span>${label}</span><textarea rows=${rows} spellcheck="false" placeholder=${hint} value=${value || ""} onInput=${(event) => onInput(event.target.value)}></textarea></label>`;
}

// The boxes that this one reads, each as a choice: what is drawn with the mouse can be chosen here.
function Reads({ drawing, box, onDrawing }) {
  const outputs = drawing.boxes.filter((each) => each.id !== box.id).flatMap((each) => branchesOf(each).map((branch) => [`${each.id}/${branch}`, branch ? `${each.name}, ${branch}` : each.name]));
  return Array.from({ length: portsOf(drawing, box) }, (_, port) => {
    const wire = drawing.wires.find((each) => each.target === box.id && each.port === port);
    const choose = (value) => {
      const [source, branch] = value.split("/");
      onDrawing(value ? connected(drawing, source, branch, box.id, port) : disconnected(drawing, box.id, port));
    };
    return html`<${Choice} label=${(PORTS[box.kind] || [])[port] || (port ? `input ${port + 1}` : "reads")} value=${wire ? `${wire.source}/${wire.branch}` : ""} options=${[["", "–"], ...outputs]} onChange=${choose} />`;
  });
}

// Columns that come in. Pressing one writes it where the cursor last was.
function Columns({ columns, onUse }) {
  if (!columns.length) return null;
  return html`<p class="chips" aria-label="columns that come in">${columns.map((each) => html`<button type="button" class="chip" onMouseDown=${(event) => event.preventDefault()} onClick=${() => onUse(each.name)} title=${each.type}>${each.name}</button>`)}</p>`;
}

export function Properties({ drawing, box, onDrawing, streams, columns, problem, focus, sink }) {
  const form = useRef(null), last = useRef(null);
  const change = (settings) => onDrawing(edited(drawing, box.id, { settings: { ...box.settings, ...settings } }));
  const set = (name) => (value) => change({ [name]: value });
  useEffect(() => {
    // Only once, when it was asked for: going from box to box leaves the focus in the drawing.
    if (!focus || focus.box !== box.id || !focus.wanted) return;
    focus.wanted = false;
    form.current.querySelector("input, select, textarea").focus();
  }, [box.id, focus]);
  const incoming = drawing.wires.filter((each) => each.target === box.id).flatMap((each) => columns[each.source] || []);
  const use = (name) => {
    const node = last.current;
    if (!node || !node.isConnected || !/^(INPUT|TEXTAREA)$/.test(node.tagName)) return;
    node.setRangeText(/^\w+$/.test(name) ? name : `\`${name}\``, node.selectionStart, node.selectionEnd, "end");
    node.dispatchEvent(new Event("input", { bubbles: true }));
    node.focus();
  };
  return html`<${Card} title=${`${box.kind} ${box.name}`} id="properties">
    ${problem && html`<p class="said bad" role="status">${problem}</p>`}
    <div class="properties" ref=${form} onFocusIn=${(event) => (last.current = event.target)}>
      <${Input} label="name" value=${box.name} onInput=${(name) => onDrawing(edited(drawing, box.id, { name }))} />
      <${Reads} drawing=${drawing} box=${box} onDrawing=${onDrawing} />
      <${FIELDS[box.kind]} given=${box.settings} set=${set} change=${change} streams=${streams} columns=${incoming} />
      ${sink}
    </div>
    <${Columns} columns=${incoming} onUse=${use} />
  </${Card}>`;
}

const Options = ({ id, columns, only }) => html`<datalist id=${id}>${columns.filter((each) => !only || only.test(each.type)).map((each) => html`<option value=${each.name} />`)}</datalist>`;

function Source({ given, set, streams }) {
  const stream = streams.find((each) => each.name === given.stream);
  const own = stream && stream.columns.find((each) => each.delayMs !== null);
  return html`<${Choice} label="stream" value=${given.stream || ""} options=${[["", "choose"], ...streams.map((each) => each.name)]} onChange=${set("stream")} />
    ${own ? html`<p class="note">It has a watermark: ${own.name}, ${own.delayMs / 1000} s.</p>` : html`
    <${Input} label="time column" value=${given.time || ""} onInput=${set("time")} list="times" placeholder="none" />
    <${Options} id="times" columns=${stream ? stream.columns : []} only=${/timestamp/} />
    <${Input} label="rows may be late by" value=${given.delay || ""} onInput=${set("delay")} placeholder="10 minutes" />`}`;
}

const Filter = ({ given, set }) => html`<${Area} label="condition" value=${given.condition} onInput=${set("condition")} hint="seconds > 30 AND src IS NOT NULL" />`;

const Select = ({ given, set }) => html`<${Area} label="columns, one a line" value=${given.columns} onInput=${set("columns")} rows="4" hint=${"src\nprice * amount AS total"} />`;

function Aggregate({ given, set, change, columns }) {
  const [called, setCalled] = useState(FUNCTIONS[0]);
  const [chosen, setChosen] = useState("");
  const names = columns.map((each) => each.name), column = names.includes(chosen) ? chosen : names[0] || "";
  const add = () => {
    const plain = column.replace(/\W/g, "_"), of = /^\w+$/.test(column) ? column : `\`${column}\``;
    const text = called === "count(*)" ? "count(*) AS rows" : called === "count distinct" ? `count(DISTINCT ${of}) AS distinct_${plain}` : `${called}(${of}) AS ${called}_${plain}`;
    change({ functions: [given.functions, text].filter(Boolean).join("\n") });
  };
  const kind = given.window || "none";
  return html`<${Area} label="keys" value=${given.keys} onInput=${set("keys")} rows="1" hint="src, dst" />
    <${Choice} label="window" value=${kind} options=${["none", "tumbling", "sliding", "session"]} onChange=${set("window")} />
    ${kind !== "none" && html`<${Input} label="of time" value=${given.time || ""} onInput=${set("time")} list="times" placeholder="ts" /><${Options} id="times" columns=${columns} only=${/timestamp/} />
      <${Input} label=${kind === "session" ? "gap" : "size"} value=${given.size || ""} onInput=${set("size")} placeholder="5 minutes" />`}
    ${kind === "sliding" && html`<${Input} label="advance" value=${given.slide || ""} onInput=${set("slide")} placeholder="1 minute" />`}
    <${Area} label="functions, one a line" value=${given.functions} onInput=${set("functions")} rows="3" hint="sum(seconds) AS total" />
    <div class="row"><${Choice} label="function" value=${called} options=${FUNCTIONS} onChange=${setCalled} />
      ${called !== "count(*)" && html`<${Choice} label="of" value=${column} options=${names} onChange=${setChosen} />`}
      <button type="button" disabled=${called !== "count(*)" && !column} onClick=${add}>add</button></div>`;
}

const Join = ({ given, set }) => html`<${Choice} label="kind" value=${given.kind || "inner"} options=${["inner", "left", "right", "full", "semi", "anti"]} onChange=${set("kind")} />
  <${Input} label="columns of both" value=${given.keys || ""} onInput=${set("keys")} placeholder="id" />
  <${Area} label="or a condition: l is left, r is right" value=${given.condition} onInput=${set("condition")} hint="l.id = r.id AND r.ts BETWEEN l.ts AND l.ts + INTERVAL 10 MINUTES" />
  <${Area} label="columns of the result; all if empty" value=${given.columns} onInput=${set("columns")} hint=${"l.*\nr.price AS price"} />`;

const Split = ({ given, set }) => html`<${Area} label="branches, one a line: a row takes the first whose condition holds" value=${given.branches} onInput=${set("branches")} rows="3" hint=${"long: seconds > 600\nforeign: country <> 'CH'"} />
  <p class="note">Rows that no branch takes leave by <b>else</b>.</p>`;

const FIELDS = { source: Source, filter: Filter, select: Select, aggregate: Aggregate, join: Join, split: Split, union: () => null, sink: () => null };
