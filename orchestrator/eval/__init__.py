"""`envwright eval`: who answers, on which fixed boards, what is kept, and the paper's table made of it.

In reading order: `records` (what passes between the parts), `sets` (which boards), the solvers `scripted`, `engine` and
`endpoint`, `journal` (answers on disk, so that an evaluation can be continued), `loop`, `results` (rates), `tables`
(text, Markdown, CSV, LaTeX), `comparison` (two evaluations on the same boards), `command`.
"""
