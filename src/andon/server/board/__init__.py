# SPDX-License-Identifier: Apache-2.0
"""The board: a page that shows what runs now, and a stream that feeds it.

`lines` makes the line of a run. `feed` keeps the lines of all runs, of this process and of others (`elsewhere`), and
sends boards the lines that have changed. `history` has the runs that have ended, and `plots` counts them. `stream` is
the response that one board reads. `tree` finds the runs below a run, and `words` tells how a run ended. `routes` has
the paths. The page itself is in `page/`: files that a browser loads as they are.
"""
