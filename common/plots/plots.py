#!/usr/bin/env python3
# plots.py - draws what was measured: notes/results/<device>/ into notes/pictures/.                       (make plots)
#
#     python3 common/plots/plots.py [--results notes/results/nvidia-h200] [--out notes/pictures]
#
#     ladder.svg        ladder.jsonl                 what each variant bought on one problem
#     latency.svg       sweep.csv                    milliseconds against length
#     tflops.svg        sweep.csv                    TFLOP/s against length
#     memory.svg        sweep.csv                    bytes against length
#     roofline.svg      ladder.jsonl, ceilings.tsv, ../intensity.tsv
#     splits.svg        splits.tsv                   decoding: GB/s over the number of splits
#     fp8_errors.svg    fp8_errors.tsv               how far 8 bits are from the truth
#
# A picture whose file is not there is left out, and a line says which. Needs matplotlib.
import argparse
import csv
import json
import os
import sys

from drawing import INK, look, plt, save

parser = argparse.ArgumentParser(description="draws notes/results/<device>/ into notes/pictures/")
parser.add_argument("--results", default="notes/results/nvidia-h200", help="a folder of result files")
parser.add_argument("--out", default="notes/pictures", help="where the pictures go")
options = parser.parse_args()


# ---- result files ----

def path_of(name):
    return os.path.normpath(os.path.join(options.results, name))


def json_rows(name):
    with open(path_of(name)) as file:
        return [json.loads(line) for line in file]


def csv_rows(name, separator=","):
    with open(path_of(name), newline="") as file:
        return list(csv.DictReader(file, delimiter=separator))


def number(cell):
    """A figure, or None where there is none: '1.23', '45 %', ''."""
    try:
        return float(cell.replace("%", ""))
    except (ValueError, AttributeError):
        return None


# ---- what plots share ----

def thousands(value, _=None):
    return f"{value:g}" if value < 1e4 else f"{value / 1024:g}k" if value % 1024 == 0 else f"{value:g}"


def length_axis(axis, lengths):
    axis.set_xscale("log", base=2)
    axis.set_xticks(sorted(lengths))
    axis.xaxis.set_major_formatter(thousands)
    axis.xaxis.set_minor_locator(plt.NullLocator())
    axis.tick_params(axis="x", labelsize=7.5)


def plain_numbers(axis):
    """1000 rather than 10^3 on a logarithmic axis."""
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(plt.NullFormatter())


def finish(figure, axes, rows, file, columns=3):
    """The legend under the picture, and under that one line: which device, which day, which file."""
    handles = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels()):
            handles.setdefault(label, handle)
    height = figure.get_figheight()
    if handles:
        figure.legend(handles.values(), handles.keys(), loc="upper center", bbox_to_anchor=(0.5, 0.0), ncol=columns,
                      fontsize=8)
    lines = -(-len(handles) // columns)
    days = sorted({row["date"] for row in rows if row.get("date")}) or machine("date")
    words = [rows[0].get("device") or "".join(machine("GPU")), " to ".join(sorted({days[0], days[-1]})) if days else "", file]
    figure.text(0.01, -(0.15 + 0.2 * lines) / height, ", ".join(word for word in words if word), fontsize=7, ha="left", va="top")


def machine(what):
    """What machine.tsv says, as a list of one; empty where there is none."""
    if not os.path.exists(path_of("machine.tsv")):
        return []
    return [row["is"] for row in csv_rows("machine.tsv", "\t") if row["what"] == what]


def is_out_of_memory(row):
    return "memory" in row["note"]


def forward_rows():
    rows = csv_rows("sweep.csv")
    return [row for row in rows if row["direction"] == "forward" and row["seqlen_q"] == row["seqlen_k"]]


def series(rows, **where):
    """Rows of each variant, in order of length."""
    found = {}
    for row in rows:
        if all(row[key] == value for key, value in where.items()):
            found.setdefault(row["variant"], []).append(row)
    return {variant: sorted(list_, key=lambda row: int(row["seqlen_k"])) for variant, list_ in sorted(found.items())}


# ---- the ladder ----

def ladder():
    """Bars of latency, and how many times faster than the one before."""
    rows = [row for row in json_rows("ladder.jsonl") if row["direction"] == "forward" and row["latency_ms"]]
    seen, steps = set(), []
    for row in rows:  # every program may have run 00_naive: the first will do
        if row["variant"] not in seen:
            steps.append(row)
        seen.add(row["variant"])
    figure, axis = plt.subplots(figsize=(7.2, 0.34 * len(steps) + 1.1))
    longest = max(row["latency_ms"] for row in steps)
    for place, row in enumerate(steps):
        milliseconds = row["latency_ms"]
        axis.barh(place, milliseconds, color=look(row["variant"])["color"], height=0.62)
        times = steps[place - 1]["latency_ms"] / milliseconds if place else 1
        text = f"{milliseconds:.3g} ms"
        if place:
            faster = f"{times:.3g} × faster" if times > 1 else f"{1 / times:.3g} × slower"
            text += ", the same" if abs(times - 1) < 0.005 else f", {faster}"
        axis.text(milliseconds * 1.08, place, text, va="center", fontsize=8)
    axis.set_yticks(range(len(steps)), [row["variant"] for row in steps])
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set_xlim(min(row["latency_ms"] for row in steps) / 2, longest * 12)
    plain_numbers(axis.xaxis)
    axis.grid(axis="y", visible=False)
    axis.set_xlabel("latency, ms (logarithmic)")
    p = steps[0]
    mask = "causal" if p["causal"] else "full"
    axis.set_title(f"Forward, batch {p['batch']}, heads {p['heads']}, N = {p['seqlen_q']}, D = {p['head_dim']}, {p['dtype']}, {mask}",
                   loc="left")
    finish(figure, [], steps, "ladder.jsonl")
    save(figure, "ladder.svg", options.out)


# ---- against length ----

def against_length(column, label, name, edge):
    """A panel a head dim and mask. What is out of memory has no figure: it is marked at an edge, 0 the lower, 1 the upper."""
    rows = forward_rows()
    head_dims = sorted({row["head_dim"] for row in rows}, key=int)
    masks = [mask for mask in ("false", "true") if any(row["causal"] == mask for row in rows)]
    figure, panels = plt.subplots(len(head_dims), len(masks), figsize=(4.1 * len(masks), 3.1 * len(head_dims)),
                                  sharex=True, sharey=True, squeeze=False)
    lengths = {int(row["seqlen_k"]) for row in rows}
    for i, head_dim in enumerate(head_dims):
        for j, mask in enumerate(masks):
            axis = panels[i][j]
            lost = 0
            for variant, line in series(rows, head_dim=head_dim, causal=mask).items():
                known = [(int(row["seqlen_k"]), number(row[column])) for row in line if number(row[column]) is not None]
                if known:
                    axis.plot(*zip(*known), label=variant, **look(variant))
                for row in line:
                    if is_out_of_memory(row):  # one beside the other
                        height = 0.97 - 0.055 * lost if edge else 0.03 + 0.055 * lost
                        axis.plot([int(row["seqlen_k"])], [height], marker="x", markersize=6, markeredgewidth=1.8, linestyle="",
                                  color=look(variant)["color"], transform=axis.get_xaxis_transform(), clip_on=False)
                        lost += 1
            length_axis(axis, lengths)
            axis.set_yscale("log")
            plain_numbers(axis.yaxis)
            axis.set_title(f"D = {head_dim}, {'causal' if mask == 'true' else 'full'}", loc="left")
            if i == len(head_dims) - 1:
                axis.set_xlabel("sequence length N")
            if j == 0:
                axis.set_ylabel(label)
    panels[0][0].plot([], [], marker="x", linestyle="", color=INK, markeredgewidth=1.8, label="out of memory at this length")
    figure.tight_layout()
    finish(figure, panels.flat, rows, "sweep.csv; " + tokens_of(rows), 4)
    save(figure, name, options.out)


def tokens_of(rows):
    tokens = max(int(row["batch"]) * int(row["seqlen_q"]) for row in rows if int(row["batch"]) > 1) if any(
        int(row["batch"]) > 1 for row in rows) else 0
    widths = {int(row["heads"]) * int(row["head_dim"]) for row in rows}
    batch = f"batch = {tokens} / N, at least 1" if tokens else "batch 1"
    return batch + (f", heads = {widths.pop()} / D" if len(widths) == 1 else "") + f", {rows[0]['dtype']}"


def memory():
    rows = [row for row in forward_rows() if row["causal"] == "false" and number(row["tensor_bytes"])]
    head_dim = max((row["head_dim"] for row in rows), key=int)
    figure, axis = plt.subplots(figsize=(6.2, 3.8))
    lengths = {int(row["seqlen_k"]) for row in rows}
    for variant, line in series(rows, head_dim=head_dim).items():
        points = [(int(row["seqlen_k"]), (number(row["tensor_bytes"]) + number(row["workspace_bytes"])) / 2**30)
                  for row in line]
        axis.plot(*zip(*points), label=variant, **look(variant))
        for row, point in zip(line, points):
            if is_out_of_memory(row):
                axis.plot(*point, marker="x", markersize=10, markeredgewidth=2, linestyle="", color=look(variant)["color"])
    axis.plot([], [], marker="x", linestyle="", color=INK, markeredgewidth=2, label="asked for, and not there")
    length_axis(axis, lengths)
    axis.set_yscale("log")
    plain_numbers(axis.yaxis)
    axis.set_xlabel("sequence length N")
    axis.set_ylabel("tensors + workspace, GiB")
    axis.set_title(f"D = {head_dim}, full", loc="left")
    finish(figure, [axis], rows, "sweep.csv; " + tokens_of(rows))
    save(figure, "memory.svg", options.out)


# ---- the roofline ----

def roofline():
    """TFLOP/s measured over FLOPs a byte counted by the trace, as if nothing were cached."""
    steps = [row for row in json_rows("ladder.jsonl") if row["tflops"]]
    intensity = {row["variant"]: number(row["FLOPs a byte"]) for row in csv_rows("../intensity.tsv", "\t")}
    ceilings = {row["what"]: number(row["figure"]) for row in csv_rows("ceilings.tsv", "\t")}
    bandwidth, peak, fma = ceilings["device memory"], ceilings["mma.sync"], ceilings["fp32 FMA"]
    figure, axis = plt.subplots(figsize=(6.4, 4.0))
    left, right = 0.25, 2000
    bytes_a_flop = [left, peak / bandwidth, right]
    axis.plot(bytes_a_flop, [min(peak, bandwidth * x) for x in bytes_a_flop], color=INK, linewidth=1.4)
    axis.plot([fma / bandwidth, right], [fma, fma], color=INK, linewidth=1, linestyle=":")
    axis.text(right, peak * 1.08, f"mma.sync, {peak:g} TFLOP/s", ha="right", va="bottom", fontsize=7.5)
    axis.text(right, fma * 1.08, f"CUDA cores, {fma:g} TFLOP/s", ha="right", va="bottom", fontsize=7.5)
    axis.text(left * 1.3, left * 1.3 * bandwidth * 1.35, f"device memory, {bandwidth:g} TB/s", ha="left", va="bottom",
              fontsize=7.5, rotation=33, rotation_mode="anchor")
    for row in steps:
        x = intensity.get(row["variant"])
        if x:
            style = look(row["variant"])
            style["linestyle"], style["markersize"] = "", 7
            axis.plot([x], [row["tflops"]], label=row["variant"], **style)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlim(left, right)
    plain_numbers(axis.xaxis)
    plain_numbers(axis.yaxis)
    axis.set_xlabel("FLOPs a byte of device memory asked for, before any cache")
    axis.set_ylabel("TFLOP/s")
    finish(figure, [axis], steps, "ladder.jsonl, intensity.tsv, ceilings.tsv. Above the roof: L2 serves what is asked for again")
    save(figure, "roofline.svg", options.out)


# ---- decoding ----

def splits():
    rows = csv_rows("splits.tsv", "\t")
    speeds = [(int(row["splits"]), number(row["GB/s"])) for row in rows if row["splits"].isdigit()]
    automatic = [number(row["GB/s"]) for row in rows if row["splits"] == "auto"]
    figure, axis = plt.subplots(figsize=(5.6, 3.3))
    axis.plot(*zip(*speeds), label="--splits n", **look("07_flash_decoding/split_k"))
    if automatic:
        axis.axhline(automatic[0], color=INK, linewidth=1, linestyle="--", label=f"--splits auto: {automatic[0]:.4g} GB/s")
    axis.set_xscale("log", base=2)
    axis.set_xticks([n for n, _ in speeds if n & (n - 1) == 0])
    axis.xaxis.set_major_formatter(thousands)
    axis.xaxis.set_minor_locator(plt.NullLocator())
    axis.set_ylim(bottom=0)
    axis.set_xlabel("splits: pieces of each head's keys")
    axis.set_ylabel("GB/s of K and V")
    finish(figure, [axis], rows, "splits.tsv")
    save(figure, "splits.svg", options.out)


# ---- fp8 ----

def fp8_errors():
    """A table as a picture: a line a way to quantise, a mark a kind of inputs."""
    rows = csv_rows("fp8_errors.tsv", "\t")
    kinds = {"normal": ("o", "#2f93cf"), "outliers": ("D", "#b04a00"), "biased": ("s", "#7a4fb5")}
    ways = ("format", "scaling", "rotated", "smoothed")
    names = [" · ".join(way if row[way] == "yes" else row[way] for way in ways if row[way]) for row in rows]
    lines = list(dict.fromkeys(names))
    figure, axis = plt.subplots(figsize=(6.4, 0.3 * len(lines) + 1.2))
    for kind, (marker, colour) in kinds.items():
        points = [(number(row["RMSE"]), lines.index(name)) for row, name in zip(rows, names) if row["inputs"] == kind]
        axis.plot(*zip(*points), marker=marker, color=colour, linestyle="", markersize=6, label=f"inputs: {kind}")
    axis.set_yticks(range(len(lines)), lines)
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set_xlabel("root mean square error of O against fp64 (logarithmic)")
    finish(figure, [axis], rows, "fp8_errors.tsv")
    save(figure, "fp8_errors.svg", options.out)


DRAWINGS = (
    ("ladder.svg", ["ladder.jsonl"], ladder),
    ("latency.svg", ["sweep.csv"], lambda: against_length("latency_ms", "latency, ms (logarithmic)", "latency.svg", 1)),
    ("tflops.svg", ["sweep.csv"], lambda: against_length("tflops", "TFLOP/s (logarithmic)", "tflops.svg", 0)),
    ("memory.svg", ["sweep.csv"], memory),
    ("roofline.svg", ["ladder.jsonl", "ceilings.tsv", "../intensity.tsv"], roofline),
    ("splits.svg", ["splits.tsv"], splits),
    ("fp8_errors.svg", ["fp8_errors.tsv"], fp8_errors),
)

if not os.path.isdir(options.results):
    print(f"plots.py: --results {options.results}: choose a folder of notes/results", file=sys.stderr)
    sys.exit(2)
for picture, files, draw in DRAWINGS:
    missing = [path_of(file) for file in files if not os.path.exists(path_of(file))]
    if missing:
        print(f"{picture}: not drawn, {missing[0]} is not there")
    else:
        draw()
