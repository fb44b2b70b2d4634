// Elasticity: utilisation against the policy's limits, every decision with its reason, changes by hand, and what another policy would have done.

import { get, post } from "../api.js";
import { Chart } from "../chart.js";
import { marked } from "../events.js";
import { beat } from "../live.js";
import { Act, Card, Choice, clock, counted, html, Input, known, percent, Said, short, span, Table, Tile, useAnswer, useState, whole } from "../ui.js";

const PROTOCOLS = ["auto", "state recreation", "window recreation", "merge", "buffering"];
const COLOURS = ["--orange", "--green", "--purple", "--red", "--muted"];
const SHOWN = 60;

function ByHand({ query, live, now, again }) {
  const operators = Object.keys(now.routing);
  const [operator, setOperator] = useState("");
  const counts = Object.entries(now.routing).filter(([name]) => !operator || name === operator).map(([, each]) => each.ranges.length);
  const [count, setCount] = useState("");
  const [protocol, setProtocol] = useState("auto");
  const [said, setSaid] = useState(null);
  const wanted = Number(count || counts[0]);
  const rescale = { do: "rescale", instances: wanted, operator: operator || null };
  const send = async (body) => {
    const before = { ...now.routing };
    const { routing } = await post(`queries/${query.id}/do`, { ...body, protocol: body.do === "auto" || protocol === "auto" ? null : protocol });
    again();
    return Object.entries(routing).filter(([name]) => !operator || name === operator).map(([name, each]) =>
      each.epoch === before[name].epoch ? `${name}: unchanged` : `${name}: ${before[name].ranges.length} → ${counted(each.ranges.length, "instance")} from the next batch on`).join("; ") + ".";
  };
  const dry = async () => {
    const { preview } = await post(`queries/${query.id}/preview`, rescale);
    return Object.entries(preview).map(([name, each]) => `${name}: ${each.instancesBefore} → ${counted(each.instances, "instance")} would move ${counted(each.slotsMoved, "slot")}; shares of the ${each.measured ? "measured work" : "slots"} ${each.shares.map((share) => percent(share)).join(", ")}`).join("; ") + ". Nothing was changed.";
  };
  return html`<${Card} title="Change it by hand" id="hand" note=${now.policy ? "The policy leaves alone what you change, until you hand it back." : "From the next batch on; no restart, the same results."}>
    <div class="row">
      ${operators.length > 1 && html`<${Choice} label="operator" value=${operator} options=${[["", "all"], ...operators]} onChange=${setOperator} />`}
      <button type="button" aria-label="one instance less" disabled=${wanted <= 1} onClick=${() => setCount(String(wanted - 1))}>–</button>
      <${Input} label="instances" type="number" min="1" max="4096" value=${count === "" ? counts[0] : count} onInput=${setCount} />
      <button type="button" aria-label="one instance more" onClick=${() => setCount(String(wanted + 1))}>+</button>
      <${Choice} label="protocol" value=${protocol} options=${PROTOCOLS} onChange=${setProtocol} />
      <${Act} label="dry run" run=${dry} said=${setSaid} title="say what would change, and change nothing" />
      <${Act} label="rescale" primary run=${() => send(rescale)} said=${setSaid} disabled=${!(wanted >= 1)} />
      <${Act} label="rebalance" run=${() => send({ do: "rebalance", operator: operator || null })} said=${setSaid} />
      ${now.policy && html`<${Act} label="hand back to the policy" said=${setSaid} disabled=${!now.policy.overridden.length}
        run=${() => post(`queries/${query.id}/do`, { do: "auto", operator: operator || null }).then(() => (again(), "The policy decides again."))} />`}
    </div>
    ${now.policy && now.policy.overridden.length > 0 && html`<p class="note">Left alone by the policy: ${now.policy.overridden.join(", ")}.</p>`}
    <${Said} said=${said} close=${() => setSaid(null)} />
  </${Card}>`;
}

function Policy({ about, now }) {
  const { settings, limits } = (now && now.policy) || about.policy;
  const cooling = (now && now.policy && now.policy.coolingS) || {};
  const others = Object.entries(settings).filter(([name]) => !["policy", "min", "max", "cooldown_s", "period_s", "dry_run", ...Object.keys(limits)].includes(name));
  return html`<div class="tiles">
    <${Tile} value=${settings.policy} label=${settings.dry_run ? "policy, dry run: it decides and changes nothing" : "policy"} />
    <${Tile} value=${`${settings.min} to ${settings.max}`} label="instances of an operator" />
    ${Object.keys(limits).length > 0 && html`<${Tile} value=${Object.values(limits).map((each) => percent(each)).join(" · ")} label=${`utilisation: ${Object.keys(limits).join(" · ")}`} />`}
    <${Tile} value=${`${short(settings.period_s)} s`} label="are looked at for a decision" />
    <${Tile} value=${Object.keys(cooling).length ? Object.values(cooling).map((each) => `${short(each)} s`).join(", ") : `${short(settings.cooldown_s)} s`}
      label=${Object.keys(cooling).length ? `cool-down left: ${Object.keys(cooling).join(", ")}` : "cool-down after a change; none is running"} level=${Object.keys(cooling).length ? "warn" : ""} />
    ${others.map(([name, value]) => html`<${Tile} value=${String(value)} label=${name} />`)}
  </div>`;
}

const DECISIONS = [
  { name: "when", value: (row) => (row.times > 1 && row.lastS - row.atS > 1 ? `${clock(row.atS)} – ${clock(row.lastS)}` : clock(row.atS)) },
  { name: "operator", value: (row) => row.operator || "all" },
  { name: "decision", value: (row) => html`${row.what}${row.instances !== row.instancesBefore ? ` ${row.instancesBefore} → ${row.instances}` : ""}` },
  { name: "outcome", value: (row) => html`<span class=${`kind ${row.outcome === "performed" ? "change" : row.outcome === "failed" ? "bad" : "quiet"}`}>${row.outcome}${row.times > 1 ? ` × ${row.times}` : ""}</span>` },
  { name: "why", value: (row) => row.why, wide: true },
];

function Decisions({ found }) {
  const [every, setEvery] = useState(false);
  const rows = found.decisions.filter((each) => every || each.outcome !== "steady").slice(-SHOWN).reverse();
  const quiet = found.decisions.filter((each) => each.outcome === "steady").reduce((sum, each) => sum + each.times, 0);
  const actions = html`<label class="field"><input type="checkbox" checked=${every} onChange=${(event) => setEvery(event.target.checked)} /><span>also those that changed nothing${quiet ? ` (${whole(quiet)})` : ""}</span></label>`;
  return html`<${Card} title="Decisions" id="decisions" actions=${actions}>
    <${Table} columns=${DECISIONS} rows=${rows} label="decisions" empty=${quiet ? `${counted(quiet, "time")} nothing was to be done.` : "Nothing was decided yet."} />
  </${Card}>`;
}

const DEFAULTS = { min: "1", max: "4", period_s: "5", cooldown_s: "10" };

function WhatIf({ query, live, policies }) {
  const given = live.about.policy ? live.about.policy.settings : {};
  const begin = Object.fromEntries(Object.entries({ ...DEFAULTS, ...given, ...(live.about.policy ? live.about.policy.limits : {}) }).map(([name, value]) => [name, String(value)]));
  const [policy, setPolicy] = useState(given.policy || "elastic-manager");
  const [values, setValues] = useState(begin);
  const [found, setFound] = useState(null);
  const [said, setSaid] = useState(null);
  const fields = ["min", "max", "period_s", "cooldown_s", ...(policies[policy] || []).filter((each) => each !== "provisioning")];
  const run = async () => {
    const body = { policy };
    for (const name of fields) if ((values[name] ?? "") !== "") body[name] = Number(values[name]);
    const answer = await post(`queries/${query.id}/whatif`, body);
    setFound(answer);
    const { was, would } = answer.instanceSeconds;
    return `${counted(answer.batches, "batch").replace("batchs", "batches")} of ${span(answer.seconds * 1000)}: ${counted(answer.decisions.filter((each) => each.outcome === "performed").length, "change")}; instances times seconds ${whole(was)} as it was, ${whole(would)} as it would have been.`;
  };
  return html`<${Card} title="What if" id="whatif" note="The recorded batches, decided by another policy or other limits. A slot costs what was recorded, so a heavy overload looks smaller than it was.">
    <div class="row">
      <${Choice} label="policy" value=${policy} options=${Object.keys(policies)} onChange=${(name) => (setPolicy(name), setFound(null))} />
      ${fields.map((name) => html`<${Input} key=${name} label=${name} type="number" step="any" placeholder="default" value=${values[name] ?? ""} onInput=${(value) => setValues({ ...values, [name]: value })} />`)}
      <${Act} label="replay" primary run=${run} said=${setSaid} />
    </div>
    <${Said} said=${said} close=${() => setSaid(null)} />
    ${found && html`<${Replayed} found=${found} />`}
  </${Card}>`;
}

// Two columns of times as one: at each time the newest value of either.
function together(first, then) {
  const times = [...new Set([...first.t, ...then.t])].sort((a, b) => a - b);
  const column = ({ t, values }) => {
    let at = -1;
    return times.map((time) => {
      while (at + 1 < t.length && t[at + 1] <= time) at += 1;
      return at < 0 ? null : values[at];
    });
  };
  return { times, first: column(first), then: column(then) };
}

function Replayed({ found }) {
  const busy = together({ t: found.busy.was.t, values: found.busy.was.busy }, { t: found.busy.would.t, values: found.busy.would.busy });
  const changes = found.decisions.filter((each) => each.outcome === "performed");
  const marks = changes.map((each) => ({ t: each.atS, colour: "--orange", dash: true }));
  return html`<div class="charts">
    ${Object.entries(found.operators).map(([name, each]) => {
      const joined = together({ t: each.wasT, values: each.was }, { t: each.wouldT, values: each.would });
      return html`<${Chart} key=${name} group="replay" title=${`Instances of ${name}`} x=${joined.times} stepped format=${(value) => (Number.isInteger(value) ? String(value) : "")} events=${marks}
        series=${[{ name: "as it was", data: joined.first, colour: "--muted" }, { name: "as it would have been", data: joined.then, colour: "--orange" }]} />`;
    })}
    <${Chart} group="replay" title="Utilisation" x=${busy.times} format=${percent} limits=${found.limits} events=${marks}
      series=${[{ name: "as it was", data: busy.first, colour: "--muted" }, { name: "as it would have been", data: busy.then, colour: "--blue" }]} />
  </div>
  <${Table} columns=${DECISIONS} rows=${found.decisions.filter((each) => each.outcome !== "steady").slice(-SHOWN).reverse()} label="decisions of the replay" empty="It would have changed nothing." />`;
}

function Page({ query, live }) {
  const found = useAnswer(() => get(`queries/${query.id}/decisions`), [query.id, beat(live), live.events.length]);
  const now = useAnswer(() => (query.state === "running" ? get(`queries/${query.id}/now`) : null), [query.id, beat(live), query.state]);
  const { series } = live, names = Object.keys(series.operators), elastic = Boolean(live.about.policy);
  const running = query.state === "running" && now.data && now.data.routing;
  const common = { x: series.t, events: marked(live.events) };
  return html`
    ${elastic && html`<${Policy} about=${live.about} now=${now.data} />`}
    ${running && html`<${ByHand} query=${query} live=${live} now=${now.data} again=${now.again} />`}
    ${series.t.length > 0 && html`<${Card} title="Utilisation and instances" id="load" wide note=${elastic ? "Dashed: the limits of the policy." : ""}><div class="charts">
      ${series.busy.some(known) && html`<${Chart} ...${common} title="Utilisation, as policies see it" format=${percent} limits=${elastic ? live.about.policy.limits : null}
        series=${[{ name: "query", data: series.busy, colour: "--blue" }, ...names.map((name, at) => ({ name, data: series.operators[name].max, colour: COLOURS[at % COLOURS.length], dash: [4, 3] }))]} />`}
      <${Chart} ...${common} title="Instances" format=${(value) => (Number.isInteger(value) ? String(value) : "")} stepped
        series=${names.map((name, at) => ({ name, data: series.operators[name].instances, colour: COLOURS[at % COLOURS.length] }))} />
    </div></${Card}>`}
    ${found.error && html`<p class="said bad">${found.error}</p>`}
    ${found.data && (elastic || found.data.decisions.length > 0) && html`<${Decisions} found=${found.data} />`}
    ${found.data && found.data.whole > 1 && html`<${WhatIf} query=${query} live=${live} policies=${found.data.policies} />`}`;
}

export const elasticity = { id: "elasticity", title: "Elasticity", Page };
