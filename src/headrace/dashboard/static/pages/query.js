// One query: figures, the graph with live rates, series with markers, the phases of a batch, the plan behind each node.

import { get } from "../api.js";
import { Chart } from "../chart.js";
import { isFault, marked, sentence, title } from "../events.js";
import { Graph } from "../graph.js";
import { Bar, Card, clock, html, known, percent, short, size, span, Table, Tile, useAnswer, useState, whole } from "../ui.js";

const OPERATOR_COLOURS = ["--blue", "--orange", "--green", "--purple", "--red", "--muted"];
const EVENTS_SHOWN = 40;

const newest = (column) => (column && column.length ? column.at(-1) : null);

// The newest values of everything that the graph shows.
function present(live, query) {
  const { series, last, about } = live;
  const operators = {};
  for (const [name, columns] of Object.entries(series.operators)) {
    operators[name] = Object.fromEntries(Object.entries(columns).map(([column, values]) => [column, newest(values)]));
    const homes = (last && last.routing[name] && last.routing[name].homes) || [];
    operators[name].homes = new Set(homes).size;
  }
  const sources = {}, sinks = {};
  const nodes = about.graph ? about.graph.nodes : [];
  const drawn = nodes.filter((each) => each.kind === "source"), span_s = newest(series.span);
  const offered = (last && last.sources) || [];
  drawn.forEach((each, at) => {
    if (drawn.length === 1) sources[each.id] = newest(series.rate);
    else if (offered.length === drawn.length && span_s) sources[each.id] = offered[at].numInputRows / span_s;
  });
  const ends = nodes.filter((each) => each.kind === "sink");
  for (const end of ends) {
    // What comes right from an operator is counted there; what other steps leave of it is counted for a single sink only.
    const from = about.graph.edges.filter((each) => each.target === end.id).map((each) => operators[each.source]);
    if (ends.length === 1) sinks[end.id] = newest(series.rateOut);
    else if (from.every(Boolean)) sinks[end.id] = from.reduce((sum, each) => sum + each.rowsOut, 0);
  }
  return { operators, sources, sinks, backlog: query.backlog, oneSource: drawn.length === 1 };
}

function Tiles({ query, live }) {
  const { series } = live, late = query.latency;
  return html`<div class="tiles">
    <${Tile} value=${short(query.rate)} label="rows/s in" title="over the last 30 seconds" />
    <${Tile} value=${short(query.rateOut)} label="results/s" />
    ${late && html`<${Tile} value=${span(late.p50)} label=${`latency, median · 95 %: ${span(late.p95)} · 99 %: ${span(late.p99)}`} title="from arrival, by rows, over the last five minutes" />`}
    <${Tile} value=${span(newest(series.ms))} label="last batch" />
    ${known(query.backlog) && html`<${Tile} value=${short(query.backlog)} label="rows waiting" />`}
    <${Tile} value=${percent(query.share, 1)} label="of the rows delivered" level=${query.share < 0.9995 ? "warn" : ""} />
    ${known(query.busy) && html`<${Tile} value=${percent(query.busy)} label="utilisation" level=${query.busy > 1 ? "bad" : ""} title="the share of the time that the stages of a batch need; above 100 % the query falls behind" />`}
    <${Tile} value=${size(query.stateBytes)} label=${`state, ${short(query.stateRows)} rows`} />
  </div>`;
}

function Series({ live }) {
  const { series, events } = live, marks = marked(events), x = series.t;
  if (!x.length) return html`<p class="empty">No batch has ended in this time.</p>`;
  const common = { x, events: marks };
  const names = Object.keys(series.operators);
  const by = (column) => names.map((name, at) => ({ name, data: series.operators[name][column], colour: OPERATOR_COLOURS[at % OPERATOR_COLOURS.length] }));
  const any = (column) => column && column.some(known);
  const limits = live.about.policy && live.about.policy.limits;
  return html`<div class="charts">
    <${Chart} ...${common} title="Rows per second" format=${short} series=${[{ name: "in", data: series.rate, colour: "--blue" }, { name: "results", data: series.rateOut, colour: "--green" }]} />
    <${Chart} ...${common} title="Latency and batch time" format=${span} series=${[
      { name: "latency, oldest row", data: series.lat, colour: "--red" }, { name: "batch", data: series.ms, colour: "--blue" }]} />
    <${Chart} ...${common} title="Instances" format=${(value) => (Number.isInteger(value) ? String(value) : "")} series=${by("instances")} stepped />
    ${any(series.busy) && html`<${Chart} ...${common} title="Utilisation" format=${percent} limits=${limits} series=${[{ name: "query", data: series.busy, colour: "--blue" },
      ...by("max").map((each) => ({ ...each, dash: [4, 3], colour: each.colour === "--blue" ? "--muted" : each.colour }))]} />`}
    ${any(series.wait) && html`<${Chart} ...${common} title="Backlog" format=${short} series=${[{ name: "rows", data: series.wait, colour: "--orange" }]} />`}
    <${Chart} ...${common} title="State" format=${size} series=${by("bytes")} />
  </div>
  <p class="note">Drag over a chart to look closer, double-click to go back. Lines from top to bottom: <i class="mark orange"></i> changes of the routing,
    <i class="mark red"></i> faults, <i class="mark green"></i> starts.</p>`;
}

const SPARK_BEFORE = ["latestOffset", "walCommit", "getBatch", "queryPlanning"], SPARK_AFTER = ["commitOffsets", "commitBatch"];

// As they follow each other; the progress has them in the order in which they first ended. A name that is not here is put where results are delivered.
const OURS = ["backfill", "plan", "job", "watermark", "flush", "commit", "replicas", "deliver", "collectGarbage"];
const place = (name) => (OURS.includes(name) ? OURS.indexOf(name) : OURS.indexOf("deliver"));

// The phases of a batch one after the other: Spark's before, Headrace's, Spark's after.
export function phases(batch) {
  const rows = [], spark = batch.durationMs || {};
  let at = 0;
  const add = (name, ms, who) => {
    if (ms > 0.05) {
      rows.push({ name, ms, who, at });
      at += ms;
    }
  };
  SPARK_BEFORE.forEach((name) => add(name, spark[name] || 0, "Spark"));
  let ours = 0;
  for (const [name, ms] of Object.entries(batch.phasesMs).sort(([one], [two]) => place(one) - place(two))) {
    add(name, ms, "Headrace");
    ours += ms;
  }
  add("between phases", Math.max(0, batch.batchMs - ours), "Headrace");
  SPARK_AFTER.forEach((name) => add(name, spark[name] || 0, "Spark"));
  return { rows, total: at };
}

function Waterfall({ query, live }) {
  const [version, setVersion] = useState("");
  const found = useAnswer(async () => (version === "" ? null : get(`queries/${query.id}/batches/${version}`)), [version, query.id]);
  const batch = version === "" ? live.last : found.data;
  const actions = html`<label class="field"><span>batch</span><input type="number" min="0" inputmode="numeric" placeholder=${`last (${live.last ? live.last.version : "–"})`} value=${version}
    onInput=${(event) => setVersion(event.target.value.replace(/\D/g, ""))} /></label>`;
  return html`<${Card} title="Phases of a batch" id="phases" actions=${actions}>
    ${found.error && html`<p class="said bad">${found.error}</p>`}
    ${batch ? html`<${Phases} batch=${batch} />` : html`<p class="empty">No batch yet.</p>`}
  </${Card}>`;
}

function Phases({ batch }) {
  const { rows, total } = phases(batch);
  return html`<p class="note">Batch ${batch.version}: ${whole(batch.rows)} rows, ${whole(batch.rowsOut)} results, ${span(batch.batchMs)} in Headrace${batch.durationMs && batch.durationMs.triggerExecution ? `, ${span(batch.durationMs.triggerExecution)} with Spark's own work` : ""}.</p>
  <ol class="waterfall">${rows.map((each) => html`<li><span class="what">${each.name}</span>
    <span class="lane"><i class=${each.who === "Spark" ? "spark" : "ours"} style=${{ marginLeft: `${(each.at / total) * 100}%`, width: `${Math.max(0.3, (each.ms / total) * 100)}%` }}></i></span>
    <span class="ms">${span(each.ms)}</span></li>`)}</ol>
  <p class="note"><i class="swatch ours"></i> Headrace <i class="swatch spark"></i> Spark</p>`;
}

export function instanceRows(live, operator) {
  const last = live.last;
  if (!last) return [];
  const busiest = Math.max(1e-9, ...last.instances.map((each) => each.wallSeconds));
  return last.instances.filter((each) => !operator || each.operator === operator).map((each) => ({ ...each, share: each.wallSeconds / busiest }));
}

const INSTANCES = [
  { name: "operator", value: (row) => row.operator },
  { name: "instance", value: (row) => row.instance, right: true },
  { name: "home", value: (row) => (row.executor && row.executor !== "driver" ? `${row.executor} on ${row.host}` : row.host || "–") },
  { name: "rows", value: (row) => whole(row.rows), right: true },
  { name: "results", value: (row) => whole(row.rowsOut), right: true },
  { name: "time", value: (row) => html`<${Bar} share=${row.share} label=${span(row.wallSeconds * 1000)} /> ${span(row.wallSeconds * 1000)}`, right: true },
  { name: "state", value: (row) => `${short(row.stateRows)} rows, ${size(row.stateBytes)}`, right: true },
  { name: "runs", value: (row) => row.runs, right: true },
  { name: "fetched", value: (row) => (row.bytesFetched ? size(row.bytesFetched) : "–"), right: true },
];

function Node({ node, live }) {
  return html`<${Card} title=${node.title} note=${node.runs === "Python" ? "Python over Arrow, routed by key" : "Spark, in the JVM"} id="node">
    <pre tabindex="0">${node.plan}</pre>
    ${node.kind === "stateful" && html`<${Table} columns=${INSTANCES} rows=${instanceRows(live, node.id)} label=${`instances of ${node.id}`} />`}
  </${Card}>`;
}

const EVENTS = [
  { name: "when", value: (row) => clock(row.t) },
  { name: "what", value: (row) => html`<span class=${`kind ${isFault(row) ? "bad" : row.kind}`}>${title(row)}</span>` },
  { name: "", value: (row) => sentence(row), wide: true },
];

function Page({ query, live }) {
  const graph = live.about.graph;
  const [picked, setPicked] = useState(null);
  const node = graph && graph.nodes.find((each) => each.id === picked);
  if (!graph) return html`<p class="said">This checkpoint has no history: its query was started without <code>headrace.history</code>, or by an older Headrace.</p>`;
  const told = live.events.filter((each) => each.kind !== "checkpoint" && each.kind !== "decision").slice(-EVENTS_SHOWN).reverse();
  return html`
    ${["warn", "bad"].includes(query.level) && html`<p class=${`said ${query.level}`} role="status">${query.health}</p>`}
    <${Tiles} query=${query} live=${live} />
    <${Card} title="Graph" note="Rates of the last batch; the hotter the colour, the busier the operator. Choose a box to see what runs in it." id="graph" wide>
      <${Graph} graph=${graph} now=${present(live, query)} picked=${picked} onPick=${(id) => setPicked(id === picked ? null : id)} />
    </${Card}>
    ${node && html`<${Node} node=${node} live=${live} />`}
    <${Card} title="Series" id="series" wide><${Series} live=${live} /></${Card}>
    <${Waterfall} query=${query} live=${live} />
    <${Card} title="Instances" id="instances"><${Table} columns=${INSTANCES} rows=${instanceRows(live)} label="instances" empty="No batch yet." /></${Card}>
    <${Card} title="Changes and faults" id="events"><${Table} columns=${EVENTS} rows=${told} label="changes and faults" empty="Nothing has changed yet." /></${Card}>`;
}

export const query = { id: "query", title: "Query", Page };
