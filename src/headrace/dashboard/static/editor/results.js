// What is known about a text: its streams, its mistakes, its plan and cost, and the first results of a sample.

import { post } from "../api.js";
import { Graph } from "../graph.js";
import { Card, counted, html, Table, useState } from "../ui.js";
import { firstError } from "./launch.js";
import { PAGE } from "./state.js";


export function Streams({ streams, onUse }) {
  if (!streams.length) {
    return html`<${Card} title="Streams" id="streams"><p class="empty">This program has no stream yet. Streams are its streaming temporary views:
      <code>df.createOrReplaceTempView("calls")</code> or <code>hr.editor(spark, calls=df)</code>.</p></${Card}>`;
  }
  return html`<${Card} title="Streams" note="press a name to use it" id="streams">
    ${streams.map((stream) => html`<details key=${stream.name} open=${streams.length < 4}><summary>${stream.name}</summary>
      <p class="note">${stream.sources.join(", ")}</p>
      <ul class="columns"><li><button type="button" class="chip" onClick=${() => onUse(stream.name)}>${stream.name}</button></li>
      ${stream.columns.map((each) => html`<li><button type="button" class="chip" onClick=${() => onUse(each.name)}>${each.name}</button>
        <span class="quiet">${each.type}${each.delayMs === null ? "" : ` · watermark ${each.delayMs / 1000} s`}</span></li>`)}</ul></details>`)}
  </${Card}>`;
}

export function Checked({ found, busy, onCheck }) {
  if (!found) return html`<div class="said" role="status" id="checked">${busy ? "Checking …" : "Nothing to check yet."}</div>`;
  if (found.waits) return html`<div class="said warn" role="status" id="checked"><span>${found.waits}.</span><button type="button" onClick=${onCheck}>check</button></div>`;
  if (found.errors.length) {
    return html`<div class="said bad" role="status" id="checked"><ul class="plain">${found.errors.map((each) => html`<li>${each.line > 0 && html`<b>line ${each.line}: </b>`}${each.message}</li>`)}</ul></div>`;
  }
  const parts = Object.entries(found.results).map(([name, columns]) => `${name ? `${name}: ` : ""}${columns.map((each) => `${each.name} ${each.type}`).join(", ")}`);
  const operators = found.stateful.length ? `${counted(found.stateful.length, "operator")} with state` : "no state";
  return html`<div class="said good" role="status" id="checked"><span><b>${busy ? "Checking …" : "This query can run"}</b>, ${operators}. Its columns: ${parts.join("; ")}</span></div>`;
}

export function Plan({ found }) {
  const [picked, setPicked] = useState(null);
  const node = found.graph.nodes.find((each) => each.id === picked);
  return html`<${Card} title="Plan" note="Choose a box to see what runs in it, in the JVM or in Python." id="plan" wide>
    <${Graph} graph=${found.graph} now=${{ operators: {}, sources: {}, sinks: {}, planned: found.instances }} picked=${picked} onPick=${(id) => setPicked(id === picked ? null : id)} />
    ${node && html`<h3>${node.title}</h3><pre tabindex="0">${node.plan}</pre>`}
    <details><summary>which part runs where</summary><pre tabindex="0">${found.plan}</pre></details>
    ${found.cost && html`<details><summary>what it costs, at 10,000 rows a second</summary><pre tabindex="0" class="wide-text">${found.cost}</pre></details>`}
  </${Card}>`;
}

function Results({ table }) {
  const columns = [
    { name: "batch", value: (row) => row.batch, right: true },
    ...table.columns.map((each, at) => ({
      name: each.name,
      value: (row) => (row.cells[at] === null ? html`<i class="quiet">null</i>` : row.cells[at]),
      right: /int|double|float|decimal|long/.test(each.type) && !/</.test(each.type),
    })),
  ];
  const rows = table.rows.map((cells, at) => ({ cells, batch: table.batches[at] }));
  return html`${table.result && html`<h3>${table.result}</h3>`}
    <p class="note">The sample: ${table.sample} ${table.note}</p>
    <${Table} columns=${columns} rows=${rows} label=${`first results ${table.result}`} empty=${table.rowsIn ? "These rows gave no result." : "The sources gave no rows in this time."} />`;
}

export function Sample({ wanted, ready }) {
  const [busy, setBusy] = useState(false);
  const [found, setFound] = useState(null);
  const run = async () => {
    setBusy(true);
    setFound(null);
    try {
      setFound({ tables: firstError(await post("editor/sample", { page: PAGE, ...wanted })).tables, text: wanted.text });
    } catch (error) {
      setFound({ error: error.message });
    }
    setBusy(false);
  };
  const cancel = () => post("editor/cancel", { page: PAGE }).catch(() => {});
  const old = found && found.tables && found.text !== wanted.text;
  return html`<${Card} title="Sample" note="runs the query on the first rows of its streams, in a checkpoint of its own that is removed" id="sample" wide
      actions=${html`<button type="button" class="primary" disabled=${!ready || busy} onClick=${run}>run on a sample</button>${busy && html`<button type="button" onClick=${cancel}>cancel</button>`}`}>
    ${busy && html`<p class="loading" role="status">Running, at most 20 s …</p>`}
    ${found && found.error && html`<p class="said bad" role="status">${found.error}</p>`}
    ${old && html`<p class="note">The text has changed since.</p>`}
    ${found && found.tables && found.tables.map((table) => html`<${Results} key=${table.result} table=${table} />`)}
  </${Card}>`;
}
