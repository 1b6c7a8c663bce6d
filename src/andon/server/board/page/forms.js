// SPDX-License-Identifier: Apache-2.0
// The forms: filters, a new run, what a paused run asks a person, and the blocks with Unblock.

import { api } from "./api.js"
import { button, guarded, h, labelled, say, setShown } from "./dom.js"
import { go, linkToList, linkToRun, readPlace } from "./place.js"
import { store } from "./store.js"

// A form that calls `send(fields)`.
function form(props, send, ...children) {
  const submit = guarded(async () => send(Object.fromEntries(new FormData(element))))
  const element = h("form", { autocomplete: "off", ...props, submit: (event) => (event.preventDefault(), submit()) }, children)
  return element
}

const agentSelect = (ids, ...first) => labelled("Agent", h("select", { name: "agent" }, first, [...ids].map((id) => h("option", {}, id))))

const served = () => store.hello.agents.map(({ id }) => id)

/** The form, and a function that shows what is chosen. */
export function filterForm() {
  const ids = new Set([...served(), ...store.all.map((line) => line.agent_id), readPlace().filters.agent])
  ids.delete("")
  const element = form({ role: "search", class: "filters" }, (fields) => go(linkToList(fields)),
    agentSelect(ids, h("option", { value: "" }, "All")),
    store.hello.admin && labelled("User", h("input", { name: "user" })),
    labelled("Search ids", h("input", { name: "q", type: "search" })))
  element.addEventListener("change", () => element.requestSubmit())

  function show() {
    for (const control of element.elements) control.value = readPlace().filters[control.name]
  }
  return [element, show]
}

/** Start a run: in the session of this line, or any. */
export function startForm(line) {
  async function start({ agent = line?.agent_id, message, session = line?.session_id }) {
    const user_id = (store.hello.admin && line?.user_id) || undefined
    const body = { message, session_id: session || undefined, user_id, background: true, stream: false }
    const { run_id } = await api.post(`agents/${encodeURIComponent(agent)}/runs`, body)
    go(linkToRun({ agent_id: agent, run_id }))
  }

  const fields = line ? labelled("Say something in this session", h("textarea", { name: "message", rows: 2, required: true }))
    : [agentSelect(served()), labelled("Message", h("input", { name: "message", required: true })),
      labelled("Session", h("input", { name: "session" }))]
  return form({ class: "start" }, start, fields, h("button", { class: "button primary" }, line ? "Send" : "Start"))
}

/** The blocks, for an admin. A "read" event has them read again. */
export function blockList() {
  const list = h("ul", { class: "blocks", role: "list", "aria-label": "Blocks" })

  async function read() {
    const blocks = await api.get("blocks").catch(() => [])
    list.replaceChildren(...blocks.map(draw))
    setShown(list, blocks.length > 0)
  }

  function draw({ kind, id, by, reason }) {
    const name = `${kind} ${id}`
    async function unblock() {
      await api.post("unblock", { [`${kind}_id`]: id })
      say(`${name} is not blocked any more`)
      await read()
    }
    return h("li", {}, h("span", {}, h("b", {}, name), ` is blocked${by ? ` by ${by}` : ""}${reason ? `: ${reason}` : ""}`),
      button("Unblock", unblock, { "aria-label": `Unblock ${name}` }))
  }

  list.addEventListener("read", read)
  if (store.hello.admin) read()
  return list
}

/** Show the questions of a paused run. When each has its answer, `send(answers)` is called. A focus that goes away goes to `other`. */
export function drawQuestions(parent, questions, send, other) {
  const ids = questions.map(({ id }) => id).join()
  if (ids === parent.dataset.ids) return
  parent.dataset.ids = ids
  setShown(parent, questions.length > 0, other)
  const answers = {}
  parent.replaceChildren(...questions.map((question) => drawQuestion(question, answers, async () => {
    if (questions.every(({ id }) => id in answers)) await send(answers)
  })))
}

function drawQuestion({ id, name, approval, call, payload }, answers, chosen) {
  const box = h("input", { autocomplete: "off" })
  const asked = (approval && call?.arguments) || payload
  const choose = (answerOf) => (pressed) => {
    answers[id] = answerOf(box.value)
    for (const each of buttons) each.ariaPressed = each === pressed
    return chosen()
  }
  const buttons = [
    approval ? button("Approve", choose(() => true), { class: "primary" })
      : button("Answer", choose((text) => parsed(text, payload)), { class: "primary" }),
    button("Refuse", choose((text) => (text ? { deny: text } : false))),
  ]
  return h("fieldset", {}, h("legend", {}, approval ? "May it call " : "It asks: ", h("b", { class: "mono" }, name), "?"),
    h("pre", {}, typeof asked === "string" ? asked : JSON.stringify(asked, null, 2)),
    labelled(approval ? "Reason, if you refuse" : "Answer, or why you refuse", box), h("div", { class: "buttons" }, buttons))
}

// For a question with a schema, or if it looks like a list or an object, the answer is JSON.
function parsed(text, payload) {
  try {
    return payload?.schema || /^\s*[[{]/.test(text) ? JSON.parse(text) : text
  } catch {
    return text
  }
}
