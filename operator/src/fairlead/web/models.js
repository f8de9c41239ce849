// `/`: every model with its state, asked for every two seconds while the page is seen. The chosen one is chatted with
// (chat.js), looked at (history.js), and asked by programs (snippets.js).

import { ask, element, onKey, Refused } from "./api.js";
import { chatWith } from "./chat.js";
import { followHistory } from "./history.js";
import { showSnippet } from "./snippets.js";

const POLL_MILLISECONDS = 2000;
const FEW = 8; // models that nobody has to search
const STATES = new Set(["ready", "starting", "asleep", "stopped", "failed"]);
const place = (id) => document.getElementById(id);

const cards = new Map(); // `namespace/name` → the card's parts
let states = new Map();
let chosen = null; // `namespace/name`
let askedAt = -Infinity;
let isAsking = false;
let timer;

function makeCard(key) {
  const radio = element("input", { type: "radio", name: "model", value: key });
  radio.addEventListener("change", () => choose(key));
  const parts = Object.fromEntries(["name", "state", "others", "replicas", "message"].map((part) =>
    [part, element(part === "name" ? "strong" : "span", { className: part })]));
  return { ...parts, radio, label: element("label", { className: "model" }, radio, ...Object.values(parts)) };
}

function inWords({ replicas, waiting }) {
  const stages = Object.entries(replicas).filter(([, number]) => number).map(([stage, number]) => `${number} ${stage}`);
  return `Replicas: ${stages.join(", ") || "none"}${waiting ? ` · ${waiting} waiting` : ""}`;
}

function fill(card, state) {
  card.name.textContent = state.names[0];
  card.state.textContent = state.state;
  card.state.className = `state ${STATES.has(state.state) ? state.state : ""}`;
  card.others.textContent = [state.key, ...state.names.slice(1)].join(" · ");
  card.replicas.textContent = inWords(state);
  card.message.textContent = state.message;
}

function filter() {
  const words = place("filter").value.trim().toLowerCase();
  for (const { label } of cards.values()) label.hidden = !label.textContent.toLowerCase().includes(words);
}

function choose(key) {
  chosen = key;
  const state = states.get(key);
  if (state === undefined) return;
  cards.get(key).radio.checked = true;
  chatWith(state);
  showSnippet(state.names[0]);
  followHistory(key);
}

function show(models) {
  states = new Map(models.map((state) => [state.key, state]));
  for (const [key, { label }] of cards) {
    if (!states.has(key)) {
      label.remove();
      cards.delete(key);
    }
  }
  let before = place("models").firstElementChild;
  for (const state of models) {
    if (!cards.has(state.key)) cards.set(state.key, makeCard(state.key));
    const card = cards.get(state.key);
    fill(card, state);
    if (before.nextElementSibling !== card.label) before.after(card.label);
    before = card.label;
  }
  place("finding").hidden = models.length <= FEW;
  filter();
  const first = models.find(({ state }) => state === "ready") ?? models[0];
  choose(states.has(chosen) ? chosen : first?.key);
  place("fleet").hidden = models.length === 0;
}

async function poll() {
  clearTimeout(timer);
  if (document.hidden || isAsking || !place("key").hidden) return;
  const wait = askedAt + POLL_MILLISECONDS - performance.now();
  if (wait > 0) {
    timer = setTimeout(poll, wait);
    return;
  }
  askedAt = performance.now();
  isAsking = true;
  let said = "";
  try {
    const { models } = await (await ask("fairlead/v1/models")).json();
    show(models);
    if (models.length === 0) said = "There are no models yet: apply an LLMDeployment.";
  } catch (error) {
    said = error instanceof Refused ? error.message : "The gateway does not answer; the page keeps asking.";
    if (error.status === 401) said = ""; // the form says it
  }
  isAsking = false;
  if (place("status").textContent !== said) place("status").textContent = said;
  poll();
}

place("filter").addEventListener("input", filter);
document.addEventListener("visibilitychange", poll);
onKey(() => {
  askedAt = -Infinity;
  poll();
});
poll();
