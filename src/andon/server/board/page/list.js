// SPDX-License-Identifier: Apache-2.0
// The list: the runs that go now, each with a Stop, and below them the last ones with their ends.

import { count, h, plural, setShown, setText } from "./dom.js"
import { blockList, filterForm, startForm } from "./forms.js"
import { linkToList, matching, readPlace } from "./place.js"
import { RunList } from "./runs.js"
import { isLive, STATUS_WORDS, store } from "./store.js"

const LINGER = 6 // seconds that a run which has ended keeps its place, so that its end can be read there

export function showList(parent) {
  const lamps = Object.entries(STATUS_WORDS).map(([status, word]) =>
    [status, h("a", {}, h("b"), h("span", { class: `badge ${status}` }, word))])
  const title = h("h1")
  const [filters, showFilters] = filterForm()
  const starter = h("details", { open: !store.all.some(isLive) }, h("summary", {}, "Start a run"), startForm())
  const rows = new Map()
  let place // whose filters are in the form
  const now = new RunList("Runs that go now", rows)
  const endedTitle = h("h2", {}, "Ended")
  const ended = new RunList("Runs that have ended", rows)

  function draw() {
    const chosen = readPlace().filters
    if (place !== location.search) showFilters()
    place = location.search
    const isHere = (line) => isLive(line) || line.ended_at > store.now() - LINGER
    const gone = matching(store.ended, chosen).filter((line) => !isHere(line))
    const focused = document.activeElement
    for (const key of rows.keys()) if (!store.lines.has(key)) rows.delete(key)
    now.draw(matching(store.all, chosen).filter(isHere))
    ended.draw(gone)
    if (parent.contains(focused)) focused.focus({ preventScroll: true }) // its row may have gone to the other list
    setShown(endedTitle, gone.length > 0)
    drawHead(chosen)
  }

  function drawHead(chosen) {
    const sums = Map.groupBy(matching(store.all, { ...chosen, status: "" }), (line) => line.status)
    for (const [status, lamp] of lamps) {
      const on = chosen.status === status
      lamp.href = linkToList({ status: on ? "" : status })
      lamp.ariaCurrent = on ? "true" : null
      lamp.classList.toggle("off", !sums.has(status))
      setText(lamp.firstChild, count(sums.get(status)?.length || 0))
    }
    const total = matching(store.all, chosen).filter(isLive).length
    setText(title, `${plural(total, "run")} now${store.more ? `; ${count(store.more)} more are not listed` : ""}`)
  }

  parent.append(
    h("div", { class: "floor" }, h("div", { class: "cord" }),
      h("div", { class: "dark" }, h("nav", { class: "wrap lamps", "aria-label": "By status" }, lamps.map(([, lamp]) => lamp))),
      h("div", { class: "wrap" }, h("div", { class: "tools" }, title, filters), starter, blockList(), now.element)),
    h("section", { class: "wrap ended" }, endedTitle, ended.element))
  draw()
  return store.subscribe(draw)
}
