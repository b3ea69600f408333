// Doing something: always with a reason, always saying first what will happen.
import { useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { post } from "./api.js";
import { html } from "./ui.js";

const NAME = "millpond-name";
const remembered = () => { try { return localStorage.getItem(NAME) || ""; } catch { return ""; } };
const remember = (name) => { try { localStorage.setItem(NAME, name); } catch { /* asked again next time */ } };

let open = () => {};

// `what`: { verb, title, body, fields: [{name, label, value, hint}], danger, done }
export const act = (what) => open(what);

export function ActDialog({ place, onDone }) {
  const [what, set] = useState(null);
  const [state, setState] = useState({});
  const dialog = useRef(null);
  open = (wanted) => { setState({ reason: "", by: remembered(), given: {}, error: "", busy: false, would: "" }); set(wanted); };
  const close = () => { set(null); dialog.current?.close(); };
  useEffect(() => {
    if (!what || !dialog.current) return;
    dialog.current.showModal();
    dialog.current.querySelector("input,textarea")?.focus();
    let isOld = false;  // an answer that comes late is not about the dialog that is open then
    const tell = (news) => isOld || setState((was) => ({ ...was, ...news }));
    post(what.verb, { ...what.body, dry_run: true, ...(place.user ? {} : { by: remembered() }) }).then(
      ({ would }) => tell({ would }),
      (error) => tell({ error: error.message }),
    );
    return () => { isOld = true; };
  }, [what]);
  if (!what) return null;
  const body = () => {
    const more = {};
    for (const { name, kind } of what.fields || []) {
      const text = (state.given[name] ?? "").trim();
      if (text) more[name] = kind === "number" ? Number(text) : kind === "json" ? JSON.parse(text) : text;
    }
    return { ...what.body, ...more, reason: state.reason, ...(place.user ? {} : { by: state.by }) };
  };
  const go = async (event) => {
    event.preventDefault();
    setState((was) => ({ ...was, busy: true, error: "" }));
    try {
      remember(state.by);
      const answer = await post(what.verb, body());
      onDone(answer);
      what.done?.();
      close();
    } catch (error) {
      setState((was) => ({ ...was, busy: false, error: error.message }));
    }
  };
  const edit = (name) => (event) => setState((was) => ({ ...was, [name]: event.target.value }));
  const give = (name) => (event) => setState((was) => ({ ...was, given: { ...was.given, [name]: event.target.value } }));
  return html`<dialog ref=${dialog} class="act ${what.danger ? "danger" : ""}" onClose=${close} aria-labelledby="act-title">
    <form method="dialog" onSubmit=${go}>
      <h2 id="act-title">${what.title}</h2>
      <p class="would">${state.would ? `This will ${state.would}.` : what.about || " "}</p>
      ${what.about && state.would && html`<p class="about">${what.about}</p>`}
      ${(what.fields || []).map(({ name, label, hint }) => html`<label>${label}
        <input name=${name} value=${state.given[name] || ""} placeholder=${hint || ""} onInput=${give(name)} /></label>`)}
      <label>Why? <textarea name="reason" required maxlength="500" rows="2" value=${state.reason} onInput=${edit("reason")}
        placeholder="Kept in the log, for those who will ask"></textarea></label>
      ${place.user ? html`<p class="about">You are ${place.user}.</p>` : html`<label>Your name
        <input name="by" maxlength="80" required value=${state.by} onInput=${edit("by")} placeholder="Kept in the log, too" /></label>`}
      ${state.error && html`<p class="problem" role="alert">${state.error}</p>`}
      <menu>
        <button type="button" onClick=${close}>Leave it</button>
        <button class=${what.danger ? "danger" : "primary"} disabled=${state.busy || !state.reason.trim()}>${state.busy ? "Doing it…" : what.title}</button>
      </menu>
    </form></dialog>`;
}

export const Do = ({ place, children, danger, ...what }) =>
  place.read_only ? null : html`<button class="small ${danger ? "danger" : ""}" onClick=${(event) => { event.stopPropagation(); act({ ...what, danger }); }}>${children}</button>`;
