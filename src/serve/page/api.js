// How the page speaks to its server: always with the key in a header, never in an address.

// Why an answer did not come, in words for the user. `status`: of HTTP; 0: no answer at all.
class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function isKey(text) {
  return /^[\x21-\x7e]+$/.test(text);  // what a header can hold
}

async function refusalOf(response) {
  let said = "";
  try {
    said = (await response.json()).error.message;
  } catch {
    said = `The server answered with status ${response.status}.`;
  }
  const wait = response.headers.get("Retry-After");
  if (response.status === 429 || response.status === 503)
    said += wait ? ` It may have room in ${wait} s.` : "";
  return new Refused(response.status, said);
}

async function ask(path, options = {}, key = inTab.get("key")) {
  const headers = {...options.headers};
  if (key) headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), {...options, headers, cache: "no-store"});
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The server cannot be reached. Is it still running?");
  }
  if (!response.ok) throw await refusalOf(response);
  return response;
}

async function modelsOf(key) {
  return (await (await ask("v1/models", {}, key)).json()).data;
}

// The data of server-sent events, one by one. They end with an empty line, which may come in parts.
async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return;
    const parts = (rest + value).split(/\r?\n\r?\n/);
    rest = parts.pop();
    for (const part of parts) {
      const lines = part.split(/\r?\n/).filter((line) => line.startsWith("data:"));
      if (lines.length > 0) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
    }
  }
}

// Asks for an answer; `take` gets each delta of its message, then the reason for its end. Returns {usage, warning},
// each may be null.
async function streamAnswer(body, signal, take) {
  const options = {method: "POST", signal, body: JSON.stringify(body), headers: {"Content-Type": "application/json"}};
  const response = await ask("v1/chat/completions", options);
  const warning = response.headers.get("X-Sluice-Warning");  // what was asked for and is not done
  let usage = null;
  try {
    for await (const text of eventsOf(response.body)) {
      if (text === "[DONE]") return {usage, warning};
      const chunk = JSON.parse(text);
      if (chunk.error) throw new Refused(500, chunk.error.message);
      usage = chunk.usage ?? usage;
      for (const choice of chunk.choices ?? []) take(choice.delta ?? {}, choice.finish_reason);
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof Refused) throw error;
    console.warn(error);
  }
  throw new Refused(0, "The connection broke off: this answer is not whole.");
}

