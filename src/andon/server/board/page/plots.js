// SPDX-License-Identifier: Apache-2.0
// What has happened in the last hours. Each plot also says its result in words, and has its numbers in a table.

import { api } from "./api.js"
import { count, h, mark, plural, region, say, span } from "./dom.js"

const REFRESH = 10_000 // ms

export function showPlots(parent) {
  const plots = h("div")
  const hours = h("select", { change: load },
    [1, 3, 6].map((n) => h("option", { value: n }, plural(n, "hour"))))
  parent.append(h("section", { class: "wrap page" }, h("h1", {}, h("label", {}, "The last ", hours)), plots))

  async function load() {
    const wanted = hours.value
    const history = await api.get(`board/history?hours=${wanted}`).catch(({ status, message }) => status && say(message))
    if (!history || wanted !== hours.value) return
    plots.replaceChildren(...draw(history))
  }

  const timer = setInterval(() => document.hidden || plots.querySelector("[open]") || load(), REFRESH) // a table stays as it is
  load()
  return () => clearInterval(timer)
}

function draw({ from, step, ended, causes, tokens, latency, complete_from: complete }) {
  const clock = (time) => new Date(time * 1000).toTimeString().slice(0, 5)
  const times = tokens.map((_, i) => clock(from + i * step))
  const per = step === 60 ? "per minute" : `in ${step / 60} minutes`
  const known = complete > from ? `Before ${clock(complete)} some may be missing.` : ""
  const bounds = latency.bounds.map((bound) => `up to ${span(bound)}`)
  return [
    plot(`Runs ${per}`, { completed: ended.COMPLETED, cancelled: ended.CANCELLED, failed: ended.ERROR }, times, known),
    plot(`Cancels ${per}, by cause`, causes, times, known),
    plot("From the cancel to the end", { cancels: latency.counts }, [...bounds, "longer"],
      `Half of them took at most ${span(latency.p50 || 0)}, 99% at most ${span(latency.p99 || 0)}.`),
    plot(`Output tokens ${per}`, { tokens }, times, known),
  ]
}

/** A strip of bars for each row, all to the same scale. */
function plot(title, rows, names, more) {
  const all = Object.entries(rows)
  const most = Math.max(0, ...all.flatMap(([, values]) => values))
  if (most === 0) return h("figure", {}, h("h2", {}, title), h("p", { class: "dim" }, "Nothing yet."))
  const words = `${all.map(([name, values]) => `${name} ${count(sum(values))}`).join(", ")}; highest bar: ${count(most)}. ${more}`
  const ticks = [0, 0.25, 0.5, 0.75].map((part) => mark(part * 100, names[Math.floor(part * names.length)]))
  const used = names.map((name, i) => [name, all.map(([, values]) => values[i])]).filter(([, values]) => sum(values))
  const table = region("table", `${title}, table`)
  table.append(h("table", {}, h("tr", {}, h("td"), all.map(([name]) => h("th", { scope: "col" }, name))),
    used.map(([name, values]) => h("tr", {}, h("th", { scope: "row" }, name), values.map((n) => h("td", {}, count(n)))))))
  return h("figure", {}, h("h2", {}, title), h("p", { class: "dim" }, words),
    all.map(([name, values]) => h("div", { class: "lane", "aria-hidden": "true" }, h("span", {}, name),
      h("div", { class: `track bars ${name}` }, values.map((n) => h("i", { style: { height: `${(100 * n) / most}%` } }))),
      h("span", { class: "words" }, count(sum(values))))),
    h("div", { class: "lane", "aria-hidden": "true" }, h("div", { class: "track" }, ticks)),
    h("details", {}, h("summary", {}, "Table"), table))
}

const sum = (values) => values.reduce((total, each) => total + each, 0)
