// Small things that every view uses.
import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/htm-preact.js";
import { get } from "./api.js";

export { html };

export const number = (value) => (value == null ? "–" : Number(value).toLocaleString("en"));
export const several = (count, word, words = `${word}s`) => `${number(count)} ${count === 1 ? word : words}`;

export function duration(seconds) {
  if (seconds == null) return "–";
  if (seconds < 0) return "now";
  if (seconds < 1) return seconds < 0.001 ? "0 s" : `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const whole = Math.floor(seconds);
  for (const [size, name, rest, less] of [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]]) {
    if (whole >= size) {
      const more = Math.floor((whole % size) / rest);
      return `${Math.floor(whole / size)} ${name}${more ? ` ${more} ${less}` : ""}`;
    }
  }
  return `${whole} s`;
}

export const clock = (time) => (time ? new Date(time * 1000).toLocaleString() : "");
export const Ago = ({ time, now = Date.now() / 1000 }) =>
  time ? html`<time title=${clock(time)} datetime=${new Date(time * 1000).toISOString()}>${duration(Math.max(0, now - time))} ago</time>` : "–";

export const Badge = ({ tone = "", mark = "", children, title }) =>
  html`<span class="badge ${tone}" title=${title}>${mark && html`<span aria-hidden="true">${mark} </span>`}${children}</span>`;

const STATES = {
  running: ["good", "▶"], ready: ["", "○"], waiting: ["", "○"], retry: ["warn", "↻"], paused: ["warn", "⏸"],
  parked: ["warn", "?"], delayed: ["", "◷"], dead: ["bad", "✕"], active: ["good", "●"], cordoned: ["warn", "⊘"],
  draining: ["warn", "⇣"], quarantined: ["bad", "☣"], removing: ["bad", "–"], held: ["info", "■"], offered: ["info", "◫"],
};
export const State = ({ of, children }) => {
  const [tone, mark] = STATES[of] || ["", "·"];
  return html`<${Badge} tone=${tone} mark=${mark}>${children || of}<//>`;
};

export const Empty = ({ title, children }) =>
  html`<div class="empty"><div class="ripple" aria-hidden="true"></div><h3>${title}</h3><p>${children}</p></div>`;

export const Problem = ({ error, again }) =>
  html`<div class="problem" role="alert"><strong>${error.status === 503 ? "The store is away." : "That did not work."}</strong>
    <span>${error.message}</span>${again && html`<button onClick=${again}>Try again</button>`}</div>`;

export const Loading = () => html`<div class="loading" role="status"><i></i><i></i><i></i><span>Loading…</span></div>`;

// Ask the API, and again whenever `given` or `tick` changes. What was there stays until there is something new.
export function useLook(word, given, tick = 0) {
  const [state, set] = useState({ data: null, error: null, about: "" });
  const about = JSON.stringify([word, given]);
  const asked = useRef(null);
  const ask = () => {
    const control = (asked.current = new AbortController());
    const over = () => { if (asked.current === control) asked.current = null; };
    get(word, given, control.signal).then(
      (data) => { over(); set({ data, error: null, about }); },
      (error) => { over(); if (error.name !== "AbortError") set((was) => ({ data: was.about === about ? was.data : null, error, about })); },
    );
  };
  useEffect(() => { ask(); return () => asked.current?.abort(); }, [about]);
  useEffect(() => { if (!asked.current) ask(); }, [tick]); // an answer that takes long is waited for
  return { ...state, error: state.about === about ? state.error : null, data: state.about === about ? state.data : null, again: ask };
}

export function Table({ columns, rows, row: rowProps = () => ({}), caption }) {
  return html`<div class="scroll"><table><caption class="hidden">${caption}</caption>
    <thead><tr>${columns.map(([title, , kind]) => html`<th scope="col" class=${kind}>${title}</th>`)}</tr></thead>
    <tbody>${rows.map((one) => html`<tr ...${rowProps(one)}>${columns.map(([title, show, kind]) => html`<td class=${kind} data-title=${title}>${show(one)}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

// Pages of the server: it says where the next one begins, so going back means to remember.
export function usePages(about) {
  const [stack, set] = useState([""]);
  useEffect(() => set([""]), [about]);
  return {
    after: stack[stack.length - 1],
    number: stack.length,
    next: (mark) => set((was) => [...was, mark]),
    previous: () => set((was) => (was.length > 1 ? was.slice(0, -1) : was)),
  };
}

export const Pager = ({ pages, data, what }) => {
  if (!data || (pages.number === 1 && !data.next)) {
    return data && html`<p class="pager"><span>${several(data.rows.length, what)}${data.rows.length ? "" : ""}</span></p>`;
  }
  return html`<p class="pager">
    <button data-key="[" disabled=${pages.number === 1} onClick=${pages.previous}>‹ Back</button>
    <span>page ${number(pages.number)}${data.total ? ` of ${number(data.total)} ${what}s` : ""}</span>
    <button data-key="]" disabled=${!data.next} onClick=${() => pages.next(data.next)}>Next ›</button></p>`;
};

export function Search({ value, onFind, label, placeholder, id = "find" }) {
  const [text, set] = useState(value || "");
  useEffect(() => set(value || ""), [value]);
  return html`<form class="search" role="search" onSubmit=${(event) => { event.preventDefault(); onFind(text); }}>
    <label><span class="hidden">${label}</span>
      <input id=${id} type="search" data-find value=${text} placeholder=${placeholder} onInput=${(event) => { set(event.target.value); if (!event.target.value) onFind(""); }} />
    </label><button>Find</button></form>`;
}

export const Copy = ({ text }) => html`<code class="copy" title=${text}>${text}</code>`;

export function Tooltip({ at, children }) {
  const box = useRef(null);
  useEffect(() => {
    if (!at || !box.current) return;
    const size = box.current.getBoundingClientRect();
    box.current.style.left = `${Math.max(8, Math.min(at.x + 14, innerWidth - size.width - 8))}px`;
    box.current.style.top = `${at.y + 18 + size.height > innerHeight ? at.y - size.height - 10 : at.y + 18}px`;
  });
  return at ? html`<div class="tooltip" ref=${box} role="tooltip">${children}</div>` : null;
}

export const link = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;

// How wide an element is, now and whenever that changes: it is measured before anything is painted.
export function useWidth(box) {
  const [width, setWidth] = useState(320);
  useLayoutEffect(() => {
    const measure = () => box.current && setWidth(Math.max(200, box.current.clientWidth));
    measure();
    const watch = new ResizeObserver(measure);
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  return width;
}
