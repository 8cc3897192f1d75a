// Keeps something current: asks, shows, waits, asks again. A page that nobody sees asks nothing.

import { Unreachable } from "./api.js";

const BUSY_SHARE = 4; // a slow answer makes us wait four times as long before the next question

/**
 * load: (signal) => data; show: (data) => void; fail: (error) => void. Errors of load alone reach fail; one in show is
 * a bug and is reported as such.
 */
export class Live {
  #every;
  #load;
  #show;
  #fail;
  #timer = 0;
  #aborter = null;
  #stopped = true;
  #onVisible = () => {
    if (!document.hidden) this.now();
  };

  constructor({ every, load, show, fail = () => {} }) {
    this.#every = every;
    this.#load = load;
    this.#show = show;
    this.#fail = fail;
  }

  start() {
    this.#stopped = false;
    document.addEventListener("visibilitychange", this.#onVisible);
    this.now();
    return this;
  }

  stop() {
    this.#stopped = true;
    clearTimeout(this.#timer);
    this.#aborter?.abort();
    document.removeEventListener("visibilitychange", this.#onVisible);
  }

  /** Ask at once; drops the question that is under way, whose answer may be from before a change. */
  now() {
    if (this.#stopped) return;
    clearTimeout(this.#timer);
    this.#aborter?.abort();
    void this.#ask();
  }

  async #ask() {
    const aborter = new AbortController();
    this.#aborter = aborter;
    const began = performance.now();
    let data;
    try {
      data = await this.#load(aborter.signal);
    } catch (error) {
      if (aborter.signal.aborted) return;
      this.#fail(error);
      if (!(error instanceof Unreachable) && error.status === undefined) reportError(error);
      this.#later(this.#every);
      return;
    }
    if (aborter.signal.aborted) return;
    try {
      this.#show(data);
    } finally {
      this.#later(Math.max(this.#every, BUSY_SHARE * (performance.now() - began)));
    }
  }

  #later(ms) {
    if (this.#stopped || document.hidden) return;
    this.#timer = setTimeout(() => this.#ask(), ms);
  }
}

/** Now, to be compared with later. */
export function moment() {
  return { at: performance.now(), wall: Date.now() };
}

/** The clock that only goes on stands still while the machine sleeps, the other may be set: the larger difference. */
export function secondsSince({ at, wall }) {
  return Math.max(performance.now() - at, Date.now() - wall) / 1000;
}

/** Differences of counters between two answers, by name. A counter that fell began anew: what it has is what came. */
export class Rates {
  #last = new Map();

  /** Counts a second since the last call for this key, or null the first time. age: of the numbers, in seconds. */
  of(key, life, counters, age) {
    const last = this.#last.get(key);
    const seconds = last ? secondsSince(last.heard) + last.age - age : 0;
    if (last && last.life === life && seconds < 0.5) return last.rates;
    const rates =
      last && last.life === life
        ? Object.fromEntries(
            Object.entries(counters).map(([name, n]) => [
              name,
              Math.max(0, n - (last.counters[name] ?? 0)) / seconds,
            ]),
          )
        : null;
    this.#last.set(key, { heard: moment(), age, life, counters, rates });
    return rates;
  }
}

const LATE_SHARE = 0.6; // workers renew each fifth of the default lease; below this, some were missed

/** Which nodes have not renewed their lease for long: the first that can be seen of one that died. */
export class Leases {
  #most = new Map();

  isLate(node) {
    const known = this.#most.get(node.node);
    const most = Math.max(known?.epoch === node.epoch ? known.left : 0, node.lease_left_s);
    this.#most.set(node.node, { epoch: node.epoch, left: most });
    return node.alive && node.lease_left_s < LATE_SHARE * most;
  }
}
