// What programs need to ask the chosen model: the base URL, and an example for each client. Names are quoted for the
// language that they stand in, whatever is in them.

import { element, hasKey, root } from "./api.js";

const place = (id) => document.getElementById(id);
const base = new URL("v1", root).href;
const invisible = /[\u007f-\u009f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
// JSON, and a literal of Python, in which nothing is invisible.
const literal = (value) =>
  JSON.stringify(value).replace(invisible, (each) => `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`);
const shell = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const messages = '[{"role": "user", "content": "Hello"}]';
const shellKey = () => (hasKey() ? '"$OPENAI_API_KEY"' : "none");
const python = (body) =>
  hasKey() ? `import os\n\n${body("os.environ[\"OPENAI_API_KEY\"]")}` : body('"none"');

const CLIENTS = {
  curl: (model) => [
    `curl ${shell(`${base}/chat/completions`)}`,
    "-H 'Content-Type: application/json'",
    ...(hasKey() ? ['-H "Authorization: Bearer $OPENAI_API_KEY"'] : []),
    `-d ${shell(`{"model": ${literal(model)}, "messages": ${messages}}`)}`,
  ].join(" \\\n  "),
  "OpenAI (Python)": (model) => python((key) => `from openai import OpenAI

client = OpenAI(base_url=${literal(base)}, api_key=${key})
answer = client.chat.completions.create(model=${literal(model)}, messages=${messages})
print(answer.choices[0].message.content)`),
  "Anthropic (Python)": (model) => python((key) => `from anthropic import Anthropic

client = Anthropic(base_url=${literal(root.href.replace(/\/$/, ""))}, api_key=${key})
answer = client.messages.create(model=${literal(model)}, max_tokens=256, messages=${messages})
print(answer.content[0].text)`),
  LangChain: (model) => python((key) => `from langchain_openai import ChatOpenAI

model = ChatOpenAI(base_url=${literal(base)}, api_key=${key}, model=${literal(model)})
print(model.invoke("Hello").content)`),
  LiteLLM: (model) => python((key) => `import litellm

answer = litellm.completion(
    model=${literal(`openai/${model}`)}, api_base=${literal(base)}, api_key=${key}, messages=${messages}
)
print(answer.choices[0].message.content)`),
  "Open WebUI": () => [
    "docker run --network host -e PORT=3000",
    `-e OPENAI_API_BASE_URL=${shell(base)}`,
    `-e OPENAI_API_KEY=${shellKey()}`,
    "ghcr.io/open-webui/open-webui:main",
  ].join(" \\\n  "),
};

let model = "";

function show() {
  const text = CLIENTS[place("client").value](model);
  if (place("snippet").textContent !== text) place("snippet").textContent = text;
}

// Shows the example for a model, by the name that clients write.
export function showSnippet(name) {
  model = name;
  show();
}

// Browsers lend their clipboard to pages over TLS or of the same machine; elsewhere what is selected is copied.
async function copy(source) {
  getSelection().selectAllChildren(source);
  const isCopied = navigator.clipboard
    ? await navigator.clipboard.writeText(source.textContent).then(() => true, () => false)
    : document.execCommand("copy");
  place("copied").textContent = isCopied ? "Copied." : "It is selected: copy it with your keyboard.";
}

place("base").textContent = base;
place("client").append(...Object.keys(CLIENTS).map((name) => element("option", {}, name)));
place("client").addEventListener("change", show);
for (const button of document.querySelectorAll("[data-copies]")) {
  button.addEventListener("click", () => copy(place(button.dataset.copies)));
}
