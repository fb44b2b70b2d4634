// Events of a query's history in words, and how they are marked in charts.

import { counted, known, percent, size, span, whole } from "./ui.js";

const COLOURS = { change: "--orange", decision: "--purple", start: "--green", end: "--muted", checkpoint: "--muted" };
// Instances that come to an executor or leave it are no fault; that one was lost is an event of its own.
export const FAULTS = ["lost", "gap", "store", "rebuilt", "redundancy", "history"];

export const isFault = (event) => (FAULTS.includes(event.kind) && !(event.kind === "redundancy" && !event.missing)) || (event.kind === "end" && event.error);

// Those events that are drawn into charts: decisions that were performed show as the change that they made.
export const marked = (events) =>
  events
    .filter((each) => each.kind !== "decision" && each.kind !== "checkpoint" && each.kind !== "shedding")
    .map((each) => ({ t: each.t, colour: isFault(each) ? "--red" : COLOURS[each.kind] || "--muted", dash: each.kind === "change" }));

export function title(event) {
  const names = { change: "change", decision: "decision", lost: "executor lost", gap: "gap", store: "storage away", rebuilt: "computed again",
    redundancy: "copies", homes: "executors", checkpoint: "checkpoint", shedding: "shedding", start: "start", end: "end", history: "history" };
  return names[event.kind] || event.kind;
}

// What the policy or somebody wanted: "elastic-manager: Utilisation 12 % ..." without what the change itself says.
const reason = (why) => (why || "").replace(/; (state recreation|window recreation|merge|buffering): .*$/, "");

// executor 1; executors 1, 2
const named = (ids) => `executor${ids.length === 1 ? "" : "s"} ${ids.join(", ")}`;

export function changed(event) {
  const counts = event.instancesBefore === event.instances
    ? `${counted(event.instances, "instance")}, ${counted(event.slotsMoved, "slot")} moved`
    : `${event.instancesBefore} → ${counted(event.instances, "instance")}`;
  const fetched = event.bytesFetched ? `${size(event.bytesFetched)} fetched in ${span(event.fetchMs)}` : "nothing fetched";
  return `${event.operator}: ${counts}, waited ${span(Math.max(0, event.waitedMs))}, ${fetched}. ${reason(event.why)}`;
}

export function decided(event) {
  const counts = event.instancesBefore === event.instances ? "" : ` (${event.instancesBefore} → ${event.instances})`;
  const often = event.times > 1 ? `, ${event.times} times` : "";
  return `${event.operator ? `${event.operator}: ` : ""}${event.what}${counts}, ${event.outcome}${often}. ${event.why}`;
}

export function sentence(event) {
  switch (event.kind) {
    case "change":
      return changed(event);
    case "decision":
      return decided(event);
    case "lost":
      return `${event.hung ? "No answer from" : "Lost"} ${event.executors.length ? named(event.executors) : "an executor"} after ${span(event.afterMs)} of batch ${event.v}; recovered ${span(event.recoveredMs)} later.`;
    case "rebuilt":
      return `${counted(event.versions, "version")} computed again before batch ${event.v}, because state was lost.`;
    case "gap":
      return `State of ${event.operator} was lost and skipped: versions ${event.first} to ${event.last}, ${known(event.rows) ? counted(event.rows, "row") : "an unknown number of rows"}.`;
    case "store":
      return `Waited ${span(event.waitedMs)} for the checkpoint's folder.`;
    case "checkpoint":
      return `Version ${event.version} became durable in ${span(event.tookMs)}: ${size(event.bytesShipped)} of ${size(event.bytesState)} shipped.`;
    case "redundancy":
      return event.missing ? `${counted(event.missing, "copy").replace("copys", "copies")} of state missing.` : `All copies of state are there again, after ${span(event.lastedMs)}.`;
    case "homes":
      return [event.came.length && `Instances live on ${named(event.came)} now`, event.gone.length && `${event.came.length ? "none" : "No instance"} on ${named(event.gone)} any more`].filter(Boolean).join("; ") + ".";
    case "shedding":
      return event.plan === null ? "Nothing is dropped any more." : `Plan ${event.plan} of drops: ${event.sinks.map((each) => `${each.sink} gets ${percent(each.delivered, 1)}`).join(", ")}.`;
    case "start":
      return "The query started.";
    case "end":
      return event.error ? `The query failed: ${event.error}` : "The query was stopped.";
    case "history":
      return `${whole(event.dropped)} batches are missing in this history: the disk was slow.`;
    default:
      return JSON.stringify(event);
  }
}
