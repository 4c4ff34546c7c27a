#!/usr/bin/env python3
# plots.py - draws result files.                             (make plots: your own; make pictures: those of the notes)
#
#     python3 common/plots/plots.py                       the folder of notes/results/ measured last, into its pictures/
#     python3 common/plots/plots.py FOLDER [PICTURES]     that folder, into its pictures/ or into PICTURES
#
# PLOTS, at the end, says which picture is drawn from which files. forward_lengths_fp16.txt adds cuDNN and FlashAttention-2. A
# picture whose file is not there is left out, and a line says which. Columns are read by name. Needs matplotlib.
import csv
import glob
import itertools
import json
import math
import os
import re
import sys
import textwrap

from drawing import INK, OTHERS, PANEL, logarithmic, look, plt, save


# ---- result files ----

def newest():
    """The folder of result files that was written to last."""
    files = glob.glob("notes/results/*/*.jsonl") + glob.glob("notes/results/*/sweep.csv")
    return os.path.dirname(max(files, key=os.path.getmtime, default="notes/results/"))


FOLDER = sys.argv[1] if len(sys.argv) > 1 else newest()
PEERS_FILE = "forward_lengths_fp16.txt"
PICTURES = sys.argv[2] if len(sys.argv) > 2 else os.path.join(FOLDER, "pictures")


def path_of(name):
    return os.path.normpath(os.path.join(FOLDER, name))


def is_there(name):
    return os.path.exists(path_of(name))


def rows_of(name):
    """The rows of a .jsonl, .csv or .tsv file; none where there is no file."""
    if not is_there(name):
        return []
    with open(path_of(name), newline="") as file:
        if name.endswith("jsonl"):
            return [json.loads(line) for line in file]
        return list(csv.DictReader(file, delimiter="," if name.endswith("csv") else "\t"))


def number(cell):
    """A figure, or None where there is none: '1.23', ''."""
    return float(cell) if cell else None


def machine(what):
    """What machine.tsv says, as a list of one; empty where there is none."""
    return [row["is"] for row in rows_of("machine.tsv") if row["what"] == what]


def measured(files):
    """The day that runs.tsv has for the first of these files, as a list of one; empty where it has none."""
    return [row["date"] for row in rows_of("runs.tsv") if files.split(":")[0].split(",")[0] in row["files"].split()]


def forward_rows(*names):
    """Of these files; 06's kernels only together with the pre-pass that makes 8-bit numbers."""
    return [row for name in names for row in rows_of(name) if row["seqlen_q"] == row["seqlen_k"]
            and row["direction"] == ("prepare and forward" if row["stage"] == "06_fp8" else "forward")]


# ---- what plots share ----

def length_axis(axis, lengths, size=7.5):
    axis.set_xscale("log", base=2)
    axis.set_xticks(sorted(lengths))
    named = sorted(lengths)[::-1][::1 if len(lengths) <= 6 or len(plt.gcf().axes) < 2 else 2]  # beside another panel there is room for every other
    axis.xaxis.set_major_formatter(lambda n, _: "" if n not in named else f"{n / 1024:g}k" if n >= 1e4 and n % 1024 == 0 else f"{n:g}")
    axis.xaxis.set_minor_locator(plt.NullLocator())
    axis.tick_params(axis="x", labelsize=size)


def out_of_memory(axis, x, y, **more):
    """A cross."""
    axis.plot([x], [y], marker="x", linestyle="", **{"color": INK, "markeredgewidth": 1.8, **more})


def finish(rows, file, words=()):
    """Under the picture `words`, a paragraph each; last: which device, which day, which file."""
    figure = plt.gcf()
    days = sorted({row["date"] for row in rows if row.get("date")}) or measured(file) or machine("date")
    device = rows[0].get("device") or "".join(machine("GPU"))
    if rows[0].get("cuda", "a GPU's") in ("", None):
        device += " as the CPU device, a simulator: its times say nothing about a GPU"
    source = ", ".join(filter(None, (device, " to ".join(sorted({*days[:1], *days[-1:]})), file)))
    box = figure.get_tightbbox()
    text = "\n".join(line for paragraph in (*words, source)
                     for line in textwrap.wrap(paragraph, int(17 * box.width), subsequent_indent="   "))
    figure.text(box.x0 / figure.get_figwidth(), (box.y0 - 0.1) / figure.get_figheight(), text,
                fontsize=7.5, ha="left", va="top", linespacing=1.35)


def problem(p):
    return (f"batch {p['batch']}, {p['heads']} heads, N = {p['seqlen_q']}, D = {p['head_dim']}, {p['dtype']}, "
            f"{'causal' if p['causal'] else 'full'}")


# ---- the ladder ----

def bases(variants):
    """What each kernel is compared with: what the ladder names, or else the one above it."""
    def of(name):  # a kernel, or all of a stage
        return [variant for variant in variants if f"{variant}/".startswith(f"{name}/")]

    base_of = dict(zip(variants, [None] + variants))
    for line in open("common/ladder.txt"):
        if line[0].isdigit():
            stage, builds_on = line.split()[:2]
            for base in builds_on.split(","):
                kernel, _, other = base.rpartition(":")
                for first in of(f"{stage}/{kernel}" if kernel else stage)[:1]:
                    base_of[first] = (of(other) or [None])[-1]
    return base_of


def ladder():
    """A dot for a latency, and how many times faster than the kernel it builds on."""
    steps, above = {}, None
    for row in sorted(forward_rows("ladder.jsonl", "fp8.jsonl"), key=lambda row: row["stage"]):
        if row["latency_ms"]:  # every program may have run 00_naive: the first will do
            steps.setdefault(row["variant"], row)
    base_of = bases(list(steps))
    latencies = [row["latency_ms"] for row in steps.values()]
    _, axis = plt.subplots(figsize=(7.8, 0.3 * len(steps) + 0.9))
    for place, (variant, row) in enumerate(steps.items()):
        latency, base = row["latency_ms"], base_of[variant]
        axis.plot([latency], [place], marker="o", markersize=6.5, color=look(variant)["color"])
        text = f"{latency:.3g} ms ({100 * (row['highest_ms'] - row['lowest_ms']) / latency:.1f} %)"
        if base:
            times = steps[base]["latency_ms"] / latency
            text += ", as fast as" if abs(times - 1) < 0.01 else f", {times:.3g} × faster than" if times > 1 else f", {1 / times:.3g} × slower than"
            text = text.rsplit(" ", 1)[0] if base == above else f"{text} {base}"
        axis.text(latency * 1.2, place, text, va="center", fontsize=8)
        above = variant
    axis.set_yticks(range(len(steps)), steps)
    axis.invert_yaxis()
    logarithmic(axis, "x")
    axis.set_xlim(min(latencies) / 2, max(latencies) * 2)
    while max(text.get_window_extent().x1 for text in axis.texts) > axis.bbox.x1:  # no text leaves the panel
        axis.set_xlim(right=axis.get_xlim()[1] * 1.5)
    axis.set_xlabel("latency, ms (logarithmic: the same distance is the same factor)")
    axis.set_title("Forward, " + problem(row), loc="left")
    finish(list(steps.values()), ", ".join(filter(is_there, ("ladder.jsonl", "fp8.jsonl"))), words=[
        "Faster, slower: than the row above, or than the kernel named. In brackets: the spread, the slowest round minus the "
        "fastest."])


# ---- against length ----

def add_point(lines, head_dim, mask, name, style, point):
    """Lines are {(head dim, mask): {name: (points, how the line looks)}}."""
    lines.setdefault((head_dim, mask), {}).setdefault(name, ([], style))[0].append(point)


MOST_LINES = 8  # with a name in a panel; a reader cannot tell more apart


def notable(lines, better):
    """The lines that get a name: of each stage the best kernel, at the longest length that all of its kernels have; then others' programs."""
    stages = {}
    for name in lines:
        stages.setdefault(name.split("/")[0], []).append(name)
    best = []
    for names in stages.values():
        at = {name: dict(lines[name][0]) for name in names}
        shared = max(set.intersection(*map(set, at.values())), default=None)
        best.append(better(names, key=lambda name: at[name].get(shared, 0)) if shared else names[0])
    return sorted(best, key=lambda name: (look(name)["marker"] == " ") * (1 + (name != "cuDNN")))[:MOST_LINES]


def name_ends(axis, named):
    """Each line's name in its color, to the right of the panel, as near to the line's end as its neighbors' names allow."""
    axis.figure.canvas.draw()
    low, high = axis.transAxes.transform([(0, 0), (1, 1)])[:, 1]
    line = 8 * 1.3 * axis.figure.dpi / 72 / (high - low)
    ends = sorted(((axis.transAxes.inverted().transform(axis.transData.transform(points[-1])), name, style)
                   for name, (points, style) in named.items()), key=lambda end: end[0][1])
    heights = [line * len(name.split("\n")) for _, name, _ in ends]
    gaps = [(one + other) / 2 for one, other in zip(heights, heights[1:])]
    places = [max(0, end[0][1]) for end in ends]
    for i, gap in enumerate(gaps):
        places[i + 1] = max(places[i + 1], places[i] + gap)
    places[-1] = min(places[-1], 1 - max(0, heights[-1] - line) / 2)  # and none above the panel
    for i, gap in reversed(list(enumerate(gaps))):
        places[i] = min(places[i], places[i + 1] - gap)
    for (end, name, style), place in zip(ends, places):
        axis.plot([end[0], 1.03], [end[1], place], transform=axis.transAxes, color=style["color"], linewidth=0.5, clip_on=False)
        axis.text(1.04, place, name, transform=axis.transAxes, color=style["color"], fontsize=8, va="center")


def panels(lines, label, better=max):
    """A panel a head dim and mask; returns them by these. More lines than a reader can tell apart: only the notable have a color."""
    keys = sorted(lines, key=lambda key: (int(key[0]), key[1] == "causal"))
    down, across = (len({key[i] for key in keys}) for i in (0, 1))
    figure, axes = plt.subplots(down, across, figsize=(4.1 * across, 3.3 * down), sharex=True, sharey=True, squeeze=False)
    found = dict(zip(keys, axes.flat))
    for key, axis in found.items():
        for name, (points, style) in lines[key].items():
            if name in notable(lines[key], better):
                axis.plot(*zip(*points), **style)
            else:
                axis.plot(*zip(*points), color=OTHERS, linewidth=0.8, zorder=1.5)
        length_axis(axis, {n for some in lines.values() for points, _ in some.values() for n, _ in points})
        axis.set_title(f"D = {key[0]}, {key[1]}", loc="left")
        axis.set(xlabel="sequence length N", ylabel=label)
        axis.label_outer()
    return found


def name_panels(found, lines, better):
    """When the scales are as they stay."""
    for key, axis in found.items():
        name_ends(axis, {name: lines[key][name] for name in notable(lines[key], better)})
    plt.gcf().tight_layout()


def peers_of(line):
    """Names and TFLOP/s in a line of peers.py."""
    names = {"cudnn": "cuDNN", "flash": "FlashAttention-2, PyTorch's", "fa3": "FlashAttention-3"}
    return [(names[peer], float(tflops)) for peer, tflops in re.findall(r"\| (\w+) +([\d.]+)", line) if peer in names]


def add_peers(lines, is_latency):
    """What peers.py timed beside ours."""
    for line in open(path_of(PEERS_FILE)) if is_there(PEERS_FILE) else ():
        shape = re.match(r"D(\d+) (full|causal) S(\d+) B(\d+) ", line)
        there = shape and (shape[1], shape[2]) in lines
        for name, tflops in peers_of(line) if there else ():
            n = int(shape[3])
            flops = 4 * int(shape[4]) * 2048 * n**2 / (2 if shape[2] == "causal" else 1)  # heads · D = 2048 there
            add_point(lines, shape[1], shape[2], name, look(name), (n, flops / tflops * 1e-9 if is_latency else tflops))


def forward(column, label):
    """What is out of memory has no figure: it is marked at the edge where it would be."""
    rows, lines, lost, is_latency = forward_rows("sweep.csv"), {}, {}, column == "latency_ms"
    for row in sorted(rows, key=lambda row: (row["variant"], int(row["seqlen_k"]))):
        mask, n, variant = "causal" if row["causal"] == "true" else "full", int(row["seqlen_k"]), row["variant"]
        if number(row[column]):
            add_point(lines, row["head_dim"], mask, variant, look(variant), (n, number(row[column])))
        elif "memory" in row["note"]:
            lost.setdefault((row["head_dim"], mask), []).append((n, look(variant)["color"]))
    add_peers(lines, is_latency)
    alone = min((int(row["seqlen_k"]) for row in rows if row["batch"] == "1"), default=None)
    found = panels(lines, label, min if is_latency else max)
    is_batched = alone and any(row["batch"] != "1" for row in rows)
    for key, axis in found.items():
        if is_batched:
            axis.axvline(alone, color=INK, linewidth=0.9, linestyle=":")
        for i, (n, colour) in enumerate(lost.get(key, ())):  # one beside the other
            out_of_memory(axis, n, 0.97 - 0.055 * i if is_latency else 0.03 + 0.055 * i, color=colour, markersize=6,
                          transform=axis.get_xaxis_transform(), clip_on=False)
        if is_latency:
            logarithmic(axis, "y")
        else:
            axis.set_ylim(bottom=0)
    name_panels(found, lines, min if is_latency else max)
    words = ["Gray: the stages' other kernels.", is_batched and "From the dotted line on, the batch is 1.",
             lost and "×: out of memory at this length."]
    finish(rows, ", ".join(filter(is_there, ("sweep.csv", PEERS_FILE))) + ", " + tokens_of(rows), [" ".join(filter(None, words))])


def backward():
    """09_fa3_backward's kernel and other programs, as peers.py timed them in one run."""
    lines = {}
    for line in open(path_of("fa3_backward_fp16.txt")):
        shape = re.match(r"D(\d+) (full|causal) S(\d+) B\d+ \w+ +(\w+) +[\d.]+ ms +([\d.]+) TF", line)  # not those of grouped heads
        for name, tflops in peers_of(line) + [("09_fa3_backward/" + shape[4], float(shape[5]))] if shape else ():
            add_point(lines, shape[1], shape[2], name, look(name), (int(shape[3]), tflops))
    found = panels(lines, "TFLOP/s, backward")
    found[min(lines)].set_ylim(bottom=0)
    name_panels(found, lines, max)
    finish([{}], "fa3_backward_fp16.txt")


def sparse_lines():
    """{head dim: {length: {name: [(percent of the blocks kept, ms)]}}}; the kernels without lists have one point, at 100 %."""
    lines = {}
    for line in open(path_of("sparse_fp16.txt")):
        row = re.match(r"D(\d+) 1/(\d+) S(\d+) \S+ \S+\s+(\w+)\s+([\d.]+) ms .*?flex\s+[\d.]+\s+x([\d.]+)(?:.*dense\s+[\d.]+\s+x([\d.]+))?",
                       line)
        if row:
            d, n, percent, ms = int(row[1]), int(row[3]), 100 / int(row[2]), float(row[5])
            times = {f"10_block_sparse/{row[4]}": ms}
            if row[4] == "skipping":
                times["FlexAttention"] = ms * float(row[6])
            if row[7]:
                times[("04_fa2/tuned" if row[4] == "skipping" else "08_fa3/overlapped") + ", no lists"] = ms * float(row[7])
            for name, time in times.items():
                lines.setdefault(d, {}).setdefault(n, {}).setdefault(name, []).append((percent, time))
    return lines


def sparse():
    """Time over the share of the blocks that a mask keeps: a panel per head dim, for the shortest and the longest length."""
    lines = sparse_lines()
    lengths = sorted({n for some in lines.values() for n in some})
    lengths = sorted({lengths[0], lengths[-1]})
    figure, axes = plt.subplots(len(lengths), len(lines), figsize=(4.1 * len(lines), 3 * len(lengths)), sharex=True,
                                sharey="row", squeeze=False)
    named = []
    for n, row in zip(lengths, axes):
        for d, axis in zip(sorted(lines), row):
            some = {name: (sorted(points), look(name)) for name, points in lines[d].get(n, {}).items()}
            for points, style in some.values():
                axis.plot(*zip(*points), **style | ({"markerfacecolor": "none", "markersize": 8} if len(points) == 1 else {}))
            logarithmic(axis, "xy")
            axis.set_title(f"D = {d}, N = {n}", loc="left")
            axis.set(xlabel="blocks kept (logarithmic)", ylabel="latency, ms (logarithmic)")
            axis.label_outer()
            named.append((axis, some))
    shares = sorted({percent for _, some in named for points, _ in some.values() for percent, _ in points})
    for axis, some in named:
        axis.set_xticks(shares, [f"{percent:g} %" for percent in shares], fontsize=7.5)
        axis.yaxis.set_major_locator(plt.LogLocator(subs=(1, 2, 5)))
        axis.minorticks_off()
    for axis, some in named:
        name_ends(axis, some)
    figure.tight_layout()
    finish([{}], "sparse_fp16.txt: random blocks, batch 1, heads = 2048 / D, fp16")


def tokens_of(rows):
    tokens = max((int(row["batch"]) * int(row["seqlen_q"]) for row in rows if int(row["batch"]) > 1), default=0)
    widths = {int(row["heads"]) * int(row["head_dim"]) for row in rows}
    batch = f"batch = {tokens} / N, at least 1" if tokens else "batch 1"
    return batch + (f", heads = {widths.pop()} / D" if len(widths) == 1 else "") + f", {rows[0]['dtype']}"


def memory():
    """Bytes of one batch entry, so that N and N² are what one sees. Variants with the same bytes are one line."""
    rows = [row for row in forward_rows("sweep.csv") if number(row["tensor_bytes"])]
    head_dim = max((row["head_dim"] for row in rows), key=int)
    rows = [row for row in rows if row["head_dim"] == head_dim]
    lines = {}
    for row in sorted(rows, key=lambda row: (row["variant"], int(row["seqlen_k"]))):
        bytes_ = (int(row["tensor_bytes"]) + int(row["workspace_bytes"])) / int(row["batch"])
        lines.setdefault(row["variant"], {})[int(row["seqlen_k"])] = bytes_
    unit, name = (2**30, "GiB") if max(max(line.values()) for line in lines.values()) > 2**30 else (2**20, "MiB")
    groups = {}  # of variants, by what they ask for at their shortest length
    for variant, line in lines.items():
        groups.setdefault((min(line), f"{line[min(line)]:.2g}"), []).append(variant)
    groups = sorted(groups.values(), key=lambda group: -lines[group[0]][max(lines[group[0]])] / max(lines[group[0]]))
    lost = [row for row in rows if "memory" in row["note"]]
    figure, axis = plt.subplots(figsize=(7.2, 3.9))
    named = {}
    for group in groups:
        points = sorted({n: bytes_ / unit for variant in group for n, bytes_ in lines[variant].items()}.items())
        name_of_group = textwrap.fill(", ".join(shorter(group, lines)), 24)
        if any(row["variant"] in group for row in lost):
            name_of_group += "\n× more than the GPU has"
        named[name_of_group] = points, look(group[-1])
        axis.plot(*zip(*points), **look(group[-1]))
        (before, less), (last, most) = (points[:1] + points)[-2:]
        if last == 2 * before and group in (groups[0], groups[-1]):
            axis.annotate(f"twice the N: {most / less:.2g} times the bytes", (last, most),
                          (-8, 6 if group is groups[0] else -52), textcoords="offset points", ha="right", fontsize=8)
    for row in lost:
        n = int(row["seqlen_k"])
        out_of_memory(axis, n, lines[row["variant"]][n] / unit, markersize=10, markeredgewidth=2)
    length_axis(axis, {n for line in lines.values() for n in line})
    logarithmic(axis, "y")
    axis.set_xlabel("sequence length N")
    axis.set_ylabel(f"tensors + workspace, {name} (logarithmic)")
    axis.set_title(f"Batch 1, {rows[0]['heads']} heads, D = {head_dim}, {rows[0]['dtype']}", loc="left")
    figure.tight_layout()
    name_ends(axis, named)
    finish(rows, "sweep.csv (bytes over batch)")


def shorter(group, variants):
    """'04_fa2/split_q', 'tuned' or, if all variants of a stage are there, '04_fa2'."""
    names, before = [], None
    for variant in group:
        stage = variant.split("/")[0]
        if all(other in group for other in variants if other.split("/")[0] == stage):
            names += [stage] if stage != before else []
        else:
            names.append(variant if stage != before else variant.split("/")[1])
        before = stage
    return names


# ---- the roofline ----

def roofline():
    """TFLOP/s measured over FLOPs per requested byte, both for the ladder's problem."""
    steps = [row for row in rows_of("ladder.jsonl") if row["tflops"]]
    intensity = {row["variant"]: number(row["FLOPs a byte"]) for row in rows_of("../intensity.tsv")}
    ceilings = {row["what"]: row["figure"] for row in rows_of("ceilings.tsv")}
    bandwidth = float(ceilings["device memory"])
    _, axis = plt.subplots(figsize=(7.4, 4.3))
    left, right = 0.25, 5000
    roofs = [(float(ceilings[what]), name) for what, name in
             (("wgmma, 16 bits", "wgmma"), ("mma.sync", "mma.sync"), ("fp32 FMA", "CUDA cores")) if what in ceilings]
    highest = max(roofs)[0]
    for peak, name in roofs:  # the highest is named above its line, the others below
        above = peak == highest
        axis.plot([peak / bandwidth, right], [peak, peak], color=INK, linewidth=1.4 if above else 1,
                  linestyle="-" if above else ":")
        axis.text(right, peak * (1.06 if above else 0.94), f"{name}, {peak:.3g} TFLOP/s", ha="right",
                  va="bottom" if above else "top", fontsize=7.5)
    axis.plot([left, highest / bandwidth], [left * bandwidth, highest], color=INK, linewidth=1.4)
    axis.text(1.1, 1.1 * bandwidth / 2.2, f"device memory, {bandwidth:g} TB/s", ha="left", va="center", fontsize=7.5)
    points = {row["variant"]: (intensity[row["variant"]], row["tflops"]) for row in steps if intensity.get(row["variant"])}
    named = notable({variant: ([(1, tflops)], look(variant)) for variant, (_, tflops) in points.items()}, max)
    for variant, point in points.items():
        color = look(variant)["color"] if variant in named else OTHERS
        axis.plot(*point, marker="o", markersize=7, color=color, zorder=3 if variant in named else 2,
                  markerfacecolor=PANEL if variant.endswith("/fma") else color)
    logarithmic(axis, "xy")
    axis.set_xlim(left, right)
    axis.set_xlabel("FLOPs per requested byte of device memory, before any cache (logarithmic)")
    axis.set_ylabel("TFLOP/s (logarithmic)")
    axis.set_title(problem(steps[0]).replace("b", "B", 1), loc="left")
    lines = [[(left, left * bandwidth), (highest / bandwidth, highest)]]
    lines += [[(peak / bandwidth, peak), (right, peak)] for peak, _ in roofs]
    name_points(axis, {variant: points[variant] for variant in named}, points.values(), lines)
    finish(steps, "ladder.jsonl, intensity.tsv, ceilings.tsv", words=[
        "The best kernel of each stage has a name; the others are gray, and hollow without tensor cores. Above the slope, L2 "
        "serves part of the requested bytes. Far below it, the kernel waits for something else."])


def name_points(axis, named, points, lines):
    """Each point's name in its stage's color, where it covers no other point, name or line; else to the right of the point."""
    axis.figure.canvas.draw()
    pixels = axis.transData.transform
    taken = [pixels(point) for point in points]
    for start, end in map(pixels, lines):
        taken += [start + (end - start) * i / 200 for i in range(201)]
    boxes = [text.get_window_extent() for text in axis.texts]
    places = ((7, 0), "left"), ((-7, 0), "right"), ((4, -11), "left"), ((-4, 11), "right"), ((0, -14), "center")
    for name, point in named.items():
        labels = [axis.annotate(name, point, place, textcoords="offset points", ha=align, va="center", fontsize=8,
                                color=look(name)["color"]) for place, align in places]
        free = [label for label in labels if is_free(label.get_window_extent(), taken, boxes)]
        kept = (free or labels)[0]
        boxes.append(kept.get_window_extent())
        for label in labels:
            if label is not kept:
                label.remove()


def is_free(box, points, boxes):
    return not any(box.contains(*point) for point in points) and not any(box.overlaps(other) for other in boxes)


# ---- decoding and 8 bits ----

def splits():
    rows = rows_of("splits.tsv")
    speeds = [(int(row["splits"]), number(row["GB/s"])) for row in rows if row["splits"].isdigit()]
    _, axis = plt.subplots(figsize=(5.6, 3.3))
    named = {"--splits n": (speeds, look("07_flash_decoding/split_k"))}
    for row in rows:
        if row["splits"] == "auto":
            level = [(n, number(row["GB/s"])) for n in (speeds[0][0], speeds[-1][0])]
            named[f"--splits auto:\n{level[0][1]:.4g} GB/s"] = level, {"color": INK, "linewidth": 1, "linestyle": "--"}
    for points, style in named.values():
        axis.plot(*zip(*points), **style)
    length_axis(axis, [n for n, _ in speeds if n & (n - 1) == 0], 9)
    axis.set_ylim(bottom=0)
    axis.set_xlabel("splits of each head's keys")
    axis.set_ylabel("GB/s of K and V")
    name_ends(axis, named)
    finish(rows, "splits.tsv")


def fp8_errors():
    """A table as a picture: a line per way to quantize, a mark per kind of inputs."""
    rows = rows_of("../fp8_errors.tsv")
    kinds, names = zip(*((kind, way.replace("/", " · ")) for kind, way in (row["way"].split("/", 1) for row in rows)))
    lines = list(dict.fromkeys(names))
    _, axis = plt.subplots(figsize=(7, 0.3 * len(lines) + 1.2))
    points = {(kind, name): number(row["RMSE"]) for row, kind, name in zip(rows, kinds, names)}
    apart = lambda name: min(abs(math.log(points[one, name] / points[other, name]))
                             for one, other in itertools.combinations(set(kinds), 2))
    widest = max(lines, key=lambda name: round(apart(name), 1))  # where the names of the inputs have room
    for kind, marker, size, colour in (("normal", "o", 10, "#2f93cf"), ("outliers", "D", 6, "#b04a00"),
                                       ("biased", "s", 6, "#7a4fb5")):
        some = [(error, lines.index(name)) for (of, name), error in points.items() if of == kind]
        axis.plot(*zip(*some), marker=marker, color=colour, linestyle="", markersize=size, markeredgewidth=1.5,
                  markerfacecolor="none" if kind == "normal" else colour)  # a ring: another mark may be in it
        axis.annotate(kind, (points[kind, widest], lines.index(widest)), (0, 10), textcoords="offset points", ha="center",
                      va="center", fontsize=8, color=colour)
    axis.set_yticks(range(len(lines)), lines)
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set_xlabel("root mean square error of O against fp64, by kind of inputs (logarithmic)")
    finish([{"device": "CPU device, sums in fp32", "date": row["date"]} for row in rows], "fp8_errors.tsv")


PLOTS = (
    ("ladder.svg", ["ladder.jsonl"], ladder),  # what each variant bought on one problem
    ("latency.svg", ["sweep.csv"], lambda: forward("latency_ms", "latency, ms (logarithmic)")),
    ("tflops.svg", ["sweep.csv"], lambda: forward("tflops", "TFLOP/s")),
    ("backward.svg", ["fa3_backward_fp16.txt"], backward),
    ("sparse.svg", ["sparse_fp16.txt"], sparse),
    ("memory.svg", ["sweep.csv"], memory),
    ("roofline.svg", ["ladder.jsonl", "ceilings.tsv", "../intensity.tsv"], roofline),
    ("splits.svg", ["splits.tsv"], splits),
    ("fp8_errors.svg", ["../fp8_errors.tsv"], fp8_errors),
)

if not os.path.isdir(FOLDER):
    print(f"plots.py: {FOLDER}: choose a folder of notes/results", file=sys.stderr)
    sys.exit(2)
print(f"plots of {FOLDER}, into {PICTURES}")
# The simulator's TFLOP/s are those of a CPU that counts: nobody should read them off a picture.
SIMULATED = any(row.get("cuda", "a GPU's") in ("", None) for name in ("sweep.csv", "ladder.jsonl") for row in rows_of(name))
for picture, files, draw in PLOTS:
    if SIMULATED and picture in ("tflops.svg", "backward.svg", "roofline.svg"):
        print(f"{picture}: not drawn, the speed of the CPU device says nothing about a GPU")
        continue
    missing = [path_of(file) for file in files if not is_there(file)]
    if missing:
        print(f"{picture}: not drawn, {missing[0]} is not there")
    elif "sweep.csv" in files and not any(number(row["latency_ms"]) for row in forward_rows("sweep.csv")):
        print(f"{picture}: not drawn, {path_of('sweep.csv')} has no forward pass with as many queries as keys")
    else:
        draw()
        save(picture, PICTURES)
