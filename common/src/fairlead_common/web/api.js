// How pages ask the API of their own origin, and make elements. Texts of models and servers are hostile: they become
// text nodes and properties, never HTML.

const KEY = "fairlead-key";
const form = document.getElementById("key");
const keyText = document.getElementById("key-text");
const problem = document.getElementById("key-problem");

// Where the API lies, also behind a proxy that puts a path before it; ends with a slash.
export const root = new URL("../", import.meta.url);

// An answer other than a 2xx, in the server's words.
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const hasKey = () => sessionStorage.getItem(KEY) !== null;

// Calls `again` whenever the user has typed a key. It is kept for this tab, and sent to this origin alone.
export function onKey(again) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem(KEY, keyText.value);
    keyText.value = "";
    form.hidden = true;
    again();
  });
}

// The whole answer, or a Refused; a 401 shows the form for a key. Rejects with a TypeError where nobody answers.
export async function ask(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...options.headers, ...(key === null ? {} : { authorization: `Bearer ${key}` }) };
  const answer = await fetch(new URL(path, root), { ...options, headers, credentials: "omit", redirect: "error" });
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => null);
  const message = String(body?.error?.message ?? `The server answered ${answer.status}.`);
  if (answer.status === 401) {
    problem.textContent = key === null ? "" : message;
    sessionStorage.removeItem(KEY);
    form.hidden = false;
  }
  throw new Refused(answer.status, message);
}

// An element with properties (not attributes) and children, of which strings become text.
export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}
