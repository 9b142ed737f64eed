// The settings beside the chat: kept in the browser, checked before they are sent.
const kNumbers = {"temperature": "temperature", "top-p": "top_p", "max-tokens": "max_tokens", "seed": "seed"};
const kOthers = ["system", "schema", "tools", "tool-choice"];

// A setting that can't be sent, with its field.
class Unusable extends Error {
  constructor(field, message) {
    super(message);
    this.field = field;
  }
}

function readJson(id, isRight, wanted) {
  const text = byId(id).value.trim();
  if (!text) return undefined;
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Unusable(byId(id), `This is not JSON: ${error.message}`);
  }
  if (!isRight(value)) throw new Unusable(byId(id), wanted);
  return value;
}

function readNumber(id) {
  const field = byId(id);
  if (!field.checkValidity()) {
    const whole = field.step === "1" ? "a whole number" : "a number";
    throw new Unusable(field, `Give ${whole} from ${field.min} to ${field.max}, or leave it empty.`);
  }
  return field.value === "" ? undefined : Number(field.value);
}

const kTool = '{"type": "function", "function": {"name": "clock"}}';
const readers = {
  ...Object.fromEntries(Object.keys(kNumbers).map((id) => [id, () => readNumber(id)])),
  "system": () => byId("system").value,
  "tool-choice": () => byId("tool-choice").value,
  "schema": () => readJson("schema", isObject, "A schema is an object, such as {\"type\": \"object\"}."),
  "tools": () => readJson("tools", (value) => Array.isArray(value) && value.every(isObject),
                        `Tools are a list of objects, such as [${kTool}].`),
};

// The value of one setting; says beside its field what is wrong with it.
function readSetting(id) {
  const complaint = byId(`${id}-wrong`);
  try {
    const value = readers[id]();
    if (complaint) write(complaint, "");
    byId(id).removeAttribute("aria-invalid");
    return value;
  } catch (error) {
    if (!(error instanceof Unusable)) throw error;
    write(complaint, error.message);
    byId(id).setAttribute("aria-invalid", "true");
    throw error;
  }
}

// {system, fields}: of a request. Throws Unusable, for the first field that is wrong.
function readSettings() {
  const fields = {};
  for (const [id, name] of Object.entries(kNumbers)) {
    const value = readSetting(id);
    if (value !== undefined) fields[name] = value;
  }
  const schema = readSetting("schema");
  if (schema) fields.response_format = {type: "json_schema", json_schema: {name: "answer", schema}};
  const tools = readSetting("tools");
  if (tools?.length > 0) Object.assign(fields, {tools, tool_choice: readSetting("tool-choice")});
  return {system: readSetting("system"), fields};
}

function showUnusable(error) {
  byId("settings").open = true;
  tell(`${document.querySelector(`label[for="${error.field.id}"]`).textContent}: ${error.message}`);
  error.field.focus();
}

function keepSettings() {
  const all = [...Object.keys(kNumbers), ...kOthers];
  const kept = inBrowser.get("settings") ?? {};
  for (const id of all) {
    if (typeof kept[id] === "string") byId(id).value = kept[id];
    byId(id).addEventListener("input", () => {
      inBrowser.set("settings", {...inBrowser.get("settings"), [id]: byId(id).value});  // others may be another tab's
    });
    byId(id).addEventListener("change", () => {
      try {
        readSetting(id);
      } catch (error) {
        if (!(error instanceof Unusable)) throw error;
      }
    });
  }
}

