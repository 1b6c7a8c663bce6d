// SPDX-License-Identifier: Apache-2.0
// Where the page is, all in the URL's query: ?agent=&user=&status=&q= is the list with its filters, ?run=AGENT/RUN is a run,
// ?plots are the plots.

const FILTERS = ["agent", "user", "status", "q"]

/** {view: "list", "run" or "plots", run: {agent_id, run_id} or null, filters: {agent, user, status, q}} */
export function readPlace() {
  const query = new URLSearchParams(location.search)
  const [agent_id, run_id] = query.get("run")?.split(/\/(.*)/s, 2) ?? []
  const filters = Object.fromEntries(FILTERS.map((name) => [name, query.get(name) || ""]))
  const view = run_id ? "run" : query.has("plots") ? "plots" : "list"
  return { view, run: run_id ? { agent_id, run_id } : null, filters }
}

/** "AGENT/RUN" of a line, in a URL. */
export const idsOf = ({ agent_id, run_id }) => `${encodeURIComponent(agent_id)}/${encodeURIComponent(run_id)}`

/** The page of a run, given its line. */
export const linkToRun = (line) => `?run=${idsOf(line)}`

/** The list with these filters beside those now. */
export function linkToList(changes) {
  const filters = { ...readPlace().filters, ...changes }
  return `?${new URLSearchParams(FILTERS.filter((name) => filters[name]).map((name) => [name, filters[name]]))}`
}

/** The lines that the filters let through. */
export function matching(lines, { agent, user, status, q }) {
  const part = q.toLowerCase()
  return lines.filter((line) =>
    (!agent || line.agent_id === agent) && (!user || line.user_id === user) && (!status || line.status === status) &&
    (!q || [line.agent_id, line.run_id, line.session_id, line.user_id].some((id) => id?.toLowerCase().includes(part))))
}

export function go(link) {
  const url = new URL(link, location.href)
  if (!url.search) url.search = "" // no lonely "?"
  if (url.href === location.href) return
  history.pushState(null, "", url)
  dispatchEvent(new Event("popstate"))
}
