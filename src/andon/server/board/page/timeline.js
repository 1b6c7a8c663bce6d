// SPDX-License-Identifier: Apache-2.0
// The tool calls of a run, drawn to scale. Each also says in words when it began, how long it took and how it ended, and opens
// to show its arguments, output and result.

import { button, GrowingText, h, mark, setShown, setText, span } from "./dom.js"
import { isLive } from "./store.js"

const WORDS = { completed: "finished", abandoned: "abandoned, may still run", not_started: "never started", compensated: "undone",
  undoing: "being undone", working: "at work", waiting: "waits for an answer" }

/** `stopCall(id)` asks the server to stop a call. */
export function makeTimeline(stopCall) {
  const calls = new Map()
  const list = h("ol", { class: "calls" })
  const marks = h("div", { class: "track marks" })
  const element = h("section", {}, h("h2", {}, "Time line"), list, h("div", { class: "lane" }, marks))
  let start, end, asked // when the run began and ended, and when its cancel was asked

  /** Take one event of the run itself. */
  function take({ event, timestamp: at, tool, content, call_id: id, progress }) {
    start ??= at
    if (event === "CancelRequested") asked ??= at
    else if (event === "ToolCallOutput") calls.get(id)?.output.add(content)
    else if (event === "ToolCallProgress") {
      const { progress: done, total, message } = progress
      callOf(tool).tell("Progress", `${done}${total ? ` of ${total}` : ""}${message ? `: ${message}` : ""}`)
    } else if (tool) takeCall(event, at, tool)
  }

  function takeCall(event, at, tool) {
    const call = callOf(tool)
    call.tell("Arguments", JSON.stringify(tool.tool_args, null, 2))
    call.tell("Result", tool.result)
    if (event === "ToolCallStarted") call.from ??= at
    else if (event === "ToolUndoStarted") call.outcome = "undoing"
    else Object.assign(call, { to: at, outcome: tool.outcome || (tool.tool_call_error ? "failed" : "completed") })
  }

  /** The run has ended: what its receipt knows beyond the events. */
  function settle(at, receipt) {
    end = at
    asked ??= receipt?.requested_at
    for (const { call_id, name, outcome } of receipt?.tools || []) callOf({ tool_call_id: call_id, tool_name: name }).outcome = outcome
  }

  function callOf({ tool_call_id: id, tool_name: name }) {
    if (!calls.has(id)) {
      calls.set(id, new Call(name, () => stopCall(id)))
      list.append(calls.get(id).row)
    }
    return calls.get(id)
  }

  /** Draw it as it is at this time. */
  function draw(line, time) {
    const [from, now] = [start ?? time, end ?? time]
    const percent = (at) => (100 * (at - from)) / Math.max(now - from, 0.001)
    setShown(element, calls.size > 0)
    for (const call of calls.values()) call.draw(line, { from, now, percent, asked })
    const known = [[asked, "cancel asked"], [now, end ? "ended" : "now"]].filter(([at]) => at)
    marks.replaceChildren(...known.map(([at, text]) => mark(percent(at), `${text} at ${span(at - from)}`)))
    list.classList.toggle("pulled", asked !== undefined)
    list.style.setProperty("--asked", `${percent(asked)}%`)
  }

  return { element, take, settle, draw }
}

class Call {
  constructor(name, stop) {
    this.output = new GrowingText(h("pre"))
    this.bar = h("span")
    this.words = h("span", { class: "words" })
    this.stop = button("Stop", stop, { class: "stop", "aria-label": `Stop call ${name}` })
    this.parts = h("dl")
    this.summary = h("summary", { class: "lane" }, h("span", { class: "name mono" }, name),
      h("span", { class: "track" }, this.bar), this.words)
    this.row = h("li", {}, h("details", {}, this.summary, this.parts, this.output.box), this.stop)
  }

  tell(name, text) {
    if (text === undefined) return
    if (!this[name]) this.parts.append(h("dt", {}, name), (this[name] = h("dd", { class: "mono" })))
    setText(this[name], text)
  }

  draw(line, { from, now, percent, asked }) {
    const works = isLive(line) && !this.to && !this.outcome
    const outcome = works ? (line.status === "PAUSED" ? "waiting" : "working") : this.outcome || "without a known end"
    const to = this.to ?? (this.from ? now : asked ?? now)
    const begin = this.from ?? to // a call that never began is a point
    this.bar.className = `bar ${outcome}`
    Object.assign(this.bar.style, { left: `${percent(begin)}%`, width: `${percent(to) - percent(begin)}%` })
    setText(this.words, (this.from ? `at ${span(begin - from)} for ${span(to - begin)}, ` : "") + (WORDS[outcome] || outcome))
    setShown(this.stop, outcome === "working", this.summary)
  }
}
