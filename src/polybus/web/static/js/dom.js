// Nodes, never markup: names and bodies on a bus are anybody's bytes, and here they can only become text.

const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = new Set(["value", "checked", "disabled", "hidden", "htmlFor", "indeterminate"]);

/** An element: h("a", {class: "x", href: "#/"}, "text", node, …). */
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** The same for a drawing. */
export function s(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else if (name === "data") Object.assign(element.dataset, value);
    else if (PROPERTIES.has(name)) element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(
    ...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

/** Put these children in place of all that is there. */
export function put(element, ...children) {
  element.replaceChildren(...children.flat(2).filter((child) => child !== null && child !== undefined));
  return element;
}

/** Set a text only if it is another one: what does not change is not drawn, selected or read out again. */
export function say(element, text) {
  const words = String(text);
  if (element.textContent !== words) element.textContent = words;
  return element;
}

export function attribute(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/** The address of a view in this page. */
export function route(...parts) {
  return "#/" + parts.map((part) => encodeURIComponent(part)).join("/");
}

export function link(text, ...parts) {
  return h("a", { href: route(...parts) }, text);
}

/** Calls `work` now and every so often while the page is looked at; gives the function that ends it. */
export function every(seconds, work) {
  let timer = 0;
  let over = false;
  const round = async () => {
    if (over) return;
    if (!document.hidden) await work();
    if (!over) timer = setTimeout(round, seconds * 1000);
  };
  round();
  return () => {
    over = true;
    clearTimeout(timer);
  };
}
