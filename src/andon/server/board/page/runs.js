// SPDX-License-Identifier: Apache-2.0
// Runs, as several views show them: a list of rows, each with a Stop, below the run that has started it.
// A row is made once and then written where it differs, so a thousand rows cost little.

import { api } from "./api.js"
import { button, h, plural, say, setShown, setText, span } from "./dom.js"
import { idsOf, linkToRun } from "./place.js"
import { isLive, keyOf, STATUS_WORDS, store } from "./store.js"

/** "agents/AGENT/runs/RUN" */
export const pathOf = (line) => `agents/${idsOf(line).replace("/", "/runs/")}`

/** The lines of a run and of those below it, what it was asked, and its receipt in words. */
export const readRun = (line) => api.get(`board/runs/${idsOf(line)}`)

/** Stop a run, and say what came of it. */
export async function stopRun(line, mode = "now") {
  await api.post(`${pathOf(line)}/cancel${mode === "now" ? "?wait=10" : ""}`, { mode })
  const { runs } = await readRun(line)
  say(`Run ${line.run_id} of ${line.agent_id}: ${runs[0].ending || "asked to stop"}`)
}

export const tokensOf = ({ tokens, estimated }) => tokens ? `${estimated ? "about " : ""}${plural(tokens, "token")}` : ""

export function drawBadge(badge, status) {
  badge.className = `badge ${status}`
  setText(badge, STATUS_WORDS[status] || "Gone")
}

// Line -> depth: each run, and below it those that it has started, oldest first.
function asTree(lines) {
  const ids = new Set(lines.map((line) => line.run_id))
  const below = Map.groupBy(lines.toReversed(), (line) => line.parent_run_id)
  const depths = new Map()
  const add = (line, depth) => {
    if (depths.has(line)) return
    depths.set(line, depth)
    for (const child of below.get(line.run_id) || []) add(child, depth + 1)
  }
  for (const line of [...lines.filter((each) => !ids.has(each.parent_run_id)), ...lines]) add(line, 0)
  return depths
}

class Row {
  constructor(line) {
    const part = (name) => (this[name] = h("span", { class: name }))
    const { run_id: run, agent_id: agent } = line
    this.who = h("a", { href: linkToRun(line) }, h("b", {}, agent), " ", h("span", { class: "mono" }, run))
    this.stop = button("Stop", () => stopRun(line), { class: "stop", "aria-label": `Stop run ${run} of ${agent}` })
    this.element = h("li", {}, part("badge"), h("div", { class: "whose" }, this.who, part("user")),
      h("p", { class: "does" }, part("doing"), " ", part("since")), part("took"), part("tokens"), this.stop)
  }

  draw(line, depth) {
    if (this.line !== line) this.update(line)
    if (this.depth !== depth) this.element.style.setProperty("--depth", depth)
    this.depth = depth
    const time = isLive(line) ? Math.floor(store.now() - line.since) : 0
    setText(this.took, span(Math.floor((line.ended_at || store.now()) - line.created_at)))
    setText(this.since, time >= 1 ? `for ${span(time)}` : "")
    return this.element
  }

  update(line) {
    this.line = line
    drawBadge(this.badge, line.status)
    setText(this.user, [line.user_id, line.server !== store.hello.server && line.server].filter(Boolean).join(" · "))
    setText(this.doing, line.ending || line.doing || "")
    setText(this.tokens, tokensOf(line))
    setShown(this.stop, isLive(line), this.who)
  }
}

export class RunList {
  /** Lists with the same `rows` (key -> Row) hand them to each other. */
  constructor(name, rows = new Map()) {
    this.rows = rows
    this.element = h("ul", { class: "runs", role: "list", "aria-label": name })
  }

  /** Show these runs, as they are now. */
  draw(lines) {
    const list = this.element
    const wanted = new Set([...asTree(lines)].map(([line, depth]) => this.rowOf(line).draw(line, depth)))
    for (const child of [...list.children]) if (!wanted.has(child)) child.remove()
    let next = list.firstChild
    for (const element of wanted) {
      if (element === next) next = next.nextSibling
      else list.insertBefore(element, next)
    }
    setShown(list, lines.length > 0)
  }

  rowOf(line) {
    const key = keyOf(line)
    if (!this.rows.has(key)) this.rows.set(key, new Row(line))
    return this.rows.get(key)
  }
}
