// SPDX-License-Identifier: Apache-2.0
// Loads the board. A browser asks only once for each file: if one has not come, this loads the whole page again.

const WAIT = 2_000 // ms between two tries

async function loadAgain(why) {
  console.error(why)
  document.getElementById("banner").textContent = "A part of this page is missing. Trying again…"
  do await new Promise((resolve) => setTimeout(resolve, WAIT))
  while (!(await fetch("./").catch(() => null))?.ok) // else a browser shows a page of its own
  location.reload()
}

const styled = getComputedStyle(document.body).getPropertyValue("--board")
if (styled) import("./main.js").catch(loadAgain)
else loadAgain("board.css")
