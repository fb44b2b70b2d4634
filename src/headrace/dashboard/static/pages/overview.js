// All queries of the program, or of the command, in one line each.

import { Card, counted, html, percent, short, span, State, Table } from "../ui.js";

const HEALTH = { good: "✓", warn: "!", bad: "✕", off: "–" };

const latency = (row) => (row.latency ? `${span(row.latency.p50)} · ${span(row.latency.p95)} · ${span(row.latency.p99)}` : "–");

const COLUMNS = [
  { name: "query", value: (row) => html`<a href=${`#/${row.id}`}>${row.name}</a><small class="path">${row.location}</small>`, wide: true },
  { name: "state", value: (row) => html`<${State} state=${row.state} />` },
  { name: "health", value: (row) => html`<span class=${`health ${row.level}`}><b aria-hidden="true">${HEALTH[row.level]}</b> ${row.health}</span>`, wide: true },
  { name: "rows/s", value: (row) => short(row.state === "running" ? row.rate : null), right: true },
  { name: "latency 50 · 95 · 99 %", value: latency, right: true },
  { name: "backlog", value: (row) => short(row.backlog), right: true },
  { name: "delivered", value: (row) => percent(row.share, 1), right: true },
  { name: "instances", value: (row) => Object.values(row.instances).join(", ") || "–", right: true },
];

function Page({ queries }) {
  const running = queries.filter((each) => each.state === "running");
  const note = `${counted(queries.length, "query").replace("querys", "queries")}, ${running.length} running`;
  return html`<${Card} title="Queries" note=${note} id="queries">
    <${Table} columns=${COLUMNS} rows=${queries} label="queries" empty="No query has started yet." keyOf=${(row) => row.id} />
  </${Card}>`;
}

export const overview = { id: "overview", title: "Overview", Page };
