// All pools of the place.
import { Badge, duration, Empty, html, link, Loading, number, several } from "./ui.js";

const Figure = ({ value, label, tone = "" }) => html`<div class="figure ${tone}"><b>${value}</b><span>${label}</span></div>`;

const Bar = ({ used, of, label }) => html`<div class="bar" role="img" aria-label=${`${label}: ${used} of ${of}`}>
  <i style=${{ width: `${of ? Math.min(100, (100 * used) / of) : 0}%` }}></i></div>`;

export function Alarms({ row }) {
  const alarms = [];
  if (row.kind === "keyed") {
    if (row.is_shut) alarms.push(["bad", "■", "SHUT DOWN", "dispatches are refused"]);
    if (row.is_paused) alarms.push(["warn", "⏸", "PAUSED", `${row.paused?.reason || "no reason given"}${row.paused?.by ? ` — ${row.paused.by}` : ""}`]);
    if (!row.workers) alarms.push(["bad", "⚠", "NO WORKERS", row.jobs ? `${several(row.jobs, "job")} and nobody to run them` : "nothing would run"]);
    if (row.silent) alarms.push(["warn", "…", "SILENT", several(row.silent, "worker gives", "workers give") + " no sign of life"]);
  } else {
    if (row.is_paused) alarms.push(["warn", "⏸", "PAUSED", row.paused]);
    if (!row.resources) alarms.push(["", "○", "EMPTY", "there is nothing to hold"]);
    if (row.suspects) alarms.push(["warn", "?", "SUSPECT", several(row.suspects, "holder is", "holders are") + " held too long, or may be gone"]);
  }
  return alarms.length ? html`<div class="alarms">${alarms.map(([tone, mark, word, why]) => html`<div class="alarm ${tone}" role="status">
    <span aria-hidden="true">${mark}</span><b>${word}</b><span>${why}</span></div>`)}</div>` : null;
}

const NameCard = ({ row }) => html`<a class="card" href=${link(row.kind, row.pool)} data-pool=${row.pool}><header><h2>${row.pool}</h2><${Badge}>${row.kind}<//></header></a>`;

function KeyedCard({ row, rate }) {
  return html`<a class="card" href=${link("keyed", row.pool)} data-pool=${row.pool}>
    <header><h2>${row.pool}</h2><${Badge}>keyed<//></header>
    <${Alarms} row=${row} />
    <div class="figures">
      <${Figure} value=${number(row.jobs)} label="jobs" />
      <${Figure} value=${row.oldest_age ? duration(row.oldest_age) : "–"} label="oldest waits" tone=${row.oldest_age > 60 ? "warn" : ""} />
      <${Figure} value=${number(row.workers)} label=${row.workers === 1 ? "worker" : "workers"} tone=${row.workers ? "" : "bad"} />
      <${Figure} value=${rate == null ? "–" : `${number(Math.round(rate))}/s`} label="done" />
    </div>
    <${Bar} used=${row.keys_running} of=${row.capacity} label="busy" />
    <footer><span>${number(row.keys_running)} of ${number(row.capacity)} busy, ${several(row.keys_ready, "key waits", "keys wait")}</span>
      <span>${row.delayed ? `${number(row.delayed)} delayed · ` : ""}${row.residents ? `${several(row.residents, "resident")} · ` : ""}<span class=${row.dead ? "bad" : ""}>${several(row.dead, "dead letter")}</span></span></footer></a>`;
}

function ResourcesCard({ row }) {
  const used = row.units - row.free_units;
  return html`<a class="card" href=${link("resources", row.pool)} data-pool=${row.pool}>
    <header><h2>${row.pool}</h2><${Badge}>resources<//></header>
    <${Alarms} row=${row} />
    <div class="figures">
      <${Figure} value=${`${number(row.free_units)}`} label=${`of ${number(row.units)} free`} />
      <${Figure} value=${number(row.held)} label=${row.held === 1 ? "holder" : "holders"} />
      <${Figure} value=${number(row.waiting)} label=${row.waiting === 1 ? "waits" : "wait"} tone=${row.waiting ? "warn" : ""} />
      <${Figure} value=${row.oldest_wait ? duration(row.oldest_wait) : "–"} label="longest wait" />
    </div>
    <${Bar} used=${used} of=${row.units} label="in use" />
    <footer><span>${number(used)} of ${number(row.units)} units in use</span><span>${several(row.grants_total, "grant")} so far</span></footer></a>`;
}

export function Overview({ live, rates, find }) {
  if (!live.pools) return html`<${Loading} />`;
  const rows = live.pools.filter((row) => !find || row.pool.toLowerCase().includes(find.toLowerCase()));
  if (!live.pools.length) {
    return html`<${Empty} title="There are no pools here yet">They appear when a program opens one at this place:
      <code>KeyedPool("tenants", url)</code>, <code>ResourcePool("gpus", url)</code>, or <code>millpond add gpus gpu-0</code>.<//>`;
  }
  return html`<section class="cards" aria-label="Pools">${rows.slice(0, 400).map((row) => row.is_name_only ? html`<${NameCard} key=${`${row.kind} ${row.pool}`} row=${row} />` : row.kind === "keyed"
    ? html`<${KeyedCard} key=${`k${row.pool}`} row=${row} rate=${rates(row)} />` : html`<${ResourcesCard} key=${`r${row.pool}`} row=${row} />`)}
    ${rows.length > 400 ? html`<p class="hint">… and ${number(rows.length - 400)} more: find them by name.</p>` : null}
    ${rows.length ? null : html`<${Empty} title="No pool of that name">Nothing here is called “${find}”.<//>`}</section>`;
}
