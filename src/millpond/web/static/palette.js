// Colours that colour-blind people can tell (Okabe and Ito, and two of Tol's), given in the order of arrival; every colour
// comes with a number, and from the ninth on with a pattern.
const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b7a100", "#8a6fc4"];
const BRIGHT = new Set(["#e69f00", "#56b4e9", "#b7a100", "#cc79a7"]);
export const textOn = (colour) => (BRIGHT.has(colour) ? "#10202a" : "#fff");
export const NOBODY = "#8b98a1";

export class Order {
  constructor(most = 5000) {
    this.known = new Map();
    this.most = most;
    this.count = 0;
  }

  number(name) {
    if (!this.known.has(name)) {
      if (this.known.size >= this.most) this.known.delete(this.known.keys().next().value);
      this.known.set(name, ++this.count);
    }
    return this.known.get(name);
  }

  colour(name) {
    return name ? COLOURS[(this.number(name) - 1) % COLOURS.length] : NOBODY;
  }

  isStriped(name) {
    return Boolean(name) && Math.floor((this.number(name) - 1) / COLOURS.length) % 2 === 1;
  }
}

export function stripes(context, x, y, width, height, colour) {
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.strokeStyle = colour;
  context.lineWidth = 1.5;
  context.beginPath();
  for (let at = -height; at < width; at += 5) {
    context.moveTo(x + at, y + height);
    context.lineTo(x + at + height, y);
  }
  context.stroke();
  context.restore();
}

export const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// A canvas that is sharp on every screen; returns its context, in the pixels of CSS.
export function sharp(canvas, width, height) {
  const scale = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

export const isStill = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
