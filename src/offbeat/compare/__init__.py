"""Compare: every way of synchronising on the same emulated cluster, the same model, data, seed and steps.

contest.py      what is to be run: strategies x links x workers, repeated
contestant.py   a way of synchronising: one of our strategies, or a rival's function in a file
config.py       what a worker is told
worker.py       one worker of one run, in its own process and network namespace
odometer.py     how many steps the workers have made, for those who watch
cpu.py          CPU seconds of a worker and of what it started
snapshots.py    the weights of all workers along the way, from which accuracy against time is had afterwards
course.py       where workers run: namespaces with shaped links, or loopback
failures.py     who of them failed first, and what it said
lap.py          one run: starts the workers, watches the wire, collects what they say
measures.py     from laps to numbers: shares, utilisation, time to a target
progress.py     which lap it is and how far, while the race is on
table.py        the table of the terminal, and its columns
timeline.py     what every worker did and when, as bars
meetings.py     who talks to whom
page_data.py    all that report.html shows, as plain lists and dicts
page.py         report.html, put together from that and from web/
plots.py        the pictures
record.py       what is kept of it: compare.json
outputs.py      the folder of --out
command.py      the command line
"""
