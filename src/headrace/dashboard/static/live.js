// What is known about one query in the page: its series and events up to now, and its last batch. The server pushes what is new.

import { get, listen } from "./api.js";
import { useEffect, useState } from "./ui.js";

const POINTS_MAX = 4000, EVENTS_MAX = 2000;

const columns = (first, then) => {
  const found = {};
  for (const name of new Set([...Object.keys(first), ...Object.keys(then)])) {
    if (name !== "operators") found[name] = [...(first[name] || []), ...(then[name] || [])].slice(-POINTS_MAX);
  }
  return found;
};

// Two pieces of series, one after the other. An operator that one of them does not know has gaps there.
export function appended(first, then) {
  if (!then.t.length) return first;
  const operators = {};
  for (const name of new Set([...Object.keys(first.operators), ...Object.keys(then.operators)])) {
    const shape = first.operators[name] || then.operators[name];
    const gaps = (length) => Object.fromEntries(Object.keys(shape).map((each) => [each, Array(length).fill(null)]));
    operators[name] = columns(first.operators[name] || gaps(first.t.length), then.operators[name] || gaps(then.t.length));
  }
  return { ...columns(first, then), operators };
}

// Changes every so many seconds while batches come. What is asked for again then is not asked for with every short batch.
export const beat = (live, seconds = 2) => (live.last ? Math.floor(live.last.endS / seconds) : -1);

const EMPTY = { t: [], rate: [], rateOut: [], operators: {} };

// The queries of the monitor, kept up to date, and for one of them {about, series, events, last}. `minutes` is how far back; null for all.
export function useLive(id, minutes) {
  const [queries, setQueries] = useState(null);
  const [linked, setLinked] = useState(true);
  const [error, setError] = useState(null);
  const [live, setLive] = useState(null);
  const [round, setRound] = useState(0);
  useEffect(() => {
    let close = () => {}, gone = false, timer = null;
    setLive((before) => (before && before.id === id ? before : null));
    setError(null);
    const heard = (name, data) => {
      if (name === "queries") setQueries(data);
      else setLive((before) => before && before.id === id && {
        ...before,
        series: appended(before.series, data.series),
        events: [...before.events, ...data.events].slice(-EVENTS_MAX),
        last: data.last || before.last,
      });
    };
    const begin = async () => {
      try {
        let since = 0;
        if (id) {
          const [about, past] = await Promise.all([get(`queries/${id}`), get(`queries/${id}/series`, { minutes })]);
          if (gone) return;
          setLive({ id, about: about.about, began: about.beganS, last: about.last, series: past.series.t.length ? past.series : EMPTY, events: past.events });
          since = past.series.t.at(-1) || 0;
        }
        close = listen({ query: id, since }, heard, (is) => {
          setLinked(is);
          // After a break, what was missed is read anew.
          if (!is && !timer && !gone) timer = setTimeout(() => gone || setRound((before) => before + 1), 3000);
        });
      } catch (refused) {
        if (gone) return;
        // Without an answer, what was seen last stays.
        if (refused.status === 0) setLinked(false);
        else setError(refused);
        if (refused.status !== 401) timer = setTimeout(() => setRound((before) => before + 1), 3000);
      }
    };
    begin();
    return () => {
      gone = true;
      clearTimeout(timer);
      close();
    };
  }, [id, minutes, round]);
  return { queries, live, linked, error };
}
