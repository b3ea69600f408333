// What people did, and what happened: who, when, why.
import { useState } from "./vendor/htm-preact.js";
import { Ago, Badge, clock, Empty, html, link, Loading, Problem, Table, useLook } from "./ui.js";

const TONES = { released: "", granted: "good", asked: "", stolen: "bad", kept: "bad", pause: "warn", quarantined: "bad", cordoned: "warn", discard: "bad", purge: "bad", cancel: "warn", died: "bad", expired: "warn", revoked: "bad" };
const list = (value) => (Array.isArray(value) ? value.join(", ") : value && typeof value === "object" ? Object.entries(value).map(([name, one]) => `${name}=${one}`).join(" ") : String(value));
const about = (row) => row.about ?? [row.resource, row.resources && list(row.resources), row.holder && `holder ${row.holder}`, row.group && `group ${row.group}`].filter(Boolean).join(" · ");

export const Rows = ({ rows, withPool }) => html`<${Table} caption="Log" rows=${rows} columns=${[
  ["When", (row) => html`<${Ago} time=${row.time} /> <small>${clock(row.time)}</small>`],
  ...(withPool ? [["Pool", (row) => html`<a href=${link(row.kind, row.pool)}>${row.pool}</a>`]] : []),
  ["What", (row) => html`<${Badge} tone=${TONES[row.event] || ""}>${row.event}<//>`],
  ["About", (row) => about(row)],
  ["By", (row) => row.by || ""],
  ["Why", (row) => row.reason || "", "wide"],
]} />`;

export function Audit({ tick }) {
  const look = useLook("audit", { limit: 200 }, tick);
  return html`<h1>Audit log</h1><p class="hint">What people did to these pools, by the page, the command or a program: who, when and why. The latest first.</p>
    ${look.error && html`<${Problem} error=${look.error} again=${look.again} />`}${!look.data && !look.error && html`<${Loading} />`}
    ${look.data && (look.data.rows.length ? html`<${Rows} rows=${look.data.rows} withPool=${true} />` : html`<${Empty} title="Nobody has done anything">Every pause, steal, replay and all the rest is kept here.<//>`)}`;
}

export function Log({ pool, kind, tick }) {
  const [isAll, setAll] = useState(false);
  const look = useLook("events", { pool, kind, limit: 200, acts: kind === "resources" && !isAll ? "1" : "" }, tick);
  return html`${kind === "resources" && html`<div class="tools"><label class="check"><input type="checkbox" checked=${isAll} onChange=${() => setAll(!isAll)} /> also what happened by itself: grants, releases, deaths</label></div>`}
    ${look.error && html`<${Problem} error=${look.error} again=${look.again} />`}${!look.data && !look.error && html`<${Loading} />`}
    ${look.data && (look.data.rows.length ? html`<${Rows} rows=${look.data.rows} />` : html`<${Empty} title="Nobody has done anything here">What people do to this pool is kept: who, when and why.<//>`)}`;
}
