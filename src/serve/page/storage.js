// What stays in the browser: the settings and the last conversation (this browser), the tab's own conversation and the
// key (this tab). A browser may refuse to keep anything, or have no room left: then things last as long as the page.
function keeper(storage) {
  const held = new Map();
  return {
    get(name) {
      try {
        const text = storage().getItem(`sluice.${name}`);
        return text === null ? held.get(name) : JSON.parse(text);
      } catch {
        return held.get(name);
      }
    },
    set(name, value) {
      held.set(name, value);
      try {
        storage().setItem(`sluice.${name}`, JSON.stringify(value));
      } catch {
        // Held above.
      }
    },
  };
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

const inBrowser = keeper(() => window.localStorage);
const inTab = keeper(() => window.sessionStorage);

