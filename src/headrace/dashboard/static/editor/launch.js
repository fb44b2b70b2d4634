// Starting a query, and replacing one that runs.

import { post } from "../api.js";
import { Act, Card, Choice, html, Input, Said, useEffect, useState } from "../ui.js";
import { PAGE } from "./state.js";

const FORMATS = ["noop", "console", "memory", "parquet", "json", "csv", "orc", "kafka", "delta"];
const FILES = ["parquet", "json", "csv", "orc", "delta"];
const MODES = ["append", "update", "complete"];
const TRIGGERS = [["asap", "as soon as there are rows"], ["every", "every"], ["availableNow", "once, all that is there"]];
const PLACES = { kafka: "topic" };

// `key=value` lines as an object.
export function options(text) {
  const found = {};
  for (const line of text.split("\n").map((each) => each.trim()).filter(Boolean)) {
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`options are lines such as name=value; found: ${line}`);
    found[line.slice(0, at).trim()] = line.slice(at + 1).trim();
  }
  return found;
}

export function SinkFields({ sink, mode, onSink }) {
  const given = { format: "noop", mode, path: "", options: "", ...sink };
  // Only what was chosen here is kept: the output mode else follows that of the check.
  const set = (name) => (value) => onSink({ ...sink, [name]: value });
  const files = FILES.includes(given.format);
  return html`<${Choice} label="format" value=${given.format} options=${FORMATS} onChange=${set("format")} />
    <${Choice} label="output mode" value=${given.mode} options=${MODES} onChange=${set("mode")} />
    ${files && html`<${Input} label="folder" value=${given.path} onInput=${set("path")} placeholder="out/totals" />`}
    ${!files && !["noop", "console", "memory"].includes(given.format) && html`<${Input} label=${PLACES[given.format] || "path"} value=${given.path} onInput=${set("path")} />`}
    <label class="field area"><span>options, one a line</span><textarea rows="1" spellcheck="false" placeholder="name=value" value=${given.options} onInput=${(event) => set("options")(event.target.value)}></textarea></label>`;
}

function request(state, wanted, results) {
  const { launch } = state;
  const sinks = results.map((result) => {
    const sink = { format: "noop", mode: state.mode, path: "", options: "", ...launch.sinks[result] };
    const place = !sink.path ? {} : sink.format === "kafka" ? { topic: sink.path } : { path: sink.path };
    return { result, format: sink.format, mode: sink.mode, options: { ...options(sink.options), ...place } };
  });
  const trigger = launch.trigger === "asap" ? {} : launch.trigger === "every" ? { processingTime: launch.every } : { availableNow: true };
  return { page: PAGE, ...wanted, sinks, name: launch.name, checkpoint: launch.checkpoint, trigger, options: options(launch.options) };
}

export const firstError = (answer) => {
  const [first] = answer.errors || [];
  if (first) throw new Error(first.line ? `line ${first.line}: ${first.message}` : first.message);
  return answer;
};

export function Start({ state, wanted, results, onState, ready, onStarted }) {
  const { launch } = state;
  const [said, setSaid] = useState(null);
  const [page, setPage] = useState(null);
  const set = (name) => (value) => onState({ launch: { ...launch, [name]: value } });
  const run = async () => {
    setPage(null);
    const found = firstError(await post("editor/start", request(state, wanted, results)));
    setPage(found.page);
    onStarted();
    return `${found.name || "The query"} was started.`;
  };
  const needs = results.some((each) => !["noop", "console", "memory"].includes((launch.sinks[each] || {}).format || "noop")) || results.length > 1;
  return html`<${Card} title="Start" note="a new query in this program" id="start">
    <div class="fields">
      <${Input} label="name" value=${launch.name} onInput=${set("name")} placeholder="totals" />
      <${Input} label="checkpoint" value=${launch.checkpoint} onInput=${set("checkpoint")} placeholder=${needs ? "ckpt/totals" : "temporary"} />
      <${Choice} label="runs" value=${launch.trigger} options=${TRIGGERS} onChange=${set("trigger")} />
      ${launch.trigger === "every" && html`<${Input} label="time" value=${launch.every} onInput=${set("every")} placeholder="1 second" />`}
    </div>
    ${results.map((result) => html`<fieldset key=${result}><legend>${result ? `sink ${result}` : "sink"}</legend><div class="fields">
      <${SinkFields} sink=${launch.sinks[result]} mode=${state.mode} onSink=${(sink) => set("sinks")({ ...launch.sinks, [result]: sink })} /></div></fieldset>`)}
    <label class="field area"><span>options of the query, one a line</span><textarea rows="1" spellcheck="false" placeholder="headrace.instances=2" value=${launch.options} onInput=${(event) => set("options")(event.target.value)}></textarea></label>
    <div class="row"><${Act} label="start" primary run=${run} said=${setSaid} disabled=${!ready} />
      ${page && html`<a href=${`#/${page}`}>its page</a>`}</div>
    <${Said} said=${said} close=${() => setSaid(null)} />
  </${Card}>`;
}

const PARTS = [["kept", "go on with their state"], ["changed", "go on with other columns"], ["backfilled", "computed from all earlier rows"], ["empty", "start empty"], ["dropped", "go, and their state"]];

function Outcome({ found }) {
  const changed = Object.entries(found.evolved).map(([name, texts]) => `${name}: ${texts.join("; ")}`);
  const lists = { ...found, changed };
  const shown = PARTS.filter(([name]) => lists[name].length);
  return html`<dl class="outcome">${shown.map(([name, meaning]) => html`<dt class=${`kind ${name}`}>${name}</dt><dd>${lists[name].join(", ")} <span class="quiet">${meaning}</span></dd>`)}
    ${!shown.length && html`<dd>nothing changes</dd>`}</dl>`;
}

export function Replace({ state, wanted, queries, ready, several }) {
  const ids = Object.keys(queries);
  const [query, setQuery] = useState("");
  const [backfill, setBackfill] = useState(false);
  const [rename, setRename] = useState("");
  const [said, setSaid] = useState(null);
  const [found, setFound] = useState(null);
  const chosen = ids.includes(query) ? query : ids[0];
  const asked = JSON.stringify([wanted.text, wanted.language, chosen, backfill, rename]);
  useEffect(() => setFound(null), [asked]);
  const run = (dryRun) => async () => {
    const names = options(rename.replaceAll(",", "\n"));
    const answer = firstError(await post("editor/replace", { page: PAGE, ...wanted, query: chosen, backfill, rename: names, dryRun }));
    setFound({ ...answer, asked });
    if (dryRun) return "Dry run: nothing was changed. This is what would happen:";
    return `Replaced: the pause took ${Math.round(answer.pause_ms)} ms${answer.version === null ? "" : `, until version ${answer.version}`}.`;
  };
  if (!ids.length) return null;
  const tried = found && found.dry_run && found.asked === asked;
  return html`<${Card} title="Replace a query that runs" note="on its own checkpoint; sink, trigger and options stay" id="replace">
    <div class="fields">
      <${Choice} label="query" value=${chosen} options=${ids.map((id) => [id, queries[id]])} onChange=${setQuery} />
      <${Input} label="renamed columns" value=${rename} onInput=${setRename} placeholder="old=new" />
      <label class="field"><input type="checkbox" checked=${backfill} onChange=${(event) => setBackfill(event.target.checked)} /><span>compute what is new from all earlier rows</span></label>
    </div>
    <div class="row"><${Act} label="dry run" run=${run(true)} said=${setSaid} disabled=${!ready || several} />
      <${Act} label="replace" primary run=${run(false)} said=${setSaid} disabled=${!ready || several || !tried} title=${tried ? "" : "try it first: dry run"} />
      <a href=${`#/${chosen}`}>its page</a></div>
    ${several && html`<p class="note">A query with several sinks is replaced by its program, with a writer for each.</p>`}
    <${Said} said=${said} close=${() => setSaid(null)} />
    ${found && html`<${Outcome} found=${found} />`}
  </${Card}>`;
}
