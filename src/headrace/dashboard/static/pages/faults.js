// Faults and load: executors, losses and recoveries, checkpoints, copies of state, and what is dropped. What a query does not have is absent.

import { get, post } from "../api.js";
import { sentence, title, isFault } from "../events.js";
import { beat } from "../live.js";
import { Act, Bar, Card, clock, counted, html, known, percent, Said, short, size, span, Table, Tile, useAnswer, useState, whole } from "../ui.js";

function Executors({ query, executors }) {
  const [said, setSaid] = useState(null);
  const columns = [
    { name: "executor", value: (row) => row.id },
    { name: "host", value: (row) => row.host },
    { name: "cores", value: (row) => row.cores, right: true },
    { name: "instances", value: (row) => row.instances, right: true },
    { name: "state", value: (row) => html`<span class=${`state ${row.state === "live" ? "running" : "gone"}`}>${row.state}</span>` },
    ...(executors.some((each) => known(each.heardS)) ? [{ name: "last sign of life", value: (row) => `${known(row.heardS) ? `${span(row.heardS * 1000)} ago` : "–"}${known(row.silentS) ? `, asked for ${span(row.silentS * 1000)}` : ""}`, right: true }] : []),
    { name: "", value: (row) => html`<${Act} label="let go" title="hand its state over, then let Spark decommission it" said=${setSaid}
      run=${() => post(`queries/${query.id}/do`, { do: "decommission", executor: row.id }).then((answer) => `Handed over: ${answer.leaving.join(", ")}.`)} />` },
  ];
  return html`<${Card} title="Executors" id="executors"><${Table} columns=${columns} rows=${executors} label="executors" empty="No executor lives." keyOf=${(row) => row.id} />
    <${Said} said=${said} close=${() => setSaid(null)} /></${Card}>`;
}

const COPIES = [
  { name: "operator", value: (row) => row.operator },
  { name: "instance", value: (row) => row.instance, right: true },
  { name: "home", value: (row) => `${row.home} on ${row.host}` },
  { name: "copies", value: (row) => (row.peers.length ? row.peers.map((each) => `${each.id} on ${each.host}${each.complete ? "" : " (being made)"}`).join(", ") : "–"), wide: true },
  { name: "complete", value: (row) => html`<span class=${row.peers.filter((each) => each.complete).length < row.wanted ? "kind bad" : ""}>${row.peers.filter((each) => each.complete).length} of ${row.wanted}</span>`, right: true },
];

// Fault zones are hosts, if the executors are on more hosts than an instance has copies, and executors otherwise.
function zones(copies) {
  const hosts = new Set(copies.flatMap((row) => [row.host, ...row.peers.map((each) => each.host)]));
  const apart = copies.every((row) => new Set([row.host, ...row.peers.map((each) => each.host)]).size === 1 + row.peers.length);
  return apart ? `Home and copies of each instance are on different hosts (${counted(hosts.size, "host")} in all): losing one host loses no state.` : "Some home shares its host with a copy: copies cover the loss of executors, not of every host.";
}

const RECOVERIES = [
  { name: "when", value: (row) => clock(row.t) },
  { name: "batch", value: (row) => row.v, right: true },
  { name: "executors", value: (row) => `${row.executors.join(", ") || "?"} ${row.hung ? "did not answer" : "lost"}`, wide: true },
  { name: "after", value: (row) => span(row.afterMs), right: true },
  { name: "recovered in", value: (row) => span(row.recoveredMs), right: true },
];

const CHECKPOINTS = [
  { name: "when", value: (row) => clock(row.t) },
  { name: "version", value: (row) => row.version, right: true },
  { name: "took", value: (row) => span(row.tookMs), right: true },
  { name: "waited", value: (row) => span(row.waitedMs), right: true },
  { name: "shipped", value: (row) => size(row.bytesShipped), right: true },
  { name: "state", value: (row) => size(row.bytesState), right: true },
];

const EVENTS = [
  { name: "when", value: (row) => clock(row.t) },
  { name: "what", value: (row) => html`<span class=${`kind ${isFault(row) ? "bad" : row.kind}`}>${title(row)}</span>` },
  { name: "", value: (row) => sentence(row), wide: true },
];

function Shedding({ found }) {
  const { shedding, shed } = found, places = Object.entries((shed && shed.places) || {});
  const now = shedding.places || {};
  const columns = [
    { name: "branch", value: ([name]) => name, wide: true },
    { name: "arrived", value: ([, each]) => whole(each.arrived), right: true },
    { name: "dropped", value: ([, each]) => html`${whole(each.shed)} (${percent(each.arrived ? each.shed / each.arrived : 0, 1)})`, right: true },
    { name: "in the last batch", value: ([name]) => (now[name] ? `${whole(now[name].shed)} of ${whole(now[name].arrived)}` : "–"), right: true },
  ];
  const sinks = [
    { name: "sink", value: (row) => row.sink, wide: true },
    { name: "weight", value: (row) => short(row.weight), right: true },
    { name: "delivered", value: (row) => html`<${Bar} share=${row.delivered} /> ${percent(row.delivered, 1)}`, right: true },
  ];
  return html`<${Card} title="Load shedding" id="shedding" note=${shedding.plan === null ? "No plan of drops is in force." : `Plan ${JSON.stringify(shedding.plan)} is in force; ${known(shedding.deadlineMs) ? `deadline ${span(shedding.deadlineMs)}, ` : ""}the batch was expected to take ${span(shedding.expectedMs)}.`}>
    <h3>By branch, over the last ${counted((shed && shed.batches) || 0, "batch").replace("batchs", "batches")}</h3>
    <${Table} columns=${columns} rows=${places} label="drops by branch" empty="No branch may drop rows." />
    <h3>By sink</h3><${Table} columns=${sinks} rows=${shedding.sinks} label="delivered share by sink" />
  </${Card}>`;
}

const GAPS = [
  { name: "operator", value: (row) => row.operator },
  { name: "versions", value: (row) => `${row.first} to ${row.last}` },
  { name: "rows missing", value: (row) => (known(row.rows) ? whole(row.rows) : "unknown"), right: true },
];

function Page({ query, live }) {
  const { data: found, error } = useAnswer(() => get(`queries/${query.id}/faults`), [query.id, beat(live), live.events.length, query.state]);
  if (error && !found) return html`<p class="said bad">${error}</p>`;
  if (!found) return html`<p class="loading">Loading …</p>`;
  const faults = found.events.filter(isFault), last = found.checkpoint;
  const newest = found.checkpoints && found.checkpoints.at(-1);
  return html`
    <div class="tiles">
      ${(found.executors || found.recoveries.length > 0) && html`<${Tile} value=${whole(found.recoveries.length)} label=${found.recoveries.length === 1 ? `recovery, in ${span(found.recoveries[0].recoveredMs)}` : found.recoveries.length ? `recoveries, the longest in ${span(Math.max(...found.recoveries.map((each) => each.recoveredMs)))}` : "recoveries"} />`}
      ${found.executors && html`<${Tile} value=${whole(found.executors.length)} label="executors" />`}
      ${newest && html`<${Tile} value=${query.state === "running" ? span(Date.now() - newest.t * 1000) : clock(newest.t)} label=${query.state === "running" ? "since the last checkpoint" : "last checkpoint"} />`}
      ${found.replicas && html`<${Tile} value=${`${found.replicas.copies - found.replicas.missing} of ${found.replicas.copies}`} label="copies of state" level=${found.replicas.missing ? "warn" : ""} />`}
      ${known(found.withoutRedundancyMs) && html`<${Tile} value=${span(found.withoutRedundancyMs)} label="without full redundancy, all in all" />`}
      ${found.shedding && html`<${Tile} value=${percent(query.share, 1)} label="of the rows delivered" level=${query.share < 0.9995 ? "warn" : ""} />`}
    </div>
    <${Card} title="Promise" id="promise"><ul class="plain">${found.safety.map((each) => html`<li>${each}</li>`)}</ul></${Card}>
    ${found.executors && html`<${Executors} query=${query} executors=${found.executors} />`}
    ${found.copies && html`<${Card} title="Copies of state" id="copies" note=${zones(found.copies)}><${Table} columns=${COPIES} rows=${found.copies} label="copies of each instance" keyOf=${(row) => `${row.operator}-${row.instance}`} /></${Card}>`}
    ${found.shedding && html`<${Shedding} found=${found} />`}
    ${found.recoveries.length > 0 && html`<${Card} title="Recoveries" id="recoveries"><${Table} columns=${RECOVERIES} rows=${[...found.recoveries].reverse()} label="recoveries" /></${Card}>`}
    ${found.gaps.length > 0 && html`<${Card} title="Gaps" id="gaps"><${Table} columns=${GAPS} rows=${found.gaps} label="gaps" /></${Card}>`}
    ${found.checkpoints && html`<${Card} title="Checkpoints" id="checkpoints" note=${last ? `The last one: version ${last.version}, ${counted(last.units, "unit")}.` : ""}><${Table} columns=${CHECKPOINTS} rows=${found.checkpoints.slice(-20).reverse()} label="checkpoints" /></${Card}>`}
    <${Card} title="What happened" id="happened" note=${faults.length ? counted(faults.length, "fault") : "No fault was seen."}><${Table} columns=${EVENTS} rows=${found.events.slice(-60).reverse()} label="starts, faults and ends" empty="Nothing yet." /></${Card}>`;
}

export const faults = { id: "faults", title: "Faults and load", Page };
