// A resource pool: what there is, who holds it, who waits and why.
import { useState } from "./vendor/htm-preact.js";
import { Do } from "./act.js";
import { Log, Rows } from "./log.js";
import { Alarms } from "./overview.js";
import { Badge, duration, Empty, html, link, Loading, number, Pager, Problem, Search, State, Table, useLook, usePages } from "./ui.js";

const Labels = ({ of }) => Object.entries(of).map(([name, value]) => html`<span class="label">${name}=${value}</span>`);

const Holder = ({ one }) => html`<span class="holder"><b>${one.who}</b> ${one.state === "offered" ? html`<${State} of="offered" />` : ""}
  ${one.suspect && html`<${Badge} tone="warn" mark="?" title=${one.suspect}>suspect<//>`}
  <small>${duration(one.held_for)}${one.expires_in != null ? `, expires in ${duration(one.expires_in)}` : ", a lock"}${one.reason ? ` · ${one.reason}` : ""}</small></span>`;

const Verbs = ({ pool, one, place }) => {
  const body = { pool, resource: one.name };
  const only = one.held_by.length === 1 ? { token: String(one.held_by[0].token) } : {};
  return html`<span class="acts">
    ${one.held_by.length === 1 && html`<${Do} place=${place} danger verb="release" title="Release" body=${{ ...body, ...only }} about="Its holder is told that it is lost; the next one in line gets it. Only if it is still held under this token.">Release<//>
      <${Do} place=${place} danger verb="steal" title="Steal" body=${{ ...body, ...only }} fields=${[{ name: "holder", label: "Keep it for (else you)" }, { name: "lease", label: "For how many seconds (else until it is released)", kind: "number" }]}
        about="One step, a new token: nobody gets in between, and its holder is told.">Steal<//>`}
    ${!one.held_by.length && html`<${Do} place=${place} verb="reserve" title="Reserve" body=${body} fields=${[{ name: "holder", label: "For whom (else you)" }, { name: "lease", label: "For how many seconds (else until it is released)", kind: "number" }]}>Reserve<//>`}
    ${one.state === "active" ? html`<${Do} place=${place} verb="cordon" title="Cordon" body=${body} about="Lent to nobody new; who has it keeps it.">Cordon<//>
      <${Do} place=${place} danger verb="quarantine" title="Quarantine" body=${body} about="Broken: kept away from everybody until it is uncordoned.">Quarantine<//>`
    : html`<${Do} place=${place} verb="uncordon" title="Uncordon" body=${body} about="Lent again.">Uncordon<//>`}</span>`;
};

function List({ pool, place, tick }) {
  const [find, setFind] = useState("");
  const pages = usePages(`${pool} ${find}`);
  const look = useLook("ls", { pool, find, after: pages.after }, tick);
  const rows = look.data?.rows || [];
  return html`<div class="tools"><${Search} value=${find} onFind=${setFind} label="Find resources" placeholder="name, label, state or holder" /></div>
    ${look.error && html`<${Problem} error=${look.error} again=${look.again} />`}${!look.data && !look.error && html`<${Loading} />`}
    ${look.data && (rows.length ? html`<${Table} caption="Resources" rows=${rows} row=${(one) => ({ "data-resource": one.name })} columns=${[
      ["Resource", (one) => html`<a href=${link("resources", pool, "resource", one.name)}><b>${one.name}</b></a> <${Labels} of=${one.labels} />`],
      ["State", (one) => html`<${State} of=${one.state === "active" ? (one.used ? "held" : "active") : one.state}>${one.state === "active" ? (one.used >= one.capacity ? "held" : one.used ? "partly held" : "free") : one.state}<//>${one.note && html` <small>${one.note}</small>`}`],
      ["In use", (one) => `${number(one.used)} of ${number(one.capacity)}`, "number"],
      ["Held by", (one) => (one.held_by.length ? one.held_by.slice(0, 3).map((each) => html`<${Holder} one=${each} />`) : "–"), "wide"],
      ["", (one) => html`<${Verbs} pool=${pool} one=${one} place=${place} />`],
    ]} />` : html`<${Empty} title=${find ? "Nothing fits" : "There is nothing to hold"}>${find ? "No name, label, state or holder has that in it." : html`Add some: <code>millpond add ${pool} NAME</code>.`}<//>`)}
    <${Pager} pages=${pages} data=${look.data} what="resource" />`;
}

export function Waiters({ pool, place, tick }) {
  const pages = usePages(pool);
  const look = useLook("waiters", { pool, after: pages.after }, tick);
  return html`${look.error && html`<${Problem} error=${look.error} again=${look.again} />`}${!look.data && !look.error && html`<${Loading} />`}
    ${look.data && (look.data.rows.length ? html`<${WaiterRows} rows=${look.data.rows} pool=${pool} place=${place} />`
    : html`<${Empty} title="Nobody waits">Whoever asks gets it at once.<//>`)}<${Pager} pages=${pages} data=${look.data} what="waiter" />`;
}

const WaiterRows = ({ rows, pool, place }) => html`<${Table} caption="Who waits, in the order of service" rows=${rows} columns=${[
  ["Place", (one) => one.position, "number"],
  ["Who", (one) => html`<b>${one.who}</b>${one.group && html` <span class="label">${one.group}</span>`}`],
  ["Wants", (one) => one.selectors.join(", ")],
  ["Waits", (one) => duration(one.waiting_for), "number"],
  ["Why not granted", (one) => one.why, "wide"],
  ["For", (one) => one.reason],
  ["", (one) => html`<${Do} place=${place} danger verb="withdraw" title="Withdraw request" body=${{ pool, request: one.request_id }} about="Whoever waits is told that it will not be granted.">Withdraw<//>`],
]} />`;

function Resource({ pool, name, place, tick }) {
  const look = useLook("show", { pool, resource: name }, tick);
  const one = look.data;
  return html`<p><a href=${link("resources", pool)}>‹ all resources</a></p><h2 class="name">${name}</h2>
    ${look.error && html`<${Problem} error=${look.error} again=${look.again} />`}${!one && !look.error && html`<${Loading} />`}
    ${one && html`<div class="answer why"><h3>How does it stand?</h3><p>${one.stands}.</p><p><${Labels} of=${one.labels} /></p>
        ${one.held_by.map((each) => html`<p><${Holder} one=${each} /> <small>token ${each.token}</small>
          ${one.held_by.length > 1 && html` <${Do} place=${place} danger verb="release" title="Release" body=${{ pool, resource: name, token: String(each.token) }}>Release<//>
            <${Do} place=${place} danger verb="steal" title="Steal" body=${{ pool, resource: name, token: String(each.token) }}>Steal<//>`}</p>`)}<${Verbs} pool=${pool} one=${one} place=${place} /></div>
      <h3>Who waits for it</h3>${one.waiters.length ? html`<${WaiterRows} rows=${one.waiters} pool=${pool} place=${place} />` : html`<p class="hint">Nobody.</p>`}
      <h3>What happened to it</h3>${one.history.length ? html`<${Rows} rows=${one.history} />` : html`<p class="hint">Nothing yet.</p>`}`}`;
}

export function Resources({ pool, tab, rest, place, live, tick, row }) {
  return html`<div class="head"><h1>${pool}</h1><${Badge}>resources<//>
      <span class="acts">${row?.is_paused ? html`<${Do} place=${place} verb="resume" title="Resume pool" body=${{ pool, kind: "resources" }}>Resume pool<//>`
        : html`<${Do} place=${place} verb="pause" title="Pause pool" body=${{ pool, kind: "resources" }} about="Nothing is granted until it is resumed; what is held stays held.">Pause pool<//>`}</span></div>
    ${row && html`<${Alarms} row=${row} />`}
    ${tab === "resource" ? html`<${Resource} key=${rest[0]} pool=${pool} name=${rest[0] || ""} place=${place} tick=${tick} />`
      : tab === "waiters" ? html`<${Waiters} pool=${pool} place=${place} tick=${tick} />`
      : tab === "log" ? html`<${Log} pool=${pool} kind="resources" tick=${tick} />`
      : html`<${List} pool=${pool} place=${place} tick=${tick} />`}`;
}
