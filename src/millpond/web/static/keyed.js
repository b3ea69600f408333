// A keyed pool: its workers and keys live, its jobs, its dead letters.
import { useState } from "./vendor/htm-preact.js";
import { Do } from "./act.js";
import { Chart } from "./chart.js";
import { Dead, Jobs, Key, Keys, Residents } from "./jobs.js";
import { Log } from "./log.js";
import { Alarms } from "./overview.js";
import { Badge, duration, html, Loading, number, several } from "./ui.js";
import { KeysOnWorkers, Moves } from "./workers.js";
import { Stream } from "./stream.js";

const SPANS = [30, 60, 300];

const Account = ({ of }) => html`<p class="account" title="All jobs ever dispatched, and where they are">
  <b>${number(of.dispatched_total)}</b> dispatched = <b>${number(of.done_total)}</b> done + <b>${number(of.jobs)}</b> waiting or running + <b>${number(of.delayed)}</b> delayed
  + <b>${number(of.dead)}</b> dead${of.unaccounted ? html` + <b>${number(of.unaccounted)}</b> cancelled, purged, replaced or discarded` : html` · <b class="good">none lost</b>`}
  · ${several(of.recovered_total, "key")} re-run after a loss</p>`;

function Now({ live, order, memory, recorder, keyOrder, tick, rings, theme, isStream }) {
  const [span, setSpan] = useState(60);
  const state = live.pool;
  if (!state || !live.slots || !state.workers) return html`<${Loading} />`;
  return html`<${Moves} moves=${state.moves} order=${order} now=${state.now} />
    ${isStream ? html`<${Stream} recorder=${recorder} order=${order} keys=${keyOrder} state=${state} tick=${tick} spans=${SPANS} span=${span} setSpan=${setSpan} />`
      : html`<${KeysOnWorkers} pool=${state} slots=${live.slots} order=${order} memory=${memory} tick=${tick} />`}
    <div class="charts"><${Chart} ring=${rings} theme=${theme} title="Jobs per second" lines=${[["done", "good", 1], ["dispatched", "info", 2, [4, 3]]]} />
      <${Chart} ring=${rings} theme=${theme} title="Waiting" lines=${[["jobs", "info", 3], ["oldest, s", "warn", 4, [4, 3]]]} /></div>
    <${Account} of=${state.statistics} />`;
}

export function Keyed(given) {
  const { pool, tab, rest, place, live, tick, order, row } = given;
  const isPaused = row?.is_paused;
  return html`<div class="head"><h1>${pool}</h1><${Badge}>keyed<//>
      ${row && html`<span class="summary">${several(row.jobs, "job")} ${row.oldest_age ? ` · the oldest waits ${duration(row.oldest_age)}` : ""} · ${number(row.keys_running)} of ${number(row.capacity)} busy · ${several(row.workers, "worker")}</span>`}
      <span class="acts">${isPaused ? html`<${Do} place=${place} verb="resume" title="Resume pool" body=${{ pool, kind: "keyed" }}>Resume pool<//>`
        : html`<${Do} place=${place} verb="pause" title="Pause pool" body=${{ pool, kind: "keyed" }} about="What runs goes on; nothing more begins until it is resumed.">Pause pool<//>`}</span></div>
    ${row && html`<${Alarms} row=${row} />`}
    ${tab === "key" ? html`<${Key} key=${rest[0]} pool=${pool} name=${rest[0] || ""} place=${place} tick=${tick} order=${order} />`
      : tab === "keys" ? html`<${Keys} pool=${pool} place=${place} tick=${tick} order=${order} />`
      : tab === "jobs" ? html`<${Jobs} pool=${pool} place=${place} tick=${tick} order=${order} route=${rest} />`
      : tab === "dead" ? html`<${Dead} pool=${pool} place=${place} tick=${tick} order=${order} />`
      : tab === "residents" ? html`<${Residents} pool=${pool} tick=${tick} order=${order} />`
      : tab === "log" ? html`<${Log} pool=${pool} kind="keyed" tick=${tick} />`
      : html`<${Now} ...${given} isStream=${tab === "stream"} />`}`;
}
