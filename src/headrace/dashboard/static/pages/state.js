// State: the heat map of slots and who owns them, the runs, and what is in the state at any kept version.

import { get, post } from "../api.js";
import { beat } from "../live.js";
import { ownersOf, SlotMap, SLOTS } from "../slots.js";
import { Act, Bar, Card, Choice, clock, counted, html, hue, Input, percent, Said, short, size, span, Table, useAnswer, useEffect, useState, whole } from "../ui.js";

const loadOf = (map, ranges) => ranges.reduce((sum, [low, high]) => {
  for (let slot = Math.floor(low); slot < high; slot += 1) sum += map.rows[slot];
  return sum;
}, 0);

// The largest piece of a slot that one instance owns: [instance, low, high].
const pieceOf = (map, slot) => map.ranges
  .flatMap((ranges, instance) => ranges.map(([low, high]) => [instance, Math.max(low, slot), Math.min(high, slot + 1)]))
  .reduce((best, each) => (each[2] - each[1] > best[2] - best[1] ? each : best), [0, slot, slot]);

function Owners({ map, live, target }) {
  const total = map.rows.reduce((sum, each) => sum + each, 0) || 1;
  const rows = map.ranges.map((ranges, instance) => ({
    instance, slots: ranges.reduce((sum, [low, high]) => sum + high - low, 0), share: loadOf(map, ranges) / total, ranges: ranges.length,
    work: map.instances.find((each) => each.instance === instance), home: map.homes[instance],
  }));
  const most = Math.max(0.001, ...rows.map((each) => each.share));
  const columns = [
    { name: "instance", value: (row) => html`<span data-instance=${row.instance} class=${target ? "drop" : ""}><i class="owner" style=${{ background: `hsl(${hue(row.instance)} 60% 50%)` }}></i> ${row.instance}</span>` },
    { name: "home", value: (row) => row.home || (row.work && row.work.host) || "–" },
    { name: "slots", value: (row) => `${Number.isInteger(row.slots) ? whole(row.slots) : short(row.slots)}${row.ranges > 1 ? ` in ${row.ranges} ranges` : ""}`, right: true },
    { name: "share of rows", value: (row) => html`<${Bar} share=${row.share / most} label=${percent(row.share)} /> ${percent(row.share)}`, right: true },
    { name: "rows", value: (row) => whole(row.work && row.work.stateRows), right: true },
    { name: "bytes", value: (row) => size(row.work && row.work.stateBytes), right: true },
    { name: "runs", value: (row) => whole(row.work && row.work.runs), right: true },
    { name: "busy", value: (row) => span(row.work && row.work.wallSeconds * 1000), right: true },
  ];
  return html`<${Table} columns=${columns} rows=${rows} label="instances and their slots" keyOf=${(row) => row.instance} />`;
}

function Slots({ query, live, operator, setOperator }) {
  const { data: map, error, again } = useAnswer(() => get(`queries/${query.id}/slots`, { operator }), [query.id, operator, beat(live)]);
  const [picked, setPicked] = useState(null);
  const [said, setSaid] = useState(null);
  useEffect(() => setPicked(null), [operator]);
  if (error && !map) return html`<${Card} title="Slots" id="slots"><p class="empty">${error}</p></${Card}>`;
  if (!map) return null;
  const running = query.state === "running";
  const send = (body) => post(`queries/${query.id}/do`, { ...body, operator: map.operator });
  const move = async (to) => {
    await send({ do: "move", slots: [picked], to });
    again();
    return `${slotsText(picked)} of ${map.operator} belong${picked[1] - picked[0] === 1 ? "s" : ""} to instance ${to} from the next batch on.`;
  };
  const split = async () => {
    const [owner, low, high] = pieceOf(map, picked[0]);
    const loads = map.ranges.map((ranges) => loadOf(map, ranges));
    const to = loads.map((_, instance) => instance).filter((each) => each !== owner).reduce((least, each) => (loads[each] < loads[least] ? each : least));
    await send({ do: "move", slots: [[(low + high) / 2, high]], to });
    again();
    return `Slot ${picked[0]} is cut: half of what instance ${owner} had of its keys belongs to instance ${to} from the next batch on.`;
  };
  const dropped = (to) => move(to).then((text) => setSaid({ good: true, text }), (refused) => setSaid({ good: false, text: refused.message }));
  const dry = async () => {
    const { preview } = await post(`queries/${query.id}/preview`, { do: "rebalance", operator: map.operator });
    const one = preview[map.operator];
    return `Dry run: rebalancing would move ${counted(one.slotsMoved, "slot")}; shares of the ${one.measured ? "measured work" : "slots"} ${one.sharesBefore.map((each) => percent(each)).join(", ")} → ${one.shares.map((each) => percent(each)).join(", ")}.`;
  };
  const owners = picked && [...new Set(ownersOf(map.ranges).slice(picked[0], picked[1]))];
  const total = map.rows.reduce((sum, each) => sum + each, 0) || 1;
  const note = `Hue: owner; depth: rows over the last ${counted(map.batches, "batch").replace("batchs", "batches")}. Routing epoch ${map.epoch}.${map.spread.length ? " Framed slots are spread over all instances." : ""}`;
  const actions = map.operators.length > 1 && html`<${Choice} label="operator" value=${map.operator} options=${map.operators} onChange=${setOperator} />`;
  return html`<${Card} title=${`Slots of ${map.operator}`} note=${note} id="slots" actions=${actions}>
    <div class="split"><div><${SlotMap} map=${map} picked=${picked} onPick=${setPicked} onDrop=${running ? dropped : null} />
      ${running && html`<div class="row" role="group" aria-label="what to do with the slots">
        ${picked ? html`<span>${slotsText(picked)}: ${percent(loadOf(map, [picked]) / total, 1)} of the load, of ${counted(owners.length, "instance")} (${owners.join(", ")})</span>
          ${map.ranges.map((_, to) => html`<span data-instance=${to}><${Act} label=${`move to ${to}`} run=${() => move(to)} said=${setSaid} disabled=${owners.length === 1 && owners[0] === to} /></span>`)}
          ${picked[1] - picked[0] === 1 && map.ranges.length > 1 && html`<${Act} label="split" title="cut this slot in two: half of its keys go to the instance with the least load" run=${split} said=${setSaid} />`}
          ${map.spreads && html`<${Act} label="spread" title="distribute the rows of these slots over all instances; for time windows in append mode" said=${setSaid}
            run=${() => send({ do: "spread", slots: [picked] }).then(() => (again(), `${slotsText(picked)} ${picked[1] - picked[0] === 1 ? "is" : "are"} spread over all instances from the next batch on.`))} />`}`
          : html`<span class="quiet">Click a slot or drag over several; then move them, or drag them to an instance.</span>`}
        ${map.spread.length > 0 && html`<${Act} label="end spreading" said=${setSaid} run=${() => send({ do: "spread", slots: [] }).then(() => (again(), "No slot is spread any more, from the next batch on."))} />`}
        <${Act} label="dry run" title="what rebalancing would do" run=${dry} said=${setSaid} />
        <${Act} label="rebalance" said=${setSaid} run=${() => send({ do: "rebalance" }).then(() => (again(), "The slots are shared out anew, from the next batch on."))} />
      </div>`}
      <${Said} said=${said} close=${() => setSaid(null)} /></div>
    <${Owners} map=${map} live=${live} target=${running && picked} /></div>
  </${Card}>`;
}

const slotsText = ([low, high]) => (high - low === 1 ? `slot ${low}` : `slots ${low}–${high - 1}`);

const RUNS = [
  { name: "run", value: (row) => html`<code>${row.file}</code>`, wide: true },
  { name: "rows", value: (row) => whole(row.rows), right: true },
  { name: "bytes", value: (row) => size(row.bytes), right: true },
  { name: "slots", value: (row) => (row.lo === 0 && row.hi === SLOTS ? "all" : slotsText([row.lo, row.hi])), right: true },
  { name: "age", value: (row) => counted(row.age, "version"), right: true },
];

function Runs({ query, version }) {
  const { data, error } = useAnswer(() => get(`queries/${query.id}/stores`, { version }), [query.id, version]);
  if (error) return html`<${Card} title="Runs" id="runs"><p class="empty">${error}</p></${Card}>`;
  if (!data) return null;
  return data.stores.map((store) => html`<${Card} title=${`Runs of ${store.store}`} id=${`runs-${store.store}`}
    note=${`Version ${data.version}: ${whole(store.rows)} rows, ${size(store.bytes)}, ${counted(new Set(store.runs.map((each) => each.file)).size, "file")}; over a slot lie ${store.depthMean} runs on average, at most ${store.depthMax}. Columns: ${store.columns.join(", ")}`}>
    <details><summary>${counted(store.runs.length, "run")}</summary><${Table} columns=${RUNS} rows=${store.runs} label=${`runs of ${store.store}`} empty="No runs: the state is empty." /></details>
  </${Card}>`);
}

const cell = (value) => (value === null || value === undefined ? html`<span class="quiet">null</span>` : typeof value === "object" ? JSON.stringify(value) : String(value));
const LIMIT = 20;

function Browse({ query, stores, versions, version, setVersion }) {
  const [store, setStore] = useState(stores[0].store);
  const chosen = stores.find((each) => each.store === store) || stores[0];
  const [typed, setTyped] = useState({});
  const [wanted, setWanted] = useState({});
  const [offset, setOffset] = useState(0);
  const asked = Object.fromEntries(Object.entries(wanted).filter(([, value]) => value !== ""));
  const { data, error, busy } = useAnswer(
    () => get(`queries/${query.id}/table`, { store: chosen.store, version, offset, limit: LIMIT, where: JSON.stringify(asked) }), [query.id, chosen.store, version, offset, JSON.stringify(asked)]);
  const look = (event) => {
    event.preventDefault();
    setOffset(0);
    setWanted(typed);
  };
  const columns = data ? data.columns.map((each, at) => ({ name: each.name, value: (row) => cell(row[at]), right: /^(u?int|double|float|decimal)/.test(each.type), wide: true })) : [];
  return html`<${Card} title="Browse and look up" id="browse" note=${'The merged state, one row per key (and pane). Give values to see only the rows that have them: null for none, "null" for that text.'}>
    <form class="row" onSubmit=${look}>
      ${stores.length > 1 && html`<${Choice} label="state of" value=${chosen.store} options=${stores.map((each) => each.store)} onChange=${(name) => (setStore(name), setOffset(0), setWanted({}), setTyped({}))} />`}
      <${Choice} label="version" value=${version ?? ""} options=${[["", "newest"], ...versions.map((each) => [each.version, `${each.version} · ${clock(each.writtenS)}`]).reverse()]} onChange=${(value) => (setVersion(value === "" ? null : Number(value)), setOffset(0))} />
      ${chosen.keys.map((name) => html`<${Input} label=${name} value=${typed[name] || ""} placeholder="any" onInput=${(value) => setTyped({ ...typed, [name]: value })} />`)}
      <button class="primary" type="submit">look up</button>
    </form>
    ${error && html`<p class="said bad" role="alert">${error}</p>`}
    ${data && html`<div class=${busy ? "waiting" : ""}><${Table} columns=${columns} rows=${data.rows} label="state" empty="No rows." />
      <div class="row"><span class="note">Version ${data.version}: ${data.rows.length ? `rows ${whole(data.offset + 1)} to ${whole(data.offset + data.rows.length)} of ${data.complete ? "" : "at least "}${whole(data.total)}` : "no rows"}</span>
        <button type="button" disabled=${offset === 0} onClick=${() => setOffset(Math.max(0, offset - LIMIT))}>back</button>
        <button type="button" disabled=${data.offset + data.rows.length >= data.total} onClick=${() => setOffset(offset + LIMIT)}>more</button></div></div>`}
  </${Card}>`;
}

function Difference({ query, stores, versions }) {
  const [store, setStore] = useState(stores[0].store);
  const [pair, setPair] = useState(["", ""]);
  const [found, setFound] = useState(null);
  const [said, setSaid] = useState(null);
  const options = versions.map((each) => [each.version, `${each.version} · ${clock(each.writtenS)}`]);
  const chosen = (value) => (value === "" ? "" : Number(value));
  const run = async () => {
    setFound(null);
    const answer = await get(`queries/${query.id}/difference`, { store, before: pair[0], after: pair[1] });
    setFound(answer);
    return `Version ${answer.before} to ${answer.after}: ${whole(answer.came)} came, ${whole(answer.gone)} went, ${whole(answer.changed)} changed, ${whole(answer.same)} stayed${answer.complete ? "" : ` (slots 0–${answer.slots - 1} only: there was no time for more)`}.`;
  };
  const names = found ? found.columns.map((each) => each.name) : [];
  const columns = found && [
    { name: "", value: (row) => html`<span class=${`kind ${row.kind}`}>${row.kind}</span>` },
    ...names.slice(0, found.keys).map((name, at) => ({ name, value: (row) => cell(row.key[at]) })),
    ...names.slice(found.keys).map((name, at) => ({ name, value: (row) => (row.kind === "changed" && JSON.stringify(row.before[at]) !== JSON.stringify(row.after[at])
      ? html`<del>${cell(row.before[at])}</del> ${cell(row.after[at])}` : cell((row.after || row.before)[at])), right: true })),
  ];
  return html`<${Card} title="Difference of two versions" id="difference">
    <div class="row">
      ${stores.length > 1 && html`<${Choice} label="state of" value=${store} options=${stores.map((each) => each.store)} onChange=${setStore} />`}
      <${Choice} label="from" value=${pair[0]} options=${[["", "oldest kept"], ...options]} onChange=${(value) => setPair([chosen(value), pair[1]])} />
      <${Choice} label="to" value=${pair[1]} options=${[["", "newest"], ...options]} onChange=${(value) => setPair([pair[0], chosen(value)])} />
      <${Act} label="compare" primary run=${run} said=${setSaid} /></div>
    <${Said} said=${said} close=${() => setSaid(null)} />
    ${found && html`<${Table} columns=${columns} rows=${found.rows} label="differences" empty="Nothing differs." />`}
  </${Card}>`;
}

function Page({ query, live }) {
  const [operator, setOperator] = useState(null);
  const [version, setVersion] = useState(null);
  const kept = useAnswer(() => get(`queries/${query.id}/versions`), [query.id, beat(live)]);
  const stores = useAnswer(() => get(`queries/${query.id}/stores`), [query.id, Boolean(live.last)]);
  const versions = kept.data ? kept.data.versions : [];
  const some = stores.data && stores.data.stores.length > 0 && versions.length > 0;
  return html`<${Slots} query=${query} live=${live} operator=${operator} setOperator=${setOperator} />
    ${some ? html`<${Browse} query=${query} stores=${stores.data.stores} versions=${versions} version=${version} setVersion=${setVersion} />
      ${versions.length > 1 && html`<${Difference} key=${versions.length > 1} query=${query} stores=${stores.data.stores} versions=${versions} />`}
      <${Runs} query=${query} version=${version} />`
    : html`<${Card} title="State" id="state"><p class="empty">${stores.error || (stores.busy ? "Loading …" : "No version is kept yet.")}</p></${Card}>`}`;
}

export const state = { id: "state", title: "State", Page };
