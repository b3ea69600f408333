// The task stream: a row for each worker, a box for each job that was seen running. It is looked at once a second, so what
// runs shorter than that is seen by chance; how much was done is counted exactly in the charts.
import { useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { ink, sharp, stripes, textOn } from "./palette.js";
import { Badge, duration, Empty, html, several, Tooltip, useWidth } from "./ui.js";

const MOST = 3000, ROW = 34, AXIS = 22;

export class Recorder {
  constructor() {
    this.boxes = new Map();
    this.pool = "";
  }

  look(state) {
    if (state.pool !== this.pool) Object.assign(this, { pool: state.pool, boxes: new Map() });
    const alive = new Set(state.workers.map((one) => one.id));
    const seen = new Set();
    for (const [id, key, name, worker, since, attempts] of state.running) {
      const about = `${id} ${since}`;
      seen.add(about);
      const box = this.boxes.get(about);
      if (box) box.until = state.now;
      else this.boxes.set(about, { id, key, name, worker, since: Math.min(since || state.now, state.now), until: state.now, attempts, end: "" });
    }
    for (const [about, box] of this.boxes) {
      if (!seen.has(about) && !box.end) box.end = alive.has(box.worker) ? "ended" : "cut";
    }
    while (this.boxes.size > MOST) this.boxes.delete(this.boxes.keys().next().value);
    this.now = state.now;
  }
}

export function Stream({ recorder, order, keys, state, tick, spans, setSpan, span }) {
  const canvas = useRef(null), box = useRef(null), drawn = useRef([]);
  const [hover, setHover] = useState(null);
  const width = useWidth(box);
  const from = state.now - span;
  const boxes = [...recorder.boxes.values()].filter((one) => one.until >= from);
  const rows = [...new Set([...state.workers.map((one) => one.id), ...boxes.map((one) => one.worker)])].sort((one, other) => order.number(one) - order.number(other));
  const lanes = new Map(rows.map((id) => [id, []]));
  for (const one of boxes.sort((a, b) => a.since - b.since)) { // jobs of one worker beside one another take lines of their own
    const lines = lanes.get(one.worker);
    let line = lines.findIndex((until) => until <= one.since);
    if (line < 0) line = lines.push(0) - 1;
    lines[line] = one.end ? one.until : Infinity;
    one.line = line;
  }
  const heights = rows.map((id) => Math.max(ROW, Math.min(lanes.get(id).length, 12) * 14 + 8));
  const height = AXIS + heights.reduce((sum, one) => sum + one, 0);
  const left = width < 560 ? 40 : 130;
  useEffect(() => {
    if (!canvas.current) return;
    const context = sharp(canvas.current, width, height);
    const text = ink("ink"), muted = ink("muted"), line = ink("line"), bad = ink("bad");
    const at = (time) => left + ((time - from) / span) * (width - left);
    drawn.current = [];
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.fillStyle = muted;
    for (let ago = 0; ago <= span; ago += span / 4) {
      const x = at(state.now - ago);
      context.strokeStyle = line;
      context.beginPath();
      context.moveTo(x - 0.5, 0);
      context.lineTo(x - 0.5, height - AXIS);
      context.stroke();
      context.textAlign = ago ? "center" : "right";
      if (x > left + 20 || ago) context.fillText(ago ? `-${duration(ago)}` : "now", Math.max(left + 18, x), height - AXIS / 2);
    }
    let top = 0;
    rows.forEach((id, index) => {
      context.fillStyle = line;
      context.fillRect(0, top, width, 1);
      context.fillStyle = order.colour(id);
      context.beginPath();
      context.roundRect(4, top + 7, 20, 20, 6);
      context.fill();
      context.fillStyle = "#fff";
      context.textAlign = "center";
      context.font = "bold 11px system-ui, sans-serif";
      context.fillText(String(order.number(id)), 14, top + 17.5);
      context.font = "11px system-ui, sans-serif";
      const worker = state.workers.find((one) => one.id === id);
      if (left > 60) {
        context.fillStyle = worker ? text : muted;
        context.textAlign = "left";
        context.fillText((worker ? worker.label : "gone").slice(0, 16), 30, top + 17.5);
      }
      const lines = Math.max(1, Math.min(lanes.get(id).length, 12)), each = (heights[index] - 8) / lines;
      for (const one of boxes) {
        if (one.worker !== id || one.line >= 12) continue;
        const x = Math.max(left, at(one.since)), wide = Math.max(3, at(one.until) - x), y = top + 4 + one.line * each, tall = each - 2;
        context.fillStyle = keys.colour(one.key);
        context.globalAlpha = one.end ? 0.75 : 1;
        context.fillRect(x, y, wide, tall);
        context.globalAlpha = 1;
        if (one.attempts > 1) stripes(context, x, y, wide, tall, text);
        if (one.end === "cut") {
          context.strokeStyle = bad;
          context.lineWidth = 2;
          context.strokeRect(x + 1, y + 1, Math.max(2, wide - 2), tall - 2);
          context.fillStyle = bad;
          context.fillRect(x + wide - 3, y, 3, tall);
        }
        if (wide > 46 && tall > 9) {
          context.save();
          context.beginPath();
          context.rect(x + 2, y, wide - 6, tall);
          context.clip();
          context.fillStyle = textOn(keys.colour(one.key));
          context.textAlign = "left";
          context.fillText(one.key, x + 5, y + tall / 2 + 0.5);
          context.restore();
        }
        drawn.current.push([x, y, wide, tall, one]);
      }
      top += heights[index];
    });
  }, [tick, width, height, span]);
  const show = (event) => {
    const { left: x0, top: y0 } = canvas.current.getBoundingClientRect();
    const x = event.clientX - x0, y = event.clientY - y0;
    const hit = drawn.current.findLast(([at, down, wide, tall]) => x >= at && x <= at + wide && y >= down && y <= down + tall);
    setHover(hit ? { x: event.clientX, y: event.clientY, box: hit[4] } : null);
  };
  return html`<section class="stream" aria-label="Task stream">
    <div class="tools"><span class="hint">A box is a job; its colour is its key. <span class="swatch striped"></span> tried again
      <span class="swatch cut"></span> cut off when its worker went. Looked at once a second: shorter jobs are seen by chance.</span>
      <span class="choice" role="group" aria-label="How far back">${spans.map((one) => html`<button class=${one === span ? "on" : ""} aria-pressed=${one === span} onClick=${() => setSpan(one)}>${duration(one)}</button>`)}</span></div>
    <div ref=${box} class="canvas"><canvas ref=${canvas} data-boxes=${boxes.length} role="img" aria-label=${`${several(boxes.length, "job")} of the last ${duration(span)} on ${several(rows.length, "worker")}`}
      onMouseMove=${show} onMouseLeave=${() => setHover(null)}></canvas></div>
    ${boxes.length ? null : html`<${Empty} title="Nothing was seen running">Jobs that take a second or more show up here as they run.<//>`}
    ${state.more_running && html`<p class="hint"><${Badge} tone="warn" mark="!">more jobs run than are drawn: the first 200<//></p>`}
    <${Tooltip} at=${hover}>${hover && html`<b>${hover.box.name}</b> of key <b>${hover.box.key}</b><br />on worker ${order.number(hover.box.worker)}, for ${duration(hover.box.until - hover.box.since)}
      ${hover.box.attempts > 1 && html`<br />try number ${hover.box.attempts}`}${hover.box.end === "cut" && html`<br />cut off: its worker went`}<br /><small>${hover.box.id}</small>`}<//>
  </section>`;
}
