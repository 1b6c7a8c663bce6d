// SPDX-License-Identifier: Apache-2.0
// The lines of the board: the server's last word on each run. One stream feeds all views.

import { follow } from "./api.js"

const MOST_ENDED = 500 // so many ended runs are kept
/** The status of a run as people read it. */
export const STATUS_WORDS = { RUNNING: "Running", PENDING: "Waiting", PAUSED: "Asking", CANCELLING: "Stopping", COMPLETED: "Completed",
  CANCELLED: "Cancelled", ERROR: "Failed" }

let offset = 0 // the server's clock minus ours, in seconds
let heardAt = 0 // the server's time at its last event
let sorted = null // made when it is first asked for after a change
let frame = null
const listeners = new Set()

export const store = {
  lines: new Map(), // key -> line
  hello: null, // who serves, and for whom: {server, version, admin, user_id, agents}
  more: 0, // so many live runs are not listed
  away: "", // why the stream is not open, in words
  known: false, // the lines have come once

  /** All lines, newest first. */
  get all() {
    return (sorted ??= [...store.lines.values()].sort((a, b) => b.created_at - a.created_at))
  },

  /** Those of runs that have ended, the last end first. */
  get ended() {
    return store.all.filter((line) => !isLive(line)).sort((a, b) => b.ended_at - a.ended_at)
  },

  /** The server's time; while it is away, that of its last event, because nothing is known of later. */
  now: () => (store.away ? heardAt : Date.now() / 1000 + offset),

  /** `fn()` is called after changes and each second, at most once per frame. Returns a function that ends it. */
  subscribe(fn) {
    listeners.add(fn)
    return () => listeners.delete(fn)
  },

  start() {
    addEventListener("popstate", schedule)
    setInterval(schedule, 1_000)
    follow("board/events", { onEvent: take, onState: setState })
  },
}

/** The key of a line, which remembers it. */
export const keyOf = (line) => (line.key ??= JSON.stringify([line.agent_id, line.run_id]))

export const isLive = (line) => ["PENDING", "RUNNING", "PAUSED", "CANCELLING"].includes(line.status)

function take(data, name) {
  heardAt = data.now
  offset = data.now - Date.now() / 1000
  if (name === "hello") Object.assign(store, { hello: data, away: "" })
  else if (name === "runs") takeRuns(data)
  schedule()
}

function takeRuns({ reset, runs, gone = [], more = 0 }) {
  Object.assign(store, { known: true, more })
  if (reset) store.lines.clear()
  for (const [agent_id, run_id] of gone) store.lines.delete(keyOf({ agent_id, run_id }))
  for (const line of runs) store.lines.set(keyOf(line), line)
  sorted = null
  for (const line of store.ended.slice(MOST_ENDED)) store.lines.delete(keyOf(line))
  sorted = null
}

function setState(state, error) {
  store.away = state === "done" ? error.message : "The server can't be reached. Trying again…"
  schedule()
}

function schedule() {
  frame ??= requestAnimationFrame(() => {
    frame = null
    for (const fn of [...listeners]) fn()
  })
}
