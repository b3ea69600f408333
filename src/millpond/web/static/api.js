// The API as the page uses it. All addresses are relative, so the page works wherever it is mounted.

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function answer(response) {
  let data = null;
  try { data = await response.json(); } catch { /* not ours: a proxy's page, or nothing */ }
  if (!response.ok) throw new Refused(response.status, (data && data.error) || `${response.status} ${response.statusText}`);
  return data;
}

export function get(word, given = {}, signal = undefined) {
  const query = new URLSearchParams(Object.entries(given).filter(([, value]) => value !== "" && value != null));
  return fetch(`api/${word}?${query}`, { signal, cache: "no-store" }).then(answer);
}

export function post(verb, body) {
  return fetch(`api/${verb}`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  }).then(answer);
}

const AGAIN = [500, 1000, 2000, 4000];

// One stream for the whole tab. `tell` is called with what changed; a hidden tab listens to nothing.
export class Live {
  constructor(tell) {
    this.tell = tell;
    this.query = "";
    this.failed = 0;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.stop() : this.start()));
  }

  watch(given) {
    const query = String(new URLSearchParams(given));
    if (query === this.query && this.source) return;
    this.query = query;
    this.stop();
    this.start();
  }

  stop() {
    clearTimeout(this.timer);
    clearTimeout(this.silence);
    if (this.source) this.source.close();
    this.source = null;
  }

  start() {
    this.stop();
    if (document.hidden) return;
    const source = (this.source = new EventSource(`api/live?${this.query}`));
    const on = (name, what) => source.addEventListener(name, (event) => {
      if (source !== this.source) return;
      this.failed = 0;
      this.listen();
      what(JSON.parse(event.data));
    });
    on("pools", (pools) => this.tell({ status: "live", error: "", pools, at: Date.now() }));
    on("slots", (slots) => this.tell({ slots }));
    on("pool", (pool) => this.tell({ status: "live", error: "", pool, gone: "", at: Date.now() }));
    on("gone", ({ error }) => this.tell({ gone: error, pool: null, slots: null }));
    on("away", ({ error }) => this.tell({ status: "away", error }));
    source.onopen = () => this.listen();
    source.onerror = () => source === this.source && this.broken();
    this.listen();
  }

  // A line can be dead without anybody saying so.
  listen() {
    clearTimeout(this.silence);
    this.silence = setTimeout(() => this.broken(), 25000);
  }

  async broken() {
    this.stop();
    const wait = AGAIN[Math.min(this.failed++, AGAIN.length - 1)];
    try {
      await get("place");
      if (this.failed > 1) this.tell({ status: "offline", error: "the stream of news broke" });
    } catch (error) {
      if (error.status === 401) return this.tell({ status: "login", error: "" });
      if (error.status === 429) this.tell({ status: "login", error: error.message });
      else this.tell({ status: "offline", error: error.status ? error.message : "the server of this page does not answer" });
    }
    this.timer = setTimeout(() => this.start(), wait);
  }
}
