// A change of a tier's size: which one brings a tenant most, whether its curve may be believed, and in what words.

import { bytes, plural } from "./words.js";

export const TIERS = { hot: "hot memory", redis: "Redis" };
export const SHORT_TIERS = { hot: "hot", redis: "Redis" };

const MISFIT_MAX = 0.15; // between measured and drawn hit ratio; beyond it a curve answers nothing
const POINTS_MIN = 0.05; // less is shown as 0.0

export function fits({ measured, predicted }) {
  return !measured || Math.abs(measured.hit_ratio - predicted.hit_ratio) <= MISFIT_MAX;
}

/** The change that brings most, or null. */
export function best({ what_if: changes }) {
  if (!changes.length) return null;
  const most = changes.reduce((a, b) => (b.points > a.points ? b : a));
  return most.points < POINTS_MIN ? null : most;
}

export function isNothing(change) {
  return Math.abs(change.points) < POINTS_MIN;
}

export function signed(n) {
  return `${n < 0 ? "−" : "+"}${bytes(Math.abs(n))}`;
}

export function points(n) {
  return `${n < 0 ? "−" : "+"}${Math.abs(n).toFixed(1)} points`;
}

/** Of whom the API says nothing, since it was asked for no more. */
export function leftOutWords(n) {
  const are = n === 1 ? "is" : "are";
  return `${plural(n, "tenant")} with fewer lookups ${are} left out; see one with \`tiered capacity TENANT\`.`;
}
