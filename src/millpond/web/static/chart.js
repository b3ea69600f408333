// Lines over the last minutes, by uPlot.
import { useEffect, useRef } from "./vendor/htm-preact.js";
import { ink } from "./palette.js";
import { html } from "./ui.js";

export class Ring {
  constructor(size) {
    this.size = size;
    this.rows = [];
  }

  add(row) {
    if (this.rows.length && row[0] <= this.rows[this.rows.length - 1][0]) return;
    this.rows.push(row);
    if (this.rows.length > this.size) this.rows.shift();
  }
}

// `lines`: [[title, colour name, index into the rows, dash]]
export function Chart({ ring, lines, title, height = 130, theme, unit = "" }) {
  const box = useRef(null);
  const plot = useRef(null);
  useEffect(() => {
    if (!box.current || !window.uPlot) return undefined;
    const muted = ink("muted"), line = ink("line");
    const axis = { stroke: muted, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "11px system-ui" };
    plot.current = new window.uPlot({
      width: box.current.clientWidth, height, legend: { show: false }, cursor: { show: false },
      padding: [8, 8, 0, 0],
      scales: { y: { range: (_, low, high) => [0, Math.max(high || 0, 1) * 1.1] } },
      axes: [{ ...axis, space: 64, incrs: [5, 10, 15, 30, 60, 120, 300], values: (_, ticks) => ticks.map((at) => new Date(at * 1000).toLocaleTimeString([], { minute: "2-digit", second: "2-digit" })) },
        { ...axis, size: 46, values: (_, ticks) => ticks.map((value) => (value >= 1000 ? `${(value / 1000).toLocaleString("en")}k` : value.toLocaleString("en"))) }],
      series: [{}, ...lines.map(([, colour, , dash]) => ({ stroke: ink(colour), width: 2, dash, points: { show: false } }))],
    }, [[], ...lines.map(() => [])], box.current);
    const watch = new ResizeObserver(() => plot.current?.setSize({ width: box.current?.clientWidth || 300, height }));
    watch.observe(box.current);
    return () => { watch.disconnect(); plot.current?.destroy(); plot.current = null; };
  }, [theme, height]);
  useEffect(() => {
    plot.current?.setData([ring.rows.map((row) => row[0]), ...lines.map(([, , index]) => ring.rows.map((row) => row[index]))]);
  });
  const last = ring.rows[ring.rows.length - 1];
  return html`<figure class="chart"><figcaption>${title}
    ${lines.map(([name, colour, index, dash]) => html`<span class="legend"><i class=${`key ${colour} ${dash ? "dashed" : ""}`}></i>${name}: <b>${last ? Math.round((last[index] ?? 0) * 10) / 10 : "–"}${unit}</b></span>`)}
    </figcaption><div class="plot" ref=${box}></div></figure>`;
}
