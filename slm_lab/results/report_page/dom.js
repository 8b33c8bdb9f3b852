"use strict";
const SVG = "http://www.w3.org/2000/svg";

// Text is only ever set as text: nothing of the data is read as HTML.
export function make(name, options, ...children) {
  const { text, on, style, ...attributes } = options || {};
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null) element.setAttribute(key, value);
  }
  if (text !== undefined) element.textContent = text;
  for (const [key, value] of Object.entries(style || {})) element.style[key] = value;
  for (const [key, value] of Object.entries(on || {})) element.addEventListener(key, value);
  element.append(...children.filter((child) => child));
  return element;
}

export function draw(name, attributes, parent) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (parent) parent.append(element);
  return element;
}
