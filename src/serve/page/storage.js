// What stays in the browser: settings and conversations (this browser), which conversation a tab shows and the key
// (this tab). A browser may refuse to keep anything: then things last as long as the page.
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
    // False: the browser has no room left; the value lasts as long as the page.
    set(name, value) {
      try {
        storage().setItem(`sluice.${name}`, JSON.stringify(value));
        held.delete(name);
        return true;
      } catch (error) {
        this.remove(name);
        held.set(name, value);
        return error.name !== "QuotaExceededError";
      }
    },
    remove(name) {
      held.delete(name);
      try {
        storage().removeItem(`sluice.${name}`);
      } catch {
        // Nothing was kept.
      }
    },
    names() {
      const all = [...held.keys()];
      try {
        for (const name of Object.keys(storage())) if (name.startsWith("sluice.")) all.push(name.slice(7));
      } catch {
        // Only what is held.
      }
      return all;
    },
  };
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

const inBrowser = keeper(() => window.localStorage);
const inTab = keeper(() => window.sessionStorage);

