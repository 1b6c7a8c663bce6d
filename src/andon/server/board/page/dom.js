// SPDX-License-Identifier: Apache-2.0
// Helpers to make elements, to put numbers in words, and to talk with a person.
// A text becomes a text node, never markup.

const SAID_FOR = 12_000 // ms

/** Make an element: h("a", { class: "name", href: "?", click: go }, "text", child). */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag)
  for (const [name, value] of Object.entries(props)) {
    if ((value ?? false) === false) continue
    if (typeof value === "function") element.addEventListener(name, value)
    else if (name === "style") for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each)
    else element.setAttribute(name, value === true ? "" : value)
  }
  element.append(...children.flat(Infinity).filter(Boolean))
  return element
}

/** Write a text where it differs: a write that changes nothing still costs a layout. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text
}

/** Show it or not. A focus that goes away with it goes to `other`. */
export function setShown(element, shown, other) {
  if (!shown && element.contains(document.activeElement)) other?.focus({ preventScroll: true })
  if (element.hidden === shown) element.hidden = !shown
}

/** A time span: "850 µs", "2.1 ms", "1.4 s", "2 min 05 s", "1 h 12 min". */
export function span(n) {
  if (n > 0 && n < 0.001) return `${Math.round(n * 1e6)} µs`
  if (n > 0 && n < 1) return `${Number((n * 1e3).toPrecision(2))} ms`
  if (n < 10) return `${Number(Math.max(n, 0).toFixed(1))} s`
  const [minutes, rest] = [Math.floor(n / 60), String(Math.floor(n % 60))]
  if (n < 60) return `${rest} s`
  if (n < 3600) return `${minutes} min ${rest.padStart(2, "0")} s`
  return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`
}

/** A text at this part (in percent) of a track. On the right side it stands before it. */
export const mark = (left, text) => h("span", { class: left > 75 ? "mark before" : "mark", style: { left: `${left}%` } }, text)

export const count = (n) => n.toLocaleString("en")

export const plural = (n, one) => `${count(n)} ${one}${n === 1 ? "" : "s"}`

/** Tell a person, also by a screen reader. It stands at the foot of the page for a while. */
export function say(text) {
  const said = h("p", {}, text)
  document.getElementById("announcer").replaceChildren(said)
  setTimeout(() => said.remove(), SAID_FOR)
}

/** `work`, but never twice at the same time; and what goes wrong is said. */
export function guarded(work) {
  let busy = false
  return async () => {
    if (busy) return
    busy = true
    await work().catch((error) => say(error.message))
    busy = false
  }
}

/** A button for `work(button)`, which looks disabled meanwhile: if it were, it would lose the focus. */
export function button(text, work, props = {}) {
  const click = guarded(async () => {
    element.ariaDisabled = "true"
    await Promise.resolve(work(element)).finally(() => (element.ariaDisabled = null))
  })
  const element = h("button", { type: "button", ...props, class: `button ${props.class || ""}`, click }, text)
  return element
}

export const labelled = (text, control) => h("label", {}, h("span", {}, text), control)

/** A part of the page that may have to scroll, so it can be reached by keyboard. */
export const region = (kind, name) => h("div", { class: kind, tabindex: 0, role: "region", "aria-label": name })

/** It is written once per frame. A reader who is at the end of `box` stays there. */
export class GrowingText {
  constructor(box) {
    this.box = box
    this.length = 0
    this.waiting = ""
    this.node = null
  }

  add(text) {
    this.length += text.length
    this.waiting += text
    this.frame ||= requestAnimationFrame(() => this.write())
  }

  /** What comes next begins a block. */
  part() {
    this.write()
    this.node = null
  }

  write() {
    const { box, waiting } = this
    this.frame = null
    if (!waiting) return
    const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 10
    if (!this.node) box.append(h("div", {}, (this.node = new Text())))
    this.node.appendData(waiting)
    this.waiting = ""
    if (atEnd) box.scrollTop = box.scrollHeight
  }
}

/** Have a person answer a form. Answers the value of the button that was pressed: "" also for Esc. */
export function openDialog(title, ...children) {
  const dialog = h("dialog", { "aria-labelledby": "dialog-title" },
    h("form", { method: "dialog" }, h("h2", { id: "dialog-title" }, title), children))
  document.body.append(dialog)
  dialog.showModal()
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove()
      resolve(dialog.returnValue)
    })
  })
}

/** Ask before something that can't be taken back. */
export async function confirmed(title, text, yes, ...more) {
  return (await openDialog(title, h("p", {}, text), more, h("div", { class: "buttons" },
    h("button", { class: "button", autofocus: true }, "Cancel"),
    h("button", { class: "button stop", value: "yes" }, yes)))) === "yes"
}
