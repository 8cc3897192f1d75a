// Where the blocks of one prompt are: a cell for each block, a row for each stretch of neighbours.

import { h, put } from "./dom.js";
import { shortHash } from "./parts.js";
import { count, exact, percent, plural } from "./words.js";

const BLOCKS_DRAWN = 2048;
const RUNS_LISTED = 200;

/** An answer of POST /v1/prefixes. */
export function showCoverage(place, { scopes, lag_s: lag }) {
  put(
    place,
    scopes.map((scope) => coverage(scope)),
    lag === null
      ? h("p", { class: "problem" }, "Where blocks are has not been read yet; try again in a moment.")
      : null,
  );
}

const PLACES = { hot: "hot", redis: "in Redis", both: "hot and in Redis", nowhere: "nowhere: it would be computed" };

function placeOf(run) {
  const isHot = run.n_nodes > 0;
  return isHot && run.redis ? "both" : isHot ? "hot" : run.redis ? "redis" : "nowhere";
}

function coverage(scope) {
  if (!scope.blocks)
    return h(
      "p",
      { class: "soft" },
      `These tokens fill no block of ${scope.block_tokens ?? 16} yet, and only full blocks are shared.`,
    );
  const cells = [];
  for (const run of scope.runs) {
    for (let at = run.first_block; at < run.first_block + run.blocks && cells.length < BLOCKS_DRAWN; at += 1) {
      const where = placeOf(run);
      cells.push(
        h("span", {
          class: `block is-${where}`,
          title: `Block ${exact(at)}: ${PLACES[where]}${run.nodes.length ? ` on ${run.nodes.join(", ")}` : ""}`,
        }),
      );
    }
  }
  const told = `${exact(scope.covered_blocks)} of ${exact(scope.blocks)} blocks, from the first on without a gap`;
  const rank =
    scope.model === null
      ? ""
      : ` · ${scope.model}${scope.tp_rank || scope.pp_rank ? `, rank tp ${scope.tp_rank} pp ${scope.pp_rank}` : ""}`;
  return h(
    "div",
    { class: "coverage", data: { covered: scope.covered_blocks, blocks: scope.blocks } },
    h(
      "p",
      {},
      h("strong", {}, `${percent(scope.covered_blocks, scope.blocks)} usable`),
      `: ${told}`,
      h("span", { class: "soft" }, rank),
    ),
    h(
      "div",
      {
        class: "blocks",
        role: "img",
        "aria-label": `${told}. ${plural(scope.tiers.hot, "block")} hot, ${count(scope.tiers.redis)} in Redis, ${count(scope.tiers.nowhere)} nowhere.`,
      },
      cells,
    ),
    scope.blocks > cells.length
      ? h("p", { class: "soft" }, `The first ${exact(cells.length)} of ${exact(scope.blocks)} are drawn.`)
      : null,
    h(
      "div",
      { class: "keys" },
      Object.entries(PLACES).map(([key, label]) =>
        h("span", {}, h("span", { class: `block is-${key}`, "aria-hidden": "true" }), label),
      ),
    ),
    h(
      "table",
      { class: "runs" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          ["Blocks", "Hot on", "Redis", "Last block"].map((each) => h("th", { scope: "col" }, each)),
        ),
      ),
      h(
        "tbody",
        {},
        scope.runs.slice(0, RUNS_LISTED).map((run) => {
          const last = run.first_block + run.blocks - 1;
          const more = run.n_nodes > run.nodes.length ? ` and ${run.n_nodes - run.nodes.length} more` : "";
          return h(
            "tr",
            {},
            h(
              "th",
              { scope: "row", data: { label: "Blocks" } },
              run.blocks === 1 ? exact(last) : `${exact(run.first_block)} to ${exact(last)}`,
            ),
            h("td", { data: { label: "Hot on" } }, run.nodes.length ? run.nodes.join(", ") + more : "no node"),
            h("td", { data: { label: "Redis" } }, run.redis ? "yes" : "no"),
            h("td", { data: { label: "Last block" } }, scope.hashes[last] ? shortHash(scope.hashes[last]) : ""),
          );
        }),
      ),
    ),
    scope.n_runs > RUNS_LISTED
      ? h("p", { class: "soft" }, `and ${exact(scope.n_runs - RUNS_LISTED)} more stretches`)
      : null,
  );
}
