#!/usr/bin/env python3
# compare.py TABLES PICTURE - draws the tables of `make compare`, a panel for each, into an SVG file.      (make compare PLOT=1)
#
# TABLES is what compare.awk wrote: a line per variant, with tabs between. Needs matplotlib.
import csv
import math
import os
import sys
import textwrap

from drawing import logarithmic, look, plt, save

tables_file, picture = sys.argv[1:]
with open(tables_file, newline="", encoding="utf-8") as file:
    tables = {}
    for row in csv.DictReader(file, delimiter="\t"):
        tables.setdefault(row["problem"], []).append(row)
if not tables:
    print(f"compare.py: {tables_file}: has no table to draw", file=sys.stderr)
    sys.exit(2)

sizes = [len(rows) for rows in tables.values()]
figure, axes = plt.subplots(len(tables), 1, figsize=(6.6, 0.26 * sum(sizes) + 0.95 * len(sizes)), squeeze=False,
                            height_ratios=[size + 0.6 for size in sizes])
for (problem, rows), axis in zip(tables.items(), axes.flat):
    ran = [float(row["figure"]) for row in rows if float(row["figure"]) > 0]
    for place, row in enumerate(rows):
        value = float(row["figure"])
        if value > 0:
            axis.plot([value], [place], marker="o", markersize=6.5, linestyle="", color=look(row["variant"])["color"])
        axis.annotate(f"{row['text']}, {row['beside']}" if value > 0 else "not run", (value or min(ran, default=1), place), (7, 0),
                      textcoords="offset points", va="center", fontsize=8)
    axis.set_yticks(range(len(rows)), [row["variant"] for row in rows])
    axis.set_ylim(len(rows) - 0.4, -0.6)
    logarithmic(axis, "x")
    if ran:  # with room for the text behind the last dot
        axis.set_xlim(min(ran) / 1.3, max(ran) * 10 ** max(0.5, 0.75 * math.log10(max(ran) / min(ran))))
    axis.set_xlabel(rows[0]["axis"] + " (logarithmic: the same distance is the same factor)")
    axis.set_title("\n".join(textwrap.wrap(problem[0].upper() + problem[1:], 95)), loc="left")
figure.tight_layout()
figure.text(0.01, 0, rows[0]["device"], fontsize=7.5, va="top")
save(os.path.basename(picture), os.path.dirname(picture) or ".")
