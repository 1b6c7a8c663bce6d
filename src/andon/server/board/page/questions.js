// SPDX-License-Identifier: Apache-2.0
// What a paused run asks a person: approvals, and questions with any answer.

import { button, h, labelled, setShown } from "./dom.js"

/** Show the questions. When each has its answer, `send(answers)` is called. A focus that goes away goes to `other`. */
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
