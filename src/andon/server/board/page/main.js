// SPDX-License-Identifier: Apache-2.0
// The frame: the header with Stop all, the banner of a lost connection. One view at a time.

import { api } from "./api.js"
import { button, confirmed, count, h, plural, say, setShown, setText, span } from "./dom.js"
import { showList } from "./list.js"
import { go, matching, readPlace } from "./place.js"
import { showPlots } from "./plots.js"
import { showRun } from "./run.js"
import { isLive, store } from "./store.js"

const view = document.getElementById("view")
const stopAllButton = button("Stop all", stopAll, { class: "stop", id: "stop-all", hidden: true })
let shown = null // the view that is open

// The views come when the lines are known.
function showPlace() {
  const at = readPlace()
  const name = JSON.stringify([at.view, at.run])
  if (!store.known || shown?.name === name) return // if only the filters differ, the list sees to them
  for (const link of document.querySelectorAll("nav [data-view]")) link.ariaCurrent = link.dataset.view === at.view ? "page" : null
  document.title = [...Object.values(at.run ?? {}), at.view === "plots" && "Plots", "Andon"].filter(Boolean).join(" · ")
  shown?.close()
  view.replaceChildren()
  if (shown) view.focus({ preventScroll: true })
  scrollTo(0, 0)
  const show = { list: showList, run: showRun, plots: showPlots }[at.view]
  shown = { name, close: show(view, at.run) }
}

// A link to a place of this page loads nothing.
function followLink(event) {
  const link = event.target.closest("a[href]")
  if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return
  event.preventDefault()
  go(link.href)
}

function drawFrame() {
  const { hello, away } = store
  const { status, q, ...owners } = readPlace().filters
  showPlace()
  setText(document.getElementById("banner"), away)
  setShown(stopAllButton, hello !== null)
  stopAllButton.ariaLabel = ["Stop all", ...wordsFor(owners)].join(" of ")
  stopAllButton.disabled = Boolean(status || q)
  stopAllButton.title = status || q ? "Clear the filters by status and id first" : ""
  if (hello) setText(document.getElementById("server"), [hello.user_id, hello.server, hello.version].filter(Boolean).join(" · "))
}

const wordsFor = ({ agent, user }) => [agent && `agent ${agent}`, user && `user ${user}`].filter(Boolean)

async function stopAll() {
  const { filters } = readPlace()
  const { agent, user } = filters
  const owners = wordsFor(filters)
  const total = matching(store.all, filters).filter(isLive).length + (owners.length ? 0 : store.more)
  const block = h("input", { type: "checkbox" })
  const yes = await confirmed(`Stop ${[plural(total, "run"), ...owners].join(" of ")}?`,
    "Each run ends now. Its conversation stays valid and can go on.", "Stop all",
    store.hello.admin && owners.length === 1 && h("label", {}, block, ` Block ${owners}: new runs are refused`))
  if (!yes) return
  const chosen = owners.length ? { agent_id: agent || undefined, user_id: user || undefined } : { all: true }
  const { cancelled } = await api.post("runs/cancel", { ...chosen, block: block.checked || undefined, wait: 10 })
  const slowest = Math.max(0, ...cancelled.map((each) => each.receipt?.latency || 0))
  const going = cancelled.filter((each) => each.status === "CANCELLING").length
  say(`${plural(cancelled.length - going, "run")} stopped${slowest ? `, the slowest in ${span(slowest)}` : ""}` +
    (going ? `; ${count(going)} still stopping` : ""))
  document.querySelector(".blocks")?.dispatchEvent(new Event("read"))
}

view.replaceChildren()
document.querySelector(".top .wrap").append(stopAllButton)
document.addEventListener("click", followLink)
store.subscribe(drawFrame)
store.start()
