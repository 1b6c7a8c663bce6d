// SPDX-License-Identifier: Apache-2.0
// Talks to the server: requests, and streams of events that open themselves again.
// The token is in a variable of this module and nowhere else: in no URL, no storage and no cookie.

import { h, labelled, openDialog } from "./dom.js"

const SILENCE = 40_000 // ms without a word of the server: the connection is dead
const FIRST_WAIT = 500 // ms until a broken stream is opened again; it doubles each time
const LONGEST_WAIT = 5_000

let token = null
let asking = null // the question that is open: all requests wait for the one answer

// What the server said to a request that failed. The status is 0 if it can't be reached.
const problem = (status, message) => Object.assign(new Error(message), { status })

export const api = {
  get: (path) => send(path),
  post: (path, body = {}) => send(path, { method: "POST", body: JSON.stringify(body) }),
}

async function send(path, options) {
  return (await request(path, options, { "Content-Type": "application/json" })).json()
}

// One request; after a 401 again, with a token.
async function request(path, options, headers) {
  for (;;) {
    const sent = token
    const all = { ...headers, ...(sent && { Authorization: `Bearer ${sent}` }) }
    const answer = await fetch(path, { ...options, headers: all, cache: "no-store" }).catch(unreachable)
    if (answer.ok) return answer
    if (answer.status !== 401) throw await errorOf(answer)
    if (sent) delete headers["Last-Event-ID"] // with another token one may see other lines
    if (token !== sent) continue // another request has asked meanwhile
    await (asking ||= askForToken(sent !== null))
  }
}

async function askForToken(wrong) {
  const input = h("input", { type: "password", id: "token", autocomplete: "current-password", required: true, autofocus: true })
  const why = wrong ? "The server does not accept this token." : "This page forgets it when you close or reload it."
  // Again after Esc: there is nothing to see without a token.
  while (!(await openDialog("This server asks for a token", h("p", { role: "alert" }, why), labelled("Token", input),
    h("button", { class: "button primary", value: "yes" }, "Open the board"))));
  token = input.value.trim()
  asking = null
}

function unreachable() {
  throw problem(0, "The server can't be reached.")
}

async function errorOf(answer) {
  const { detail } = await answer.json().catch(() => ({}))
  const words = typeof detail === "string" ? detail : JSON.stringify(detail)
  return problem(answer.status, words || `The server answered ${answer.status}.`)
}

// Read one stream of server-sent events to its end. False if there is nothing to read any more.
async function read(path, { headers, onEvent, signal }) {
  const silence = new AbortController()
  let timer = null
  const heard = () => {
    clearTimeout(timer)
    timer = setTimeout(() => (asking ? heard() : silence.abort()), SILENCE)
  }
  document.addEventListener("visibilitychange", () => document.hidden && silence.abort(), { signal: silence.signal })
  try {
    heard()
    const answer = await request(path, { signal: AbortSignal.any([signal, silence.signal]) }, headers)
    if (answer.status === 204) return false
    const take = parser(onEvent)
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader()
    for (;;) {
      const { done, value } = await reader.read().catch(unreachable)
      if (done) return true
      heard()
      take(value)
    }
  } finally {
    clearTimeout(timer)
    silence.abort()
  }
}

// Takes a text piece by piece and calls onEvent(data, id, name) for each server-sent event in it.
function parser(onEvent) {
  let rest = "" // the event that has not ended
  return (text) => {
    const events = (rest + text).split("\n\n")
    rest = events.pop()
    for (const lines of events) {
      const { event, data, id } = Object.fromEntries(lines.split("\n").map((line) => line.split(/: (.*)/s, 2)))
      if (data) onEvent(JSON.parse(data), id, event)
    }
  }
}

/**
 * Read a stream of events; when it breaks, open it again after the last event that was read. Returns a function that
 * ends it. `onState(state, error)` hears "away" (it tries again) and "done" (with an error if the server refuses).
 */
export function follow(path, { after, onEvent, onState }) {
  const stopper = new AbortController()
  const { signal } = stopper
  const headers = after ? { "Last-Event-ID": after } : {}
  let wait = FIRST_WAIT

  function take(data, id, name) {
    if (signal.aborted) return
    wait = FIRST_WAIT
    if (id) headers["Last-Event-ID"] = id
    onEvent(data, name)
  }

  async function run() {
    for (;;) {
      if (document.hidden) await shown()
      let error
      const opened = Date.now()
      const more = await read(path, { headers, onEvent: take, signal }).catch((failure) => {
        error = failure
        return !(error.status >= 400 && error.status < 500 && error.status !== 429) // else it is refused
      })
      if (signal.aborted) return
      if (more && document.hidden) continue
      if (more && !error && Date.now() - opened > 1_000) continue // the server ends a long stream, to be asked again
      if (error && error.status === undefined) console.error(error) // a fault of this page
      onState(more ? "away" : "done", error)
      if (!more) return
      await pause(wait)
      wait = Math.min(wait * 2, LONGEST_WAIT)
    }
  }

  run()
  return () => stopper.abort()
}

// A hidden page reads nothing: a browser has few connections to one server, and other pages need them.
const shown = () => new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }))

// Wait, but not any longer when the network is back.
function pause(ms) {
  return new Promise((resolve) => {
    const end = () => resolve(removeEventListener("online", end))
    addEventListener("online", end)
    setTimeout(end, ms)
  })
}
