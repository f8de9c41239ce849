// The chosen model now and in the last hour: first tokens against the target, requests and replicas on one axis of
// time, the autoscaler's decisions, and a table of replicas. Asked for while the page is seen.

import { ask, element, Refused } from "./api.js";

const POLL_MILLISECONDS = 5000;
const WIDTH = 600, HEIGHT = 90, LEAST_SECONDS = 300, GAP_SECONDS = 30;
const place = (id) => document.getElementById(id);
let key = null; // `namespace/name` of the chosen model
let timer = null; // of the next question; null = none is due
let isAsking = false;

// Whose history is shown.
export function followHistory(chosen) {
  if (chosen !== key) {
    key = chosen;
    for (const id of ["charts", "changes", "replicas"]) place(id).replaceChildren();
    poll();
  } else if (timer === null) {
    poll();
  }
}

function svg(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  made.append(...children);
  return made;
}

const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString();
const inSeconds = (value) => (value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toPrecision(3)} s`);

// Pieces of a line: it is cut where a value is missing, or a look.
function pieces(moments, value) {
  const found = [[]];
  let before = -Infinity;
  for (const moment of moments) {
    const y = value(moment);
    if (y === null || moment.time - before > GAP_SECONDS) found.push([]);
    if (y !== null) found.at(-1).push([moment.time, y]);
    before = moment.time;
  }
  return found.filter((piece) => piece.length > 0);
}

// One panel. `lines`: [class, name, moment → value or null]; `limit`: a dashed line, or null.
function chart({ title, moments, from, until, lines, limit = null, write, changes }) {
  const values = lines.flatMap(([, , value]) => moments.map(value).filter((each) => each !== null));
  const top = Math.max(...values, limit ?? 0, 1e-9) * 1.1;
  const x = (time) => (((time - from) / (until - from)) * WIDTH).toFixed(1);
  const y = (value) => (HEIGHT - (value / top) * HEIGHT).toFixed(1);
  const marks = changes.filter(({ at }) => at > from).map(({ at, words }) =>
    svg("line", { x1: x(at), x2: x(at), y1: 0, y2: HEIGHT, class: "mark" }, svg("title", {}, words)));
  const drawn = lines.flatMap(([kind, , value]) => pieces(moments, value).map((piece) => {
    const [first] = piece;
    const ends = piece.length > 1 ? piece : [first, [first[0] + 5, first[1]]]; // a point alone is seen, too
    return svg("polyline", { class: kind, points: ends.map(([time, each]) => `${x(time)},${y(each)}`).join(" ") });
  }));
  const dashed = limit === null ? [] : [svg("line", { x1: 0, x2: WIDTH, y1: y(limit), y2: y(limit), class: "limit" })];
  const latest = lines.map(([kind, name, value]) => {
    const known = moments.map(value).filter((each) => each !== null).at(-1);
    return [`key ${kind}`, `${name} ${known === undefined ? "none yet" : write(known)}`];
  });
  if (limit !== null) latest.push(["key limit", `target ${write(limit)}`]);
  latest.push(["", `highest ${values.length ? write(Math.max(...values)) : "none"}`]);
  const words = latest.map(([, said]) => said).join(", ");
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" },
    svg("title", {}, `${title}: ${words}`), ...marks, ...dashed, ...drawn);
  const told = latest.flatMap(([className, said]) => [" ", element("span", { className }, said)]);
  return element("figure", {}, element("figcaption", {}, element("strong", {}, title), ...told), picture);
}

// The autoscaler's sentences begin with the number that they explain.
const sentence = ({ after, reason }) => (reason.startsWith(`${after} `) ? reason : `${after}: ${reason}`);

function draw({ moments, changes, target_ttft_seconds: target, target_percentile: percentile }) {
  const until = moments.at(-1)?.time ?? Date.now() / 1000;
  const from = Math.min(moments[0]?.time ?? until, until - LEAST_SECONDS);
  const told = changes.map((each) => ({ at: Date.parse(each.time) / 1000, words: `${each.before} → ${sentence(each)}` }));
  const shared = { moments, from, until, changes: told };
  const whole = (value) => String(Math.round(value * 10) / 10);
  place("charts").replaceChildren(
    chart({ ...shared, title: `First token, p${percentile}:`, write: inSeconds, limit: target,
      lines: [["line-first", "last", ({ ttft_seconds: ttft }) => ttft]] }),
    chart({ ...shared, title: "Requests:", write: whole,
      lines: [["line-waiting", "waiting", ({ waiting }) => waiting], ["line-running", "running", ({ running }) => running]] }),
    chart({ ...shared, title: "Replicas:", write: whole,
      lines: [["line-ready", "ready", ({ replicas }) => replicas.ready], ["line-starting", "starting", ({ replicas }) => replicas.starting]] }),
    element("p", { className: "note" }, `${clock(from)} to ${clock(until)}, as this gateway saw it`),
  );
  place("changes").replaceChildren(...told.reverse().map(({ at, words }) =>
    element("li", {}, element("time", { dateTime: new Date(at * 1000).toISOString() }, clock(at)), ` ${words}`)));
  place("no-changes").hidden = told.length > 0;
}

function list(replicas) {
  const cell = (value, write = String) => element("td", {}, value === null || value === "" ? "not known" : write(value));
  place("replicas").replaceChildren(...replicas.map((each) => element("tr", {},
    element("th", { scope: "row" }, each.name), cell(each.state), cell(each.node),
    cell(each.running, (running) => `${running} of ${each.slots}`), cell(each.waiting),
    cell(each.kv_used_ratio, (ratio) => `${Math.round(ratio * 100)} %`), cell(each.num_cached_blocks),
    cell(each.since, (since) => new Date(since).toLocaleString()))));
  place("no-replicas").hidden = replicas.length > 0;
}

async function poll() {
  clearTimeout(timer);
  timer = null;
  if (document.hidden || key === null || !place("key").hidden || isAsking) return;
  const asked = key;
  isAsking = true;
  try {
    const detail = await (await ask(`fairlead/v1/models/${asked.split("/").map(encodeURIComponent).join("/")}`)).json();
    if (asked === key) {
      draw(detail);
      list(detail.replicas);
    }
  } catch (error) {
    if (!(error instanceof Refused || error instanceof TypeError)) throw error; // the list of models tells of these
  } finally {
    isAsking = false;
  }
  timer = setTimeout(poll, asked === key ? POLL_MILLISECONDS : 0);
}

document.addEventListener("visibilitychange", poll);
