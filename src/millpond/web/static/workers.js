// Keys on workers: a lane for each worker, a block for each slot of the key space. A block that moves flies to its new
// lane, and keeps the colour of where it came from for a while.
import { useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { get } from "./api.js";
import { ink, isStill, NOBODY, sharp, stripes } from "./palette.js";
import { Badge, duration, Empty, html, number, several, Tooltip, useWidth } from "./ui.js";

const FLIGHT = 900, FRESH = 10000, GHOST = 60000, LABEL = 52, GAP = 14;

// What the canvas remembers between two looks.
export class Memory {
  constructor() {
    this.pool = "";
    this.owner = [];
    this.moved = new Map(); // slot -> {from, at}
    this.seen = new Map(); // worker -> as it was last seen, and when
    this.present = new Set();
  }

  look(pool, slots, workers) {
    const now = performance.now();
    if (pool !== this.pool) Object.assign(this, { pool, owner: [], moved: new Map(), seen: new Map() });
    for (const worker of workers) this.seen.set(worker.id, { ...worker, at: now });
    this.present = new Set(workers.map((one) => one.id));
    const fresh = slots.slots.map((index) => slots.owners[index]);
    if (this.owner.length === fresh.length) {
      fresh.forEach((owner, slot) => {
        if (owner !== this.owner[slot]) this.moved.set(slot, { from: this.owner[slot], at: now });
      });
    }
    this.owner = fresh;
    for (const [slot, { at }] of this.moved) if (now - at > FRESH) this.moved.delete(slot);
    for (const [id, { at }] of this.seen) if (now - at > GHOST) this.seen.delete(id);
  }

  lanes(order) {
    const now = performance.now();
    const there = [...this.seen.values()].sort((one, other) => one.joined_at - other.joined_at || (one.id < other.id ? -1 : 1));
    const owned = new Map();
    this.owner.forEach((owner, slot) => (owned.get(owner) || owned.set(owner, []).get(owner)).push(slot));
    const lanes = there.map((worker) => ({ ...worker, isGone: !this.present.has(worker.id), goneFor: (now - worker.at) / 1000, slots: owned.get(worker.id) || [] }));
    for (const [owner, slots] of owned) {
      if (owner && !this.seen.has(owner)) lanes.push({ id: owner, label: "gone", isGone: true, goneFor: null, slots });
    }
    if (owned.has("")) lanes.push({ id: "", label: "nobody", isGone: false, slots: owned.get("") });
    lanes.forEach((lane) => lane.id && order.number(lane.id));
    return lanes;
  }
}

function layout(lanes, width) {
  const most = Math.max(1, ...lanes.map((lane) => lane.slots.length));
  const size = Math.max(5, Math.min(24, Math.floor(Math.sqrt((width * 130) / most))));
  const across = Math.max(1, Math.floor(width / size));
  const places = new Map();
  let top = 0;
  for (const lane of lanes) {
    lane.top = top;
    lane.rows = Math.max(1, Math.ceil(lane.slots.length / across));
    lane.height = LABEL + (lane.slots.length || !lane.isGone ? Math.max(lane.rows * size, size) : 10);
    lane.slots.forEach((slot, index) => places.set(slot, [(index % across) * size, top + LABEL + Math.floor(index / across) * size]));
    top += lane.height + GAP;
  }
  return { size, places, height: Math.max(top, 60) };
}

export function KeysOnWorkers({ pool, slots, order, memory, tick }) {
  const canvas = useRef(null), box = useRef(null), frame = useRef(0), before = useRef(new Map());
  const [hover, setHover] = useState(null);
  const width = useWidth(box);
  const lanes = memory.lanes(order);
  const { size, places, height } = layout(lanes, width);
  const marks = new Map();
  for (const [slot, state] of pool.marks) if (marks.get(slot) !== "running") marks.set(slot, state);
  useEffect(() => {
    const from = before.current;
    const draw = () => {
      if (!canvas.current) return;
      const context = sharp(canvas.current, width, height);
      const now = performance.now(), paper = ink("surface"), text = ink("ink");
      let isMoving = false;
      const inner = size > 9 ? size - 2 : size - 1;
      const flying = [];
      const block = (slot, x, y) => {
        const owner = memory.owner[slot], moved = memory.moved.get(slot), mark = marks.get(slot);
        context.globalAlpha = mark ? 1 : 0.42;
        context.fillStyle = order.colour(owner);
        context.fillRect(x, y, inner, inner);
        if (order.isStriped(owner)) stripes(context, x, y, inner, inner, paper);
        if (moved && now - moved.at < FRESH) {
          context.globalAlpha = 1;
          context.fillStyle = moved.from ? order.colour(moved.from) : NOBODY;
          context.beginPath();
          context.moveTo(x, y);
          context.lineTo(x + inner, y);
          context.lineTo(x, y + inner);
          context.fill();
        }
        context.globalAlpha = 1;
        if (mark === "running" && size > 6) {
          context.fillStyle = paper;
          const dot = Math.max(2, inner * 0.3);
          context.fillRect(x + (inner - dot) / 2, y + (inner - dot) / 2, dot, dot);
        } else if (mark && mark !== "ready" && size > 6) {
          context.strokeStyle = text;
          context.lineWidth = 1.5;
          context.strokeRect(x + 1, y + 1, inner - 2, inner - 2);
        }
      };
      for (const [slot, [x, y]] of places) {
        const start = from.get(slot), moved = memory.moved.get(slot);
        const part = moved && start && !isStill() ? (now - moved.at - (slot % 97) * 3) / FLIGHT : 1;
        if (part < 1) {
          isMoving = true;
          flying.push([slot, start, [x, y], Math.max(0, part)]);
        } else block(slot, x, y);
      }
      for (const [slot, [x0, y0], [x1, y1], part] of flying) {
        const eased = part < 0.5 ? 2 * part * part : 1 - (2 - 2 * part) ** 2 / 2;
        block(slot, x0 + (x1 - x0) * eased, y0 + (y1 - y0) * eased - Math.sin(Math.PI * eased) * 10);
      }
      if (isMoving) frame.current = requestAnimationFrame(draw);
      else before.current = places;
    };
    cancelAnimationFrame(frame.current);
    draw();
    return () => cancelAnimationFrame(frame.current);
  }, [tick, width, height, size, slots]);
  const find = (event) => {
    const { left, top } = canvas.current.getBoundingClientRect();
    const x = event.clientX - left, y = event.clientY - top;
    for (const [slot, [at, down]] of places) if (x >= at && x < at + size && y >= down && y < down + size) return slot;
    return null;
  };
  const show = (event) => {
    const slot = find(event);
    setHover(slot == null ? null : { x: event.clientX, y: event.clientY, slot });
  };
  const [asked, setAsked] = useState(null);
  const ask = async (event) => {
    const slot = find(event);
    if (slot == null) return;
    try { setAsked(await get("slots", { pool: pool.pool, number: String(slot) })); } catch (error) { setAsked({ because: error.message }); }
  };
  const keysOf = (slot) => pool.marks.filter(([at]) => at === slot).map(([, state, key]) => `${key} (${state})`);
  return html`<section class="lanes" aria-label="Keys on workers">
    ${lanes.length ? null : html`<${Empty} title="No workers">Start one: <code>millpond worker app:pool</code>. What is dispatched waits for it.<//>`}
    <div class="stage" ref=${box} style=${{ height: `${height}px` }}>
      <canvas ref=${canvas} onMouseMove=${show} onMouseLeave=${() => setHover(null)} onClick=${ask} role="img"
        aria-label=${lanes.map((lane) => `${lane.id ? `worker ${order.number(lane.id)}` : "nobody"} has ${lane.slots.length} slots`).join(", ")}></canvas>
      ${lanes.map((lane) => html`<${Lane} key=${lane.id} lane=${lane} order=${order} total=${memory.owner.length} pool=${pool} />`)}
    </div>
    <p class="hint"><span class="swatch idle"></span> a slot of the key space, nothing to do <span class="swatch busy"></span> keys with jobs
      <span class="swatch runs"></span> a job runs <span class="swatch halved"></span> just moved: the corner shows from whom. Click a block to ask why it is there.</p>
    ${asked && html`<p class="answer" role="status">${asked.because} <button class="small" onClick=${() => setAsked(null)}>Close</button></p>`}
    <${Tooltip} at=${hover}>${hover && html`<b>slot ${hover.slot}</b><br />${memory.owner[hover.slot] ? `on worker ${order.number(memory.owner[hover.slot])}` : "on nobody"}
      ${keysOf(hover.slot).slice(0, 6).map((line) => html`<br />${line}`)}`}<//>
  </section>`;
}

function Lane({ lane, order, total, pool }) {
  const runs = pool.running.filter((one) => one[3] === lane.id).length;
  const share = total ? Math.round((100 * lane.slots.length) / total) : 0;
  return html`<div class="lane ${lane.isGone ? "gone" : ""}" style=${{ top: `${lane.top}px`, height: `${lane.height}px` }} data-worker=${lane.id} data-slots=${lane.slots.length}>
    <div class="who"><span class="tag ${order.isStriped(lane.id) ? "striped" : ""}" style=${{ background: order.colour(lane.id) }}>${lane.id ? order.number(lane.id) : "–"}</span>
      <b>${lane.id ? lane.label : "nobody"}</b>
      ${lane.isGone ? html`<${Badge} tone="bad" mark="✕">gone${lane.goneFor == null ? "" : ` for ${duration(lane.goneFor)}`}<//>` : null}
      ${!lane.isGone && lane.is_leaving ? html`<${Badge} tone="warn" mark="⇣">leaving<//>` : null}
      ${!lane.isGone && lane.id && lane.lease_left <= 0 ? html`<${Badge} tone="bad" mark="…">silent for ${duration(-lane.lease_left)}<//>` : null}
      <small>${lane.id}</small></div>
    <div class="load"><b>${several(lane.slots.length, "slot")}</b> (${share} %)${lane.id && !lane.isGone ? html` · runs <b>${runs}</b> of ${lane.concurrency}` : ""}</div>
  </div>`;
}

const WHY = { died: "died", left: "left", rebalanced: "gave over" };

export function Moves({ moves, order, now }) {
  const shown = moves.filter((one) => one.why in WHY && now - one.until < (one.why === "rebalanced" ? 60 : 3600)).slice(0, 5);
  if (!shown.length) return null;
  return html`<ul class="moves" aria-live="polite">${shown.map((one) => html`<li class=${one.why} data-why=${one.why} data-worker=${one.worker}>
    <span class="tag" style=${{ background: order.colour(one.worker) }}>${order.number(one.worker)}</span>
    <span><b>${one.label || `worker ${one.worker.slice(0, 12)}`}</b> <b class="verb">${WHY[one.why]}</b>: ${several(one.slots, "slot")} moved to
      ${Object.entries(one.to).slice(0, 6).map(([id, count]) => html` <span class="to"><span class="tag small" style=${{ background: order.colour(id) }}>${order.number(id)}</span>${number(count)}</span>`)}
      ${one.took == null ? "" : html` · in <b>${duration(one.took)}</b> from its last sign of life`}
      ${one.rerun == null ? "" : html` · <b>${number(one.rerun)}</b> re-run${one.with.length ? ` (with ${one.with.map((id) => order.number(id)).join(", ")})` : ""}`}
      ${one.unaccounted == null ? "" : one.unaccounted ? html` · ${number(one.unaccounted)} cancelled, replaced, purged or discarded meanwhile` : html` · <b class="good">0 lost</b>`}</span>
    <small>${duration(Math.max(0, now - one.until))} ago</small></li>`)}</ul>`;
}
