// /docs: shows /openapi.json.

import { ask, element, onKey, Refused } from "./api.js";

const place = (id) => document.getElementById(id);
let schemas = {};

const nameOf = (reference) => reference.split("/").at(-1);
const words = (...parts) => parts.filter(Boolean).join(" · ");
const code = (text) => element("code", {}, text);
// A text with `code` in it, as nodes.
const prose = (text = "") => text.split("`").map((part, index) => (index % 2 ? code(part) : part));

// A schema in a few words, such as `array of string`.
function kind(schema) {
  if (schema.$ref) return nameOf(schema.$ref);
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((each) => JSON.stringify(each)).join(" | ");
  const options = schema.anyOf ?? schema.oneOf;
  if (options) return options.map(kind).join(" | ");
  if (schema.type === "array") return `array of ${schema.items ? kind(schema.items) : "anything"}`;
  return [schema.type ?? "anything"].flat().join(" | ");
}

function bounds(schema) {
  const named = ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "minLength", "maxLength", "minItems",
    "maxItems", "pattern", "default"];
  return named.filter((name) => name in schema).map((name) => `${name} ${JSON.stringify(schema[name])}`).join(", ");
}

// Names of all schemas that one refers to, not beyond them.
function references(schema) {
  if (schema === null || typeof schema !== "object") return [];
  return schema.$ref ? [nameOf(schema.$ref)] : [...new Set(Object.values(schema).flatMap(references))];
}

// What is only made when it is opened: schemas may refer to themselves.
function folded(summary, make) {
  const made = element("details", {}, element("summary", {}, ...summary));
  made.addEventListener("toggle", () => made.append(...make()), { once: true });
  return made;
}

function described(schema) {
  const parts = schema.description ? [element("p", {}, ...prose(schema.description))] : [];
  const required = new Set(schema.required);
  const fields = Object.entries(schema.properties ?? {}).map(([name, field]) => [
    element("dt", {}, code(name), " ", words(kind(field), required.has(name) && "required", bounds(field))),
    element("dd", {}, ...prose(field.description), ...referred(field)),
  ]);
  return fields.length ? [...parts, element("dl", {}, ...fields.flat())] : [...parts, ...referred(schema)];
}

function referred(schema) {
  const found = references(schema).filter((name) => name in schemas);
  return found.map((name) => folded([code(name)], () => described(schemas[name])));
}

// `isOpen`: whether the schema's fields are shown at once.
function content(part, isOpen = false) {
  return Object.entries(part?.content ?? {}).flatMap(([type, { schema = {} }]) => [
    element("p", {}, code(type), " ", kind(schema)),
    ...(isOpen && schema.$ref ? described(schemas[nameOf(schema.$ref)]) : described(schema)),
  ]);
}

function operation(method, path, said) {
  const title = [element("code", { className: "method" }, method.toUpperCase()), " ", code(path), " ",
    ...prose(said.summary)];
  const made = folded(title, () => {
    const parts = said.description && said.description !== said.summary ? [element("p", {}, ...prose(said.description))] : [];
    const parameters = (said.parameters ?? []).map((each) =>
      element("li", {}, code(each.name), " ",
        words(each.in, kind(each.schema ?? {}), each.required && "required", bounds(each.schema ?? {}), each.description)));
    if (parameters.length) parts.push(element("h3", {}, "Parameters"), element("ul", {}, ...parameters));
    if (said.requestBody) parts.push(element("h3", {}, "Body"), ...content(said.requestBody, true));
    const answers = Object.entries(said.responses ?? {}).map(([status, answer]) =>
      element("li", {}, code(status), " ", ...prose(answer.description), ...content(answer)));
    return [...parts, element("h3", {}, "Answers"), element("ul", {}, ...answers)];
  });
  made.dataset.words = `${method} ${path} ${said.summary ?? ""}`.toLowerCase();
  return made;
}

function show(api) {
  schemas = api.components?.schemas ?? {};
  document.title = place("title").textContent = `${api.info.title} ${api.info.version}`;
  place("description").replaceChildren(...prose(api.info.description));
  place("models").hidden = !("/fairlead/v1/models" in api.paths); // an engine alone has no such page
  const groups = new Map();
  const isOther = ([path]) => !path.startsWith("/v1/");
  for (const [path, methods] of Object.entries(api.paths).sort((one, two) => isOther(one) - isOther(two))) {
    for (const [method, said] of Object.entries(methods)) {
      const tag = said.tags?.[0] ?? "other";
      groups.set(tag, [...(groups.get(tag) ?? []), operation(method, path, said)]);
    }
  }
  const sections = [...groups].map(([tag, made]) => element("section", {}, element("h2", {}, tag), ...made));
  place("operations").replaceChildren(...sections);
}

async function load() {
  place("status").textContent = "Loading…";
  try {
    show(await (await ask("openapi.json")).json());
    place("status").textContent = "";
  } catch (error) {
    const said = error instanceof Refused ? error.message : "The server does not answer.";
    place("status").textContent = error.status === 401 ? "" : said; // the form says it
  }
}

place("filter").addEventListener("input", ({ target }) => {
  for (const section of place("operations").children) {
    const found = [...section.querySelectorAll(":scope > details")];
    for (const each of found) each.hidden = !each.dataset.words.includes(target.value.trim().toLowerCase());
    section.hidden = found.every((each) => each.hidden);
  }
});
onKey(load);
load();
