// SPDX-License-Identifier: Apache-2.0
// The page of one run: what it says and does, how it ended, the runs below it, and the buttons for all that.
// Its events are read one by one and each is taken once. The board's lines tell the rest.

import { api, follow } from "./api.js"
import { button, confirmed, GrowingText, h, region, say, setShown, setText, span } from "./dom.js"
import { drawQuestions, startForm } from "./forms.js"
import { go, linkToRun } from "./place.js"
import { drawBadge, pathOf, readRun, RunList, stopRun, tokensOf } from "./runs.js"
import { isLive, keyOf, store } from "./store.js"
import { makeTimeline } from "./timeline.js"

const TICK = 250 // ms between two drawings of a live run's clock and bars

export function showRun(parent, run) {
  const ends = [] // what is to be called when the page closes
  let closed = false
  function open() {
    readRun(run).then((told) => closed || ends.push(...drawRun(parent, told)), ({ status, message }) => {
      if (closed) return
      if (status === 0) setTimeout(open, 1_000) // the banner says that the server is away
      else parent.append(h("p", { class: "wrap page", role: "alert" }, message))
    })
  }

  open()
  return () => {
    closed = true
    for (const end of ends) end()
  }
}

function drawRun(parent, told) {
  let line = told.runs[0]
  let seen = store.lines.get(keyOf(line)) // of the lines of the board, the last that was taken
  let seq = 0 // of the last event that was taken
  let waits = false // there is nothing to read until the run goes on
  let loads = 0 // only the answer to the last one counts
  let missed = false // it found no server
  let stopReading = () => {}
  const path = pathOf(line)
  const below = new Map() // key -> line of each run below this one

  const title = h("h1", { tabindex: -1 }, line.agent_id)
  const badge = h("span")
  const doing = h("p")
  const facts = h("p", { class: "dim" })
  const above = store.all.find((each) => each.run_id === line.parent_run_id)
  const before = h("a", {}, "The run that it continues")
  const links = h("p", {}, above && h("a", { href: linkToRun(above) }, "The run that started it"), " ", before)
  const stops = h("span", { class: "buttons" },
    button("Stop", () => stopRun(line), { class: "stop" }), button("Stop after its tools", () => stopRun(line, "after_tools")))
  const again = h("span", { class: "buttons" }, button("Continue", goOn), button("Roll back", rollBack))
  const questions = h("section", { class: "questions", "aria-label": "Questions", hidden: true })
  const prompt = region("prompt", "Prompt")
  const text = new GrowingText(region("said", "Text"))
  const thoughts = new GrowingText(region("said", "Thoughts"))
  const thinking = h("details", { hidden: true }, h("summary", {}, "Thoughts"), thoughts.box)
  const timeline = makeTimeline((call) => api.post(`${path}/tools/${encodeURIComponent(call)}/cancel`))
  const receipt = h("ul", { class: "receipt" })
  const ending = h("section", {}, h("h2", {}, "Receipt"), receipt)
  const tree = new RunList("Runs below it")
  const family = h("section", {}, h("h2", {}, "Runs below it"), tree.element)

  /** Write what differs. */
  function draw() {
    const now = store.now()
    const at = (word, time) => time && `${word} ${new Date(time * 1000).toLocaleString()}`
    const age = span((line.ended_at || now) - line.created_at)
    const since = line.since ? ` for ${span(now - line.since)}` : ""
    setText(doing, isLive(line) ? `${age}: ${line.doing}${since}` : `After ${age}: ${line.ending || "ended"}`)
    setText(facts, [`run ${line.run_id}`, `session ${line.session_id}`, line.user_id, line.server, at("began", line.created_at),
      at("ended", line.ended_at), tokensOf(line)].filter(Boolean).join(" · "))
    before.href = linkToRun({ ...line, run_id: line.continues })
    setShown(before, Boolean(line.continues))
    drawBadge(badge, line.status)
    setShown(stops, isLive(line), title)
    setShown(again, line.status === "CANCELLED" || line.status === "ERROR")
    timeline.draw(line, now)
    setShown(family, below.size > 0)
    tree.draw([...below.values()])
  }

  // -- what comes from the server

  function show(told) {
    for (const each of told.runs.slice(1)) below.set(keyOf(each), each)
    if (isLive(line) || !isLive(told.runs[0])) setLine(told.runs[0]) // else it was sent before the end
    setText(prompt, told.prompt)
    drawQuestions(questions, told.questions, answer, title)
    receipt.replaceChildren(...told.receipt.map((sentence) => h("li", {}, sentence)))
    setShown(ending, told.receipt.length > 0)
    draw()
  }

  // The run is in another state.
  async function load() {
    const mine = ++loads
    missed = false
    try {
      const told = await readRun(line)
      const { content } = waits && !text.length ? await api.get(path) : {} // if its events are gone
      if (mine !== loads) return
      show(told)
      if (content && !text.length) text.add(content) // after a crash the page may have read more than is kept
    } catch (error) {
      missed = error.status === 0
      if (!missed) say(error.message) // else the banner says it
      if (error.status === 404) {
        line = { ...line, status: "GONE" }
        below.clear()
      }
      draw()
    }
  }

  function read() {
    if (!title.isConnected) return // the page was left meanwhile
    stopReading()
    waits = false
    stopReading = follow(`${path}/events`, { after: seq, onEvent: take, onState })
  }

  // If there is nothing more to read, the run waits for a person, or its events are gone.
  function onState(state) {
    if (state !== "done") return
    waits = true
    load()
  }

  function take(event) {
    if (event.seq <= seq) return
    seq = event.seq
    if (event.run_id !== line.run_id) return // of a run below it
    if (event.event === "RunContent") text.add(event.content)
    else if (event.event === "ReasoningContentDelta") thoughts.add(event.content)
    else if (event.event === "ToolCallStarted") for (const each of [text, thoughts]) each.part()
    else if (["RunStarted", "RunPaused", "RunContinued"].includes(event.event) && isLive(line)) load()
    setShown(thinking, thoughts.length > 0)
    timeline.take(event)
    if (!event.status) return
    stopReading()
    timeline.settle(event.timestamp, event.receipt)
    takeLine({ ...line, status: event.status, ended_at: event.timestamp })
    draw()
  }

  function setLine(next) {
    if (waits && line.status === "PAUSED" && next.status !== "PAUSED") read() // it goes on
    line = next
  }

  function takeLine(next) {
    if (!isLive(line) && isLive(next)) return
    const before = line.status
    setLine(next)
    if (before === line.status) return
    if (line.status === "COMPLETED" || line.status === "ERROR") say(`Run ${line.run_id} of ${line.agent_id} has ended`)
    load()
  }

  function takeLines() {
    const mine = store.lines.get(keyOf(line))
    if (mine && mine !== seen) takeLine(mine)
    seen = mine
    if (missed && !store.away) load()
    const ids = new Set([line.run_id])
    for (const each of store.all.toReversed()) {
      if (ids.has(each.parent_run_id)) below.set(keyOf(each), each)
      if (below.has(keyOf(each))) ids.add(each.run_id)
    }
    draw()
  }

  // -- what a person does

  async function answer(answers) {
    await api.post(`${path}/continue`, { answers, background: true, stream: false })
    read()
  }

  async function goOn() {
    const { run_id } = await api.post(`${path}/continue`, { background: true, stream: false })
    go(linkToRun({ ...line, run_id }))
  }

  async function rollBack() {
    const text = "The session becomes what it was before this run. The record of the run and its receipt are kept."
    if (!(await confirmed("Roll back this run?", text, "Roll back"))) return
    await api.post(`${path}/rollback`)
    say("Rolled back: the session is as it was before this run.")
  }

  parent.append(
    h("header", { class: "dark" }, h("div", { class: "wrap" },
      h("div", { class: "title" }, title, badge, stops, again), doing, facts, links)),
    h("div", { class: "wrap page" }, questions, prompt, thinking, text.box, timeline.element, ending, family, startForm(line)))
  show(told)
  read()
  const ticker = setInterval(() => !document.hidden && isLive(line) && draw(), TICK)
  return [store.subscribe(takeLines), () => stopReading(), () => clearInterval(ticker)]
}
