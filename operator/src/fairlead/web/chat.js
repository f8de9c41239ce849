// A chat with the chosen model, streamed. The conversation lives in this page alone, and goes to the API with every
// message.

import { ask, element, Refused } from "./api.js";
import { showRequest } from "./request.js";

const place = (id) => document.getElementById(id);
let conversation = []; // messages as the API takes them, without the system prompt
let state = null; // of the chosen model
let running = null; // the answer's AbortController
let awaited = null; // key of the model whose first text is waited for
let objection = ""; // why the chosen model cannot be chatted with

// Whom the next message is for.
export function chatWith(chosen) {
  state = chosen;
  const can = (what) => state.capabilities.length === 0 || state.capabilities.includes(what);
  place("images").disabled = !can("vision");
  place("send").disabled = running !== null || !can("completion");
  const before = objection;
  objection = can("completion") ? "" : `${state.names[0]} does not chat.`;
  if (running === null && before !== objection) say(objection);
  if (awaited === state.key) say(waitingFor(state));
}

function say(text) {
  if (place("chat-status").textContent !== text) place("chat-status").textContent = text;
}

const waitingFor = ({ state, message }) =>
  state === "ready" ? "Waiting for the first token…" : `Waiting for a replica… ${message}`;

// Objects of a stream of server-sent events.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const data = line.startsWith("data:") ? line.slice(5).trim() : "";
      if (data === "[DONE]") return;
      if (data) yield JSON.parse(data);
    }
  }
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(file);
  });
}

// Adds a message to the page, with parts that stay in view while they grow.
function article(who, ...parts) {
  const made = element("article", {}, element("p", { className: "who" }, who), ...parts);
  place("messages").append(made);
  made.scrollIntoView({ block: "nearest" });
  return made;
}

// A part of an answer, which is put into the page with its first text.
function growing(parent, wrap) {
  const text = document.createTextNode("");
  const log = place("messages");
  return (more) => {
    const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    if (!text.isConnected) parent.append(wrap(element("div", { className: "text" }, text)));
    text.appendData(more);
    if (isAtEnd) log.scrollTop = log.scrollHeight;
  };
}

// The answer as it comes. Returns the message that it is, without `content` where there is none; what became of it is
// noted below it.
async function receive(answer, shown, begun) {
  const reason = growing(shown, (text) => element("details", {}, element("summary", {}, "Reasoning"), text));
  const write = growing(shown, (text) => text);
  const calls = [], writeCall = [];
  let text = "", first = null, usage = null, finish = null;
  const end = (said, ...made) => {
    note(shown, said);
    explain(shown, answer.headers.get("x-request-id"));
    return { role: "assistant", ...(text && { content: text }), ...(made.length && { tool_calls: made }) };
  };
  try {
    for await (const event of events(answer.body)) {
      if (event.error) throw new Refused(answer.status, String(event.error.message ?? "The answer failed."));
      const { delta = {}, finish_reason: finished } = event.choices?.[0] ?? {};
      const thought = delta.reasoning_content ?? delta.reasoning;
      if (thought || delta.content || delta.tool_calls) {
        first ??= performance.now();
        awaited = null;
        say("Answering…");
      }
      if (thought) reason(String(thought));
      if (delta.content) {
        text += String(delta.content);
        write(String(delta.content));
      }
      for (const { index, id, function: { name, arguments: more } = {} } of delta.tool_calls ?? []) {
        calls[index] ??= { id, type: "function", function: { name: String(name), arguments: "" } };
        writeCall[index] ??= growing(shown, (given) => element("div", {}, element("p", { className: "who" }, `Calls ${name}`), given));
        calls[index].function.arguments += more ?? "";
        writeCall[index](String(more ?? ""));
      }
      finish = finished ?? finish;
      usage = event.usage ?? usage;
    }
    if (finish === null) throw new Refused(answer.status, "The answer was cut.");
  } catch (error) {
    return end(error.name === "AbortError" ? "Stopped." : error instanceof Refused ? error.message : "The answer was cut.");
  }
  const seconds = (performance.now() - first) / 1000;
  const tokens = usage?.completion_tokens;
  return end([
    finish === "length" && "cut at the limit of tokens",
    first !== null && `first token after ${((first - begun) / 1000).toFixed(2)} s`,
    tokens && `${tokens} tokens${seconds > 0.01 && first !== null ? `, ${(tokens / seconds).toFixed(0)}/s` : ""}`,
    answer.headers.get("x-fairlead-replica"),
  ].filter(Boolean).join(" · "), ...calls);
}

// The call whose result is to come, or undefined.
function openCall() {
  const at = conversation.findLastIndex(({ role }) => role !== "tool");
  return conversation[at]?.tool_calls?.[conversation.length - 1 - at];
}

// What the user has written as tools; undefined = none. Throws a Refused.
function tools() {
  const written = place("tools").value.trim();
  try {
    return written ? JSON.parse(written) : undefined;
  } catch (error) {
    throw new Refused(0, `Tools are no JSON: ${error.message}`);
  }
}

// A button that shows where the request went, and why.
function explain(shown, id) {
  if (!id) return;
  const button = element("button", { type: "button", className: "quiet" }, "Why there?");
  button.addEventListener("click", () => {
    showRequest(id);
    place("request-id").focus();
  });
  shown.append(button);
}

function note(shown, text) {
  if (text) shown.append(element("p", { className: "note" }, text));
}

function setRunning(controller) {
  running = controller;
  awaited = running === null ? null : state.key;
  const hadFocus = document.activeElement;
  place("stop").hidden = running === null;
  place("messages").setAttribute("aria-busy", running !== null);
  const call = running === null && openCall();
  say(call ? `Your next message is the result of ${call.function.name}.` : "");
  chatWith(state);
  // A button that goes must not take the keyboard's place along.
  if (running === null && hadFocus === place("stop")) place("prompt").focus();
  if (running !== null && hadFocus === place("send")) place("stop").focus();
}

async function send() {
  const text = place("prompt").value.trim();
  if (running !== null || state === null || place("send").disabled || !text) return;
  const model = state.names[0];
  const controller = new AbortController();
  const talk = conversation;
  const files = place("images").disabled || openCall() ? [] : [...place("images").files];
  setRunning(controller);
  let asked = null;
  try {
    const urls = await Promise.all(files.map(dataUrl));
    const images = urls.map((url) => ({ type: "image_url", image_url: { url } }));
    const functions = tools(), call = openCall();
    talk.push(call ? { role: "tool", tool_call_id: call.id, content: text }
      : { role: "user", content: images.length ? [{ type: "text", text }, ...images] : text });
    const pictures = urls.map((src, index) => element("img", { src, alt: `Image ${index + 1} of the message` }));
    asked = article(call ? `Result of ${call.function.name}` : "You", element("div", { className: "text" }, text), ...pictures);
    place("prompt").value = place("images").value = "";
    if (openCall()) {
      setRunning(null);
      return;
    }
    const system = place("system").value.trim();
    const messages = [...(system ? [{ role: "system", content: system }] : []), ...talk];
    const begun = performance.now();
    const answer = await ask("v1/chat/completions", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ model, messages, tools: functions, stream: true, stream_options: { include_usage: true } }),
      signal: controller.signal,
    });
    const message = await receive(answer, article(model), begun);
    if (message.content || message.tool_calls) talk.push(message);
    else talk.pop();
    setRunning(null);
  } catch (error) {
    // Nothing was answered: the message goes back to where it can be sent again.
    const kept = new DataTransfer();
    for (const file of files) kept.items.add(file);
    if (asked !== null) talk.pop();
    asked?.remove();
    place("prompt").value = text;
    place("images").files = kept.files;
    setRunning(null);
    const isStopped = error.name === "AbortError";
    say(isStopped ? "Stopped." : error instanceof Refused ? error.message : "The gateway does not answer.");
  }
}

place("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
place("ask").addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
  if (event.key === "Enter" && event.target === place("prompt") && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    place("ask").requestSubmit();
  }
});
place("stop").addEventListener("click", () => running?.abort());
place("clear").addEventListener("click", () => {
  running?.abort();
  conversation = [];
  place("messages").replaceChildren();
  place("prompt").focus();
});
