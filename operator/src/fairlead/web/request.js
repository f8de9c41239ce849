// One request that has ended, by its id: what was foreseen, what happened, and which replicas it could have gone to.

import { ask, element, Refused } from "./api.js";

const place = (id) => document.getElementById(id);
const inSeconds = (value) => (value === null ? "not known" : `${(value * 1000).toFixed(1)} ms`);
const plain = (value) => (value === null || value === "" ? "not known" : String(value));
const FACTS = [
  ["Model", ({ model, asked_model: asked }) => (model ? `${model}, asked for as ${asked}` : plain(asked))],
  ["Path", ({ path }) => path],
  ["Status", ({ status, outcome }) => `${status || "none"} (${outcome})`],
  ["Replica", ({ replica }) => replica ?? "none got it"],
  ["Why there", ({ reason }) => plain(reason)],
  ["Attempts", ({ num_attempts: attempts }) => String(attempts)],
  ["Waited in the gateway", ({ queue_seconds: seconds }) => inSeconds(seconds)],
  ["First token", ({ ttft_seconds: ttft, predicted_ttft_seconds: foreseen }) => `${inSeconds(ttft)}, foreseen ${inSeconds(foreseen)}`],
  ["Whole answer", ({ duration_seconds: seconds }) => inSeconds(seconds)],
  ["Prompt tokens", ({ num_prompt_tokens: tokens }) => plain(tokens)],
  ["Found in the cache", (each) => `${plain(each.num_cached_tokens)}, foreseen ${plain(each.num_predicted_cached_tokens)}`],
  ["Tokens of the answer", ({ num_completion_tokens: tokens }) => plain(tokens)],
];

// Shows the request of this id.
export async function showRequest(id) {
  place("request-id").value = id;
  place("request").replaceChildren();
  place("request-status").textContent = "";
  let found;
  try {
    found = await (await ask(`fairlead/v1/requests/${encodeURIComponent(id)}`)).json();
  } catch (error) {
    place("request-status").textContent = error instanceof Refused ? error.message : "The gateway does not answer.";
    return;
  }
  const facts = FACTS.flatMap(([name, tell]) => [element("dt", {}, name), element("dd", {}, tell(found))]);
  const heads = ["Replica", "Foreseen first token", "Cached tokens", "To compute", "In flight"];
  const rows = found.candidates.map((each) => element("tr", {},
    element("th", { scope: "row" }, each.replica),
    ...[inSeconds(each.predicted_ttft_seconds), each.cached_tokens, each.uncached_tokens, each.num_in_flight].map((value) =>
      element("td", {}, String(value)))));
  const table = element("table", {}, element("caption", {}, "Where it could have gone; the first is where it went"),
    element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))),
    element("tbody", {}, ...rows));
  place("request").replaceChildren(element("dl", {}, ...facts), ...(rows.length ? [wide(table)] : []));
}

// A table that scrolls by itself where the page is narrow, also by keyboard.
function wide(table) {
  const made = element("div", { className: "wide", tabIndex: 0 }, table);
  made.setAttribute("role", "region");
  made.setAttribute("aria-label", table.caption.textContent);
  return made;
}

place("find-request").addEventListener("submit", (event) => {
  event.preventDefault();
  showRequest(place("request-id").value.trim());
});
