// Jobs, keys, dead letters and residents of a keyed pool: pages of the server, found by the server.
import { useEffect, useState } from "./vendor/htm-preact.js";
import { act, Do } from "./act.js";
import { Ago, Badge, duration, Empty, html, link, Loading, number, Pager, Problem, Search, State, Table, useLook, usePages } from "./ui.js";

const STATES = ["", "waiting", "running", "retry", "paused", "parked", "delayed", "dead"];
const first = (text) => (text || "").split("\n")[0];

const ErrorText = ({ text }) => {
  if (!text) return "";
  const rest = text.includes("\n");
  return rest ? html`<details class="error"><summary>${first(text)}</summary><pre>${text}</pre></details>` : html`<span class="error">${text}</span>`;
};
const Payload = ({ value }) => (value === undefined ? null : html`<code class="payload">${JSON.stringify(value)}</code>`);
const KeyLink = ({ pool, name }) => html`<a href=${link("keyed", pool, "key", name)} title=${name}>${name.length > 60 ? `${name.slice(0, 57)}…` : name}</a>`;
const Worker = ({ id, order }) => (id ? html`<span class="tag small" title=${id} style=${{ background: order.colour(id) }}>${order.number(id)}</span>` : "–");

function Page({ look, pages, what, children, empty }) {
  return html`${look.error && html`<${Problem} error=${look.error} again=${look.again} />`}
    ${!look.data && !look.error && html`<${Loading} />`}
    ${look.data && (look.data.rows.length ? children : html`<${Empty} title=${empty[0]}>${empty[1]}<//>`)}
    <${Pager} pages=${pages} data=${look.data} what=${what} />`;
}

export function Jobs({ pool, place, tick, order, route }) {
  const [state, setState] = useState(route[0] || "");
  const [find, setFind] = useState("");
  const by = find.startsWith("id:") ? { id: find.slice(3).trim() } : find.startsWith("name:") ? { name: find.slice(5).trim() } : { key: find };
  const pages = usePages(`${pool} ${state} ${find}`);
  const look = useLook("jobs", { pool, state, ...by, after: pages.after }, tick);
  return html`<div class="tools"><${Search} value=${find} onFind=${setFind} label="Find jobs" placeholder="a key, id:… or name:…" />
      <label class="pick">State <select value=${state} onChange=${(event) => setState(event.target.value)}>${STATES.map((one) => html`<option value=${one}>${one || "any"}</option>`)}</select></label></div>
    <${Page} look=${look} pages=${pages} what="job" empty=${find || state ? ["No such job", "It has ended, or never was: the outcome of a job is kept with its receipt, not here."] : ["No jobs", "Nothing waits, nothing runs. The pond is still."]}>
      <${Table} caption="Jobs" rows=${look.data?.rows || []} columns=${[
        ["Key", (job) => html`<${KeyLink} pool=${pool} name=${job.key} />`],
        ["Job", (job) => html`${job.name}<${Payload} value=${job.arguments} />`],
        ["State", (job) => html`<${State} of=${job.state} />`],
        ["On", (job) => html`<${Worker} id=${job.worker} order=${order} />`],
        ["Since", (job) => html`<${Ago} time=${job.running_since || job.dispatched_at || job.died_at} />`],
        ["Tries", (job) => job.attempts || "", "number"],
        ["Error", (job) => html`<${ErrorText} text=${job.error} />`, "wide"],
        ["Id", (job) => html`<code title=${job.id}>${job.id.slice(0, 12)}</code>`],
        ["", (job) => html`<span class="acts">
          ${job.state === "retry" && html`<${Do} place=${place} verb="retry" title="Try again now" body=${{ pool, key: job.key }}>Retry<//>`}
          ${job.state === "dead" && html`<${Do} place=${place} verb="replay" title="Replay" body=${{ pool, ids: [String(job.number)] }}>Replay<//>`}
          ${job.state !== "dead" && html`<${Do} place=${place} danger verb="cancel" title="Cancel job" body=${{ pool, ids: [job.id], key: job.key }}
            about=${job.state === "running" ? "It runs: its handler is asked to stop." : ""}>Cancel<//>`}</span>`],
      ]} /><//>`;
}

export function Keys({ pool, place, tick, order }) {
  const pages = usePages(pool);
  const look = useLook("keys", { pool, after: pages.after }, tick);
  return html`<div class="tools"><${Search} onFind=${(key) => key && (location.hash = link("keyed", pool, "key", key))} label="Why is this key here" placeholder="Why is this key here? Any key" /></div>
    <${Page} look=${look} pages=${pages} what="key" empty=${["No key has jobs", "A key is listed while it has jobs. Ask for any key above: it has its place even when it is idle."]}>
      <${Table} caption="Keys with jobs" rows=${look.data?.rows || []} columns=${[
        ["Key", (key) => html`<${KeyLink} pool=${pool} name=${key.key} />`],
        ["State", (key) => html`<${State} of=${key.state} />`],
        ["Jobs", (key) => number(key.depth), "number"],
        ["Oldest", (key) => duration(key.oldest_age), "number"],
        ["On", (key) => html`<${Worker} id=${key.worker} order=${order} />`],
        ["There because", (key) => html`${key.why}${key.owner_since ? html`, <${Ago} time=${key.owner_since} />` : ""}`],
        ["Slot", (key) => key.slot, "number"],
        ["Failures", (key) => key.failures || "", "number"],
        ["", (key) => html`<span class="acts">${key.state === "paused"
          ? html`<${Do} place=${place} verb="resume" title="Resume key" body=${{ pool, key: key.key }}>Resume<//>`
          : html`<${Do} place=${place} verb="pause" title="Pause key" body=${{ pool, key: key.key }} about="What runs goes on; nothing more of this key begins.">Pause<//>`}</span>`],
      ]} /><//>`;
}

export function Key({ pool, name, place, tick, order }) {
  const look = useLook("key", { pool, key: name }, tick);
  const found = look.data;
  const isPaused = found?.paused.some((one) => one.key === name);
  return html`<p><a href=${link("keyed", pool, "keys")}>‹ all keys</a></p><h2 class="name">${name}</h2>
    ${look.error && html`<${Problem} error=${look.error} again=${look.again} />`}
    ${!found && !look.error && html`<${Loading} />`}
    ${found && html`<div class="answer why"><h3>Why is it here?</h3><p>It is in ${found.because}.</p>
        <dl><dt>Owner</dt><dd><${Worker} id=${found.slot.owner} order=${order} /> ${found.slot.owner || "nobody"}</dd>
        <dt>Before</dt><dd><${Worker} id=${found.slot.before} order=${order} /> ${found.slot.before || "nobody"}</dd>
        <dt>Moved</dt><dd>${found.slot.why}, <${Ago} time=${found.slot.since} /></dd></dl>
        ${found.paused.map((one) => html`<p><${Badge} tone="warn" mark="⏸">${one.key == null ? "whole pool paused" : "paused"}<//> by ${one.by}, <${Ago} time=${one.since} />: ${one.reason || "no reason given"}</p>`)}
        <p class="acts">${isPaused ? html`<${Do} place=${place} verb="resume" title="Resume key" body=${{ pool, key: name }}>Resume this key<//>`
          : html`<${Do} place=${place} verb="pause" title="Pause key" body=${{ pool, key: name }}>Pause this key<//>`}
        <${Do} place=${place} verb="retry" title="Try again now" body=${{ pool, key: name }}>Retry now<//>
        <${Do} place=${place} danger verb="purge" title="Drop waiting jobs" body=${{ pool, key: name }} about="What runs goes on. What is dropped is gone.">Drop what waits<//></p></div>
      <h3>Its jobs, in order</h3>
      ${found.rows.length ? html`<${Table} caption="Jobs of this key" rows=${found.rows} columns=${[
        ["Job", (job) => html`${job.name}<${Payload} value=${job.arguments} />`],
        ["State", (job) => html`<${State} of=${job.state} />`],
        ["Since", (job) => html`<${Ago} time=${job.running_since || job.dispatched_at || job.died_at} />`],
        ["Tries", (job) => job.attempts || "", "number"],
        ["Error", (job) => html`<${ErrorText} text=${job.error} />`, "wide"],
        ["Id", (job) => html`<code>${job.id}</code>`],
      ]} />` : html`<${Empty} title="It has no jobs">It is idle. Its next job runs on the worker above.<//>`}
      ${found.next && html`<p class="hint">There are more: <a href=${link("keyed", pool, "jobs")}>find them among the jobs</a>.</p>`}`}`;
}

export function Dead({ pool, place, tick, order }) {
  const [key, setKey] = useState("");
  const [chosen, setChosen] = useState(new Set());
  const pages = usePages(`${pool} ${key}`);
  const look = useLook("dead", { pool, key, after: pages.after }, tick);
  const rows = look.data?.rows || [];
  const some = [...chosen].map(String);  // also those that newer ones have pushed off this page
  const forget = () => setChosen(new Set());
  useEffect(forget, [pool, key]);
  const flip = (number) => setChosen((was) => { const now = new Set(was); now.delete(number) || now.add(number); return now; });
  const which = some.length ? { ids: some } : key ? { key } : { all: true };
  const words = some.length ? `${some.length} chosen` : key ? "all of this key" : "all";
  return html`<div class="tools"><${Search} value=${key} onFind=${setKey} label="Dead letters of a key" placeholder="of this key" />
      ${(rows.length || some.length) && !place.read_only ? html`<span class="acts">${some.length ? html`<button onClick=${forget}>Choose none</button>` : null}<button onClick=${() => act({ verb: "replay", title: `Replay ${words}`, body: { pool, ...which }, done: forget, about: "They run again, behind what waits in their keys." })}>Replay ${words}</button>
        <button class="danger" onClick=${() => act({ verb: "discard", title: `Discard ${words}`, body: { pool, ...which }, done: forget, danger: true, about: "They are forgotten for good." })}>Discard ${words}</button></span>` : null}</div>
    <${Page} look=${look} pages=${pages} what="dead letter" empty=${["No dead letters", "A job comes here when it has failed for the last time, or too many workers died of it. None has."]}>
      <${Table} caption="Dead letters, the newest first" rows=${rows} row=${(one) => ({ class: chosen.has(one.number) ? "chosen" : "" })} columns=${[
        [html`<span class="hidden">Choose</span>`, (one) => html`<input type="checkbox" aria-label=${`choose ${one.number}`} checked=${chosen.has(one.number)} onChange=${() => flip(one.number)} />`],
        ["No.", (one) => one.number, "number"],
        ["Key", (one) => html`<${KeyLink} pool=${pool} name=${one.key} />`],
        ["Job", (one) => html`${one.name}<${Payload} value=${one.arguments} />`],
        ["Died", (one) => html`<${Ago} time=${one.died_at} />`],
        ["Tries", (one) => one.attempts, "number"],
        ["Why", (one) => html`<${ErrorText} text=${one.reason} />`, "wide"],
        ["Id", (one) => html`<code title=${one.id}>${one.id.slice(0, 12)}</code>`],
        ["", (one) => html`<span class="acts"><${Do} place=${place} verb="replay" title="Replay" body=${{ pool, ids: [String(one.number)] }}>Replay<//>
          <${Do} place=${place} danger verb="discard" title="Discard" body=${{ pool, ids: [String(one.number)] }} about="It is forgotten for good.">Discard<//></span>`],
      ]} /><//>`;
}

export function Residents({ pool, tick, order }) {
  const pages = usePages(pool);
  const look = useLook("residents", { pool, after: pages.after }, tick);
  return html`<${Page} look=${look} pages=${pages} what="resident" empty=${["No residents", "A resident is a job that stays: one per key, on one worker, until it is stopped."]}>
    <${Table} caption="Residents" rows=${look.data?.rows || []} columns=${[
      ["Resident", (one) => html`${one.name}<${Payload} value=${one.arguments} />`],
      ["Key", (one) => html`<${KeyLink} pool=${pool} name=${one.key} />`],
      ["State", (one) => html`<${State} of=${one.state} />`],
      ["On", (one) => html`<${Worker} id=${one.worker} order=${order} />`],
      ["Asked for", (one) => html`<${Ago} time=${one.started_at} />`],
      ["Failures", (one) => one.failures || "", "number"],
      ["Error", (one) => html`<${ErrorText} text=${one.error} />`, "wide"],
    ]} /><//>`;
}
