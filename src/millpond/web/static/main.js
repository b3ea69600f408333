// The page: where one is, what is live, and the frame around it.
import { render, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { ActDialog } from "./act.js";
import { get, Live, post } from "./api.js";
import { Ring } from "./chart.js";
import { Keyed } from "./keyed.js";
import { Audit } from "./log.js";
import { Overview } from "./overview.js";
import { Order } from "./palette.js";
import { Recorder } from "./stream.js";
import { Resources } from "./resources.js";
import { Empty, html, link, Search } from "./ui.js";
import { Memory } from "./workers.js";

const TABS = {
  keyed: [["", "Keys on workers"], ["stream", "Task stream"], ["keys", "Keys"], ["jobs", "Jobs"], ["dead", "Dead letters"], ["residents", "Residents"], ["log", "Log"]],
  resources: [["", "Resources"], ["waiters", "Waiters"], ["log", "Log"]],
};
const SLOW = 2000; // lists are asked for again that often, at most

const decode = (part) => { try { return decodeURIComponent(part); } catch { return part; } };
const where = () => location.hash.replace(/^#\/?/, "").split("/").filter((part) => part !== "").map(decode);

function theme() {
  return document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

// What is remembered between two news: colours by order of arrival, the last minutes, what ran.
const orders = new Map();
const rings = new Map();
const perSecond = new Map();
const memory = new Memory(), recorder = new Recorder(), keyOrder = new Order();
const of = (map, name, make) => map.get(name) || map.set(name, make()).get(name);

function remember(live) {
  const now = Date.now() / 1000;
  for (const row of live.pools || []) {
    if (row.kind !== "keyed" || row.is_name_only) continue;
    const was = perSecond.get(row.pool);
    if (!was || live.at > was.at) {
      const seconds = was ? (live.at - was.at) / 1000 : 0;
      const done = was && seconds ? Math.max(0, (row.done_total - was.done) / seconds) : 0;
      const dispatched = was && seconds ? Math.max(0, (row.dispatched_total - was.dispatched) / seconds) : 0;
      if (was && seconds < 0.3) continue;
      perSecond.set(row.pool, { at: live.at, done: row.done_total, dispatched: row.dispatched_total, rate: was ? done : null });
      if (was) of(rings, row.pool, () => new Ring(300)).add([now, done, dispatched, row.jobs, row.oldest_age]);
    }
  }
}

function Login({ error, onDone }) {
  const [state, set] = useState({ error, busy: false });
  const go = async (event) => {
    event.preventDefault();
    const token = new FormData(event.target).get("token");
    set({ error: "", busy: true });
    try { await post("login", { token }); onDone(); } catch (problem) { set({ error: problem.message, busy: false }); }
  };
  return html`<main class="login"><form onSubmit=${go}><img src="static/icon.svg" alt="" width="48" height="48" /><h1>Millpond</h1>
    <p>This page needs its token. Whoever started it has it, in a file or in <code>MILLPOND_WEB_TOKEN</code>.</p>
    <label>Token <input name="token" type="password" autocomplete="current-password" required autofocus /></label>
    ${state.error && html`<p class="problem" role="alert">${state.error}</p>`}<button class="primary" disabled=${state.busy}>Open</button></form></main>`;
}

const STATUS = {
  loading: ["…", "looking"], live: ["●", "live"], away: ["▲", "store is away"], offline: ["✕", "not connected"], login: ["", ""],
};

const Banner = ({ live }) => {
  if (live.status === "away") {
    return html`<div class="banner bad" role="alert"><b>▲ The store is away.</b> <span>${live.error}</span>
      <small>What you see is from ${new Date(live.at || Date.now()).toLocaleTimeString()}. The page looks again every second.</small></div>`;
  }
  if (live.status === "offline") {
    return html`<div class="banner warn" role="alert"><b>✕ Not connected.</b> <span>${live.error}</span> <small>Trying again… What you see is from ${new Date(live.at || Date.now()).toLocaleTimeString()}.</small></div>`;
  }
  return null;
};

const SHORTCUTS = [["?", "this help"], ["o", "overview"], ["a", "audit log"], ["1 – 7", "tabs of a pool"], ["/", "find"], ["[ and ]", "back, next page"], ["t", "light or dark"], ["Esc", "close"]];

function Help({ onClose }) {
  const box = useRef(null);
  useEffect(() => { box.current.showModal(); }, []);
  return html`<dialog ref=${box} class="help" onClose=${onClose} onClick=${(event) => event.target === box.current && box.current.close()}><h2>Keys</h2>
    <dl>${SHORTCUTS.map(([keys, what]) => html`<dt><kbd>${keys}</kbd></dt><dd>${what}</dd>`)}</dl><form method="dialog"><button autofocus>Close</button></form></dialog>`;
}

function Page() {
  const [route, setRoute] = useState(where());
  const [live, setLive] = useState({ status: "loading", pools: null, error: "" });
  const [place, setPlace] = useState(null);
  const [colours, setColours] = useState(theme());
  const [isHelp, setHelp] = useState(false);
  const [done, setDone] = useState("");
  const [find, setFind] = useState("");
  const [tick, setTick] = useState(0);
  const stream = useRef(null);
  const [kind, pool, tab = "", ...rest] = route;
  const isPool = kind === "keyed" || kind === "resources";

  useEffect(() => {
    const moved = () => { setRoute(where()); scrollTo(0, 0); };
    addEventListener("hashchange", moved);
    const system = matchMedia("(prefers-color-scheme: dark)");
    const changed = () => setColours(theme());
    system.addEventListener("change", changed);
    stream.current = new Live((news) => setLive((was) => {
      const now = { ...was, ...news };
      remember(now);
      return now;
    }));
    return () => { removeEventListener("hashchange", moved); system.removeEventListener("change", changed); stream.current.stop(); };
  }, []);

  const enter = () => get("place").then((found) => { setPlace(found); setLive((was) => ({ ...was, status: "loading" })); stream.current.start(); },
    (error) => setLive((was) => ({ ...was, status: error.status === 401 || error.status === 429 ? "login" : "offline", error: error.status === 401 ? "" : error.message || "the server of this page does not answer" })));
  useEffect(() => { enter(); }, []);
  useEffect(() => {
    if (!place && live.status === "offline") { const timer = setTimeout(enter, 2000); return () => clearTimeout(timer); }
  }, [live.status, place]);
  useEffect(() => {
    if (!place) return;
    setLive((was) => ({ ...was, pool: null, slots: null, gone: "" }));
    stream.current.watch(isPool && pool ? { kind, pool } : {});
  }, [place, kind, pool]);
  useEffect(() => { const timer = setInterval(() => document.hidden || setTick((count) => count + 1), SLOW); return () => clearInterval(timer); }, []);
  useEffect(() => { document.title = isPool && pool ? `${pool} · Millpond` : kind === "audit" ? "Audit log · Millpond" : "Millpond"; }, [kind, pool]);
  useEffect(() => { if (done) { const timer = setTimeout(() => setDone(""), 6000); return () => clearTimeout(timer); } }, [done]);

  const flip = () => {
    const chosen = theme() === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = chosen;
    try { localStorage.setItem("millpond-theme", chosen); } catch { /* for this visit only */ }
    setColours(chosen);
  };
  useEffect(() => {
    const pressed = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
      if (event.target.closest?.("input,textarea,select")) { if (event.key === "Escape") event.target.blur(); return; }
      const go = (hash) => { location.hash = hash; };
      const tabs = isPool && pool ? TABS[kind] : [];
      if (event.key === "?") setHelp(true);
      else if (event.key === "t") flip();
      else if (event.key === "o") go("#/");
      else if (event.key === "a") go("#/audit");
      else if (event.key === "/") document.querySelector("[data-find]")?.focus();
      else if (event.key === "[" || event.key === "]") document.querySelector(`[data-key="${event.key}"]`)?.click();
      else if (/^[1-9]$/.test(event.key) && tabs[event.key - 1]) go(link(kind, pool, ...(tabs[event.key - 1][0] ? [tabs[event.key - 1][0]] : [])));
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, [kind, pool]);

  if (live.status === "login") return html`<${Login} error=${live.error} onDone=${enter} />`;
  if (!place) {
    return live.status === "offline" ? html`<main><${Banner} live=${live} /></main>` : html`<main><p class="boot">Looking at the pools…</p></main>`;
  }
  const row = isPool ? live.pools?.find((one) => one.kind === kind && one.pool === pool && !one.is_name_only) : null;
  const order = of(orders, `${kind} ${pool}`, () => new Order());
  if (kind === "keyed" && live.pool?.workers && live.slots && live.pool.pool === pool) {
    [...live.pool.workers].sort((one, other) => one.joined_at - other.joined_at).forEach((one) => order.number(one.id));
    memory.look(pool, live.slots, live.pool.workers);
    recorder.look(live.pool);
  }
  const [mark, word] = STATUS[live.status];
  const shared = { pool, tab, rest, place, live, row, order, memory, recorder, keyOrder, theme: colours, tick: `${tick} ${live.at}`, rings: of(rings, pool, () => new Ring(300)) };
  const slow = { ...shared, tick };
  const isLive = kind === "keyed" && (tab === "" || tab === "stream");
  return html`<header class="top"><a class="brand" href="#/"><img src="static/icon.svg" alt="" width="26" height="26" /><b>Millpond</b></a>
      <span class="place" title=${place.url}>${place.url}</span>
      <nav aria-label="Main"><a href="#/" class=${!kind ? "on" : ""}>Overview</a><a href="#/audit" class=${kind === "audit" ? "on" : ""}>Audit log</a></nav>
      ${place.read_only && html`<span class="badge">read-only</span>`}
      <span class="status ${live.status}" role="status"><i aria-hidden="true">${mark}</i> ${word}</span>
      <button class="icon" onClick=${flip} title="Light or dark (t)" aria-label="Light or dark">${colours === "dark" ? "☀" : "☾"}</button>
      <button class="icon" onClick=${() => setHelp(true)} title="Keys (?)" aria-label="Help">?</button>
      ${place.has_token && html`<button class="icon wide" onClick=${() => post("logout", {}).then(() => location.reload())}>Log out</button>`}</header>
    <${Banner} live=${live} />
    <main>
      ${isPool && pool && html`<nav class="tabs" aria-label="Views of the pool"><a href="#/">‹ pools</a>${TABS[kind].map(([id, title]) => html`<a key=${id} href=${link(kind, pool, ...(id ? [id] : []))}
        class=${id === tab || (tab === "key" && id === "keys") || (tab === "resource" && id === "") ? "on" : ""} aria-current=${id === tab ? "page" : null}>${title}${id === "dead" && row?.dead ? html`<span class="count">${row.dead}</span>` : id === "waiters" && row?.waiting ? html`<span class="count">${row.waiting}</span>` : ""}</a>`)}</nav>`}
      ${isPool && pool && live.gone ? html`<${Empty} title="This pool is gone">${live.gone}. <a href="#/">All pools</a><//>`
        : kind === "keyed" && pool ? html`<${Keyed} ...${isLive ? shared : slow} key=${`k${pool}`} />`
        : kind === "resources" && pool ? html`<${Resources} ...${slow} key=${`r${pool}`} />`
        : kind === "audit" ? html`<${Audit} tick=${tick} />`
        : kind ? html`<${Empty} title="There is no such view">Begin at the <a href="#/">overview</a>.<//>`
        : html`<div class="head"><h1>Pools</h1>${(live.pools?.length || 0) > 6 && html`<${Search} value=${find} onFind=${setFind} label="Find a pool" placeholder="Find a pool" />`}</div>
          <${Overview} live=${live} find=${find} rates=${(one) => perSecond.get(one.pool)?.rate} />`}
    </main>
    <footer class="foot">Millpond ${place.version} · press <kbd>?</kbd> for keys</footer>
    <div class="toast ${done ? "shown" : ""}" role="status">${done}</div>
    <${ActDialog} place=${place} onDone=${(answer) => { setDone(`Done: ${answer.done}${answer.result != null ? ` (${answer.result})` : ""}`); setTick((count) => count + 1); }} />
    ${isHelp && html`<${Help} onClose=${() => setHelp(false)} />`}`;
}

const root = document.getElementById("page");
root.textContent = "";
render(html`<${Page} />`, root);
