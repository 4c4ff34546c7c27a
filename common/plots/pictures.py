#!/usr/bin/env python3
# pictures.py - the pictures of the notes that need no measurement: who visits, owns and stores what.     (make plots)
#
#     python3 common/plots/pictures.py [notes/pictures]
#
# Lanes, registers and chunks are computed with the formulas of common/gpu/instructions.cuh and tile.cuh.
import sys

from drawing import FAINT, INK, PANEL, plt, save
from matplotlib.patches import FancyArrowPatch, Rectangle

FOLDER = sys.argv[1] if len(sys.argv) > 1 else "notes/pictures"

WARPS = ["#8fc3e8", "#f3c27a", "#9fd3b4", "#e0a9cb"]  # four warps, blocks or registers


def canvas(width, height, columns=1):
    figure, axes = plt.subplots(1, columns, figsize=(width, height), squeeze=False)
    for axis in axes[0]:
        axis.set_aspect("equal")
        axis.axis("off")
    return figure, axes[0]


def cell(axis, column, row, width, height, colour, text="", size=7, edge=INK, **more):
    """Rows count downwards, as in a matrix: call axis.invert_yaxis() once."""
    axis.add_patch(Rectangle((column, row), width, height, facecolor=colour, edgecolor=edge, linewidth=0.5))
    if text != "":
        axis.text(column + width / 2, row + height / 2, text, ha="center", va="center", fontsize=size, **more)


def arrow(axis, start, end, colour=INK):
    axis.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=9, color=colour, linewidth=1))


def frame(axis, left, right, top, bottom):
    axis.set_xlim(left, right)
    axis.set_ylim(bottom, top)


def loop_orders():
    """In which order the tiles of S are visited, and by which block."""
    n = 4
    figure, (fa1, fa2) = canvas(8.2, 4.3, 2)
    for axis, title in ((fa1, "03_fa1: keys outer, queries inner"), (fa2, "04_fa2/loop_swap: queries outer, keys inner")):
        frame(axis, -1.6, n + 1.9, -1.3, n + 1.3)
        axis.set_title(title)
        axis.text(n / 2, -0.75, "tiles of keys", ha="center", va="center", fontsize=8)
        axis.text(-0.45, n / 2, "tiles of queries", ha="center", va="center", fontsize=8, rotation=90)
        for column in range(n):
            axis.text(column + 0.5, -0.25, f"K, V {column}", ha="center", va="center", fontsize=7)
        for row in range(n):
            axis.text(n + 0.1, row + 0.5, f"O {row}", ha="left", va="center", fontsize=7)
    for row in range(n):
        for column in range(n):
            cell(fa1, column, row, 1, 1, WARPS[0], column * n + row + 1, 8)
            cell(fa2, column, row, 1, 1, WARPS[row], column + 1, 8)
    for column in range(n):
        arrow(fa1, (column + 0.8, 0.1), (column + 0.8, n - 0.1))
    for row in range(n):
        arrow(fa2, (0.1, row + 0.8), (n - 0.1, row + 0.8))
        fa2.text(n + 0.75, row + 0.5, f"block {row}", ha="left", va="center", fontsize=7)
    fa1.text(n / 2, n + 0.7, "numbers: steps of the head's one block. Between two\n"
             "columns O, l, m of all rows go to device memory and back", ha="center", va="center", fontsize=7.5)
    fa2.text(n / 2, n + 0.7, "numbers: steps of the row's own block. O, l, m stay in\n"
             "registers; K and V are read again by every block", ha="center", va="center", fontsize=7.5)
    save(figure, "loop_orders.svg", FOLDER)


def warp_ownership():
    """How four warps share S = Q K^T and O = P V of a tile."""
    figure, (keys, queries) = canvas(8.2, 3.9, 2)
    titles = "split-K: a warp owns keys (03_fa1)", "split-Q: a warp owns queries (04_fa2/split_q)"
    for axis, title in zip((keys, queries), titles):
        frame(axis, -2.3, 7.6, -2.5, 6.2)
        axis.set_title(title)
        axis.text(2, 4.35, "S, then P", ha="center", va="center", fontsize=8)
        axis.text(-1.2, 4.35, "Q", ha="center", va="center", fontsize=8)
        axis.text(6.1, 4.35, "O", ha="center", va="center", fontsize=8)
        axis.text(2, -2.05, "K transposed", ha="center", va="center", fontsize=8)
    for w in range(4):
        cell(keys, w, 0, 1, 4, WARPS[w], f"warp\n{w}")
        cell(keys, w, -1.7, 1, 1.4, WARPS[w])
        cell(queries, 0, w, 4, 1, WARPS[w], f"warp {w}")
        cell(queries, -1.9, w, 1.4, 1, WARPS[w])
        cell(queries, 5.2, w, 1.8, 1, WARPS[w])
        cell(keys, 5.05 + 0.13 * w, 0.13 * w, 1.6, 3.6, WARPS[w])
    cell(keys, -1.9, 0, 1.4, 4, FAINT)
    cell(queries, 0, -1.7, 4, 1.4, FAINT)
    keys.text(6.24, 2.2, "4 partial\nsums", ha="center", va="center", fontsize=7)
    keys.text(2.6, 5.35, "a row's maximum, sum and O are found by four warps together,\n"
              "through shared memory, with barriers between", ha="center", va="center", fontsize=7.5)
    queries.text(2.6, 5.35, "a row's maximum, sum and O never leave the warp;\n"
                 "every warp reads all of K and V", ha="center", va="center", fontsize=7.5)
    save(figure, "warp_ownership.svg", FOLDER)


def fragments():
    """Which lane holds which element of the operands of mma m16n8k16, and in which register."""
    figure, axes = plt.subplots(1, 3, figsize=(9.4, 4.6), gridspec_kw={"width_ratios": [16, 8, 8]})
    a, b, c = axes
    operands = (a, 16, "A, 16 × 16: a[0] … a[3]"), (b, 8, "B, 16 × 8: b[0], b[1]"), (c, 8, "C, 16 × 8: c[0] … c[3]")
    for axis, columns, title in operands:
        axis.set_aspect("equal")
        axis.axis("off")
        axis.set_title(title)
        frame(axis, -1.3, columns + 0.1, -1.2, 16.2)
        for column in range(columns):
            axis.text(column + 0.5, -0.4, column, ha="center", va="center", fontsize=6)
        for row in range(16):
            axis.text(-0.4, row + 0.5, row, ha="center", va="center", fontsize=6)
    for lane in range(32):
        r, pair = lane // 4, 2 * (lane % 4)
        for i in range(4):  # a register holds two neighbours of a row
            cell(a, pair + 8 * (i // 2), r + 8 * (i % 2), 2, 1, WARPS[i], lane, 6)
        for i in range(2):  # of B two neighbours of a column
            cell(b, r, pair + 8 * i, 1, 2, WARPS[i], lane, 6)
        for i in range(4):  # C is fp32: one element a register
            cell(c, pair + i % 2, r + 8 * (i // 2), 1, 1, WARPS[i], lane, 6)
    for axis, names in ((a, ("a[0]", "a[1]", "a[2]", "a[3]")), (b, ("b[0]", "b[1]")), (c, ("c[0]", "c[1]", "c[2]", "c[3]"))):
        for i, name in enumerate(names):
            axis.add_patch(Rectangle((i * 3.4 - 0.5, 17), 0.7, 0.7, facecolor=WARPS[i], edgecolor=INK, linewidth=0.5,
                                     clip_on=False))
            axis.text(i * 3.4 + 0.4, 17.35, name, ha="left", va="center", fontsize=7)
    a.text(8, 19, "number: the lane that holds it.  A and B: a register holds two 16-bit elements", ha="center", va="center",
           fontsize=7.5)
    save(figure, "fragments.svg", FOLDER)


def swizzle():
    """Where the 16-byte chunks of a 128-byte row lie, and so which banks ldmatrix meets that reads one chunk of 8 rows."""
    figure, panels = canvas(7.6, 4.1, 2)
    chunk_read = 3
    keys = ("plain", lambda row: 0), ("swizzled: chunk XOR row", lambda row: row % 8)
    for axis, (title, key) in zip(panels, keys):
        frame(axis, -1.8, 8.2, -2.1, 9.6)
        axis.set_title(title)
        axis.text(4, -1.5, "banks", ha="center", va="center", fontsize=8)
        for place in range(8):
            axis.text(place + 0.5, -0.5, f"{4 * place}-{4 * place + 3}", ha="center", va="center", fontsize=5.5)
        for row in range(8):
            axis.text(-0.8, row + 0.5, f"row {row}", ha="center", va="center", fontsize=7)
            for chunk in range(8):
                is_read = chunk == chunk_read
                cell(axis, chunk ^ key(row), row, 1, 1, WARPS[1] if is_read else PANEL, chunk, 8,
                     fontweight="bold" if is_read else "normal")
        places = {chunk_read ^ key(row) for row in range(8)}
        wavefronts = 8 // len(places)
        axis.text(4, 8.9, f"chunk {chunk_read} of eight rows: {len(places)} of 8 bank groups, "
                  f"{wavefronts} wavefront{'s' if wavefronts > 1 else ''}", ha="center", va="center", fontsize=7.5)
    save(figure, "swizzle.svg", FOLDER)


QK, SOFTMAX, PV, COPY = WARPS[0], WARPS[1], WARPS[2], FAINT


def lane(axis, row, name, steps):
    """A row of a time line: `steps` are (start, length, colour, text)."""
    axis.text(-0.2, row + 0.4, name, ha="right", va="center", fontsize=7.5)
    for start, length, colour, text in steps:
        cell(axis, start, row, length, 0.8, colour, text, 6)


def roles():
    """What the warpgroups of the three kernels of 08_fa3 do over time. Lengths are the note's clocks, D = 128, in hundreds:
    a warpgroup's Q K^T and P V 5 each if it has the tensor cores alone, its softmax 8."""
    figure, panels = plt.subplots(3, 1, figsize=(9.2, 5.6))
    titles = ("wgmma: three blocks, each at another step by chance", "specialised: two consumers in step",
              "overlapped: turns, and the next S before this P V")
    for axis, title in zip(panels, titles):
        axis.axis("off")
        frame(axis, -5.5, 57, -0.2, 3.2)
        axis.set_title(title, loc="left")
    one = lambda start, i: [(start, 5, QK, f"Q K{i}"), (start + 5, 8, SOFTMAX, f"softmax {i}"), (start + 13, 5, PV, f"P V{i}")]
    for block in range(3):
        lane(panels[0], block, f"block {block}", [s for i in range(3 if block == 0 else 2) for s in one(6 * block + 18 * i, i)])
    both = lambda start, i: [(start, 10, QK, f"Q K{i}"), (start + 10, 8, SOFTMAX, f"softmax {i}"), (start + 18, 10, PV, f"P V{i}")]
    lane(panels[1], 0, "producer", [(0, 6, COPY, "K1, V1"), (28, 6, COPY, "K2, V2")])
    for consumer in range(2):
        lane(panels[1], 1 + consumer, f"consumer {consumer}", both(0, 0) + both(28, 1))
    lane(panels[2], 0, "producer", [(0, 6, COPY, "K2, V1"), (20, 6, COPY, "K3, V2"), (40, 6, COPY, "K4, V3")])
    for consumer in range(2):
        steps = []
        for turn in range(3):
            start = 20 * turn + 10 * consumer
            steps += [(start, 0, 5, QK, f"Q K{turn + 1}"), (start + 5, 0, 5, PV, f"P V{turn}"),
                      (start + 5, 0.42, 8, SOFTMAX, f"softmax {turn + 1}")]
        for start, down, length, colour, text in steps:
            if start + length <= 57:
                cell(panels[2], start, 1 + consumer + down, length, 0.38, colour, text, 6)
        panels[2].text(-0.2, 1.4 + consumer, f"consumer {consumer}", ha="right", va="center", fontsize=7.5)
    save(figure, "roles.svg", FOLDER)


def ring():
    """The ring of 08_fa3: two places, two mbarriers each, and who waits where."""
    figure, (axis,) = canvas(8.2, 3.4)
    frame(axis, -0.3, 16.3, -1.2, 5.4)
    cell(axis, 0, 1.3, 3, 1.6, COPY, "producer warp\nasks TMA for tiles", 7)
    for i in range(2):
        top = 0.2 + 2.4 * i
        cell(axis, 6.5, top, 3, 1.4, WARPS[i], f"place {i}\ntiles {i}, {i + 2}, {i + 4}, …", 7)
        cell(axis, 13, top, 3, 1.4, WARPS[2], f"consumer {i}\n4 warps", 7)
        arrow(axis, (3.1, 2.1 - 0.35 + 0.7 * i), (6.4, top + 0.7))
        for j in range(2):
            arrow(axis, (9.6, top + 0.4), (12.9, 0.6 + 2.4 * j))
            arrow(axis, (12.9, 1.2 + 2.4 * j), (9.6, top + 1.0), "#b04a00")
    axis.text(4.7, 0.3, "TMA", ha="center", va="center", fontsize=7.5)
    axis.text(11.2, -0.6, "full: TMA has written all bytes; consumers wait", ha="center", va="center", fontsize=7.5)
    axis.text(11.2, 4.9, "empty: all eight warps are done; the producer waits", ha="center", va="center", fontsize=7.5,
              color="#b04a00")
    save(figure, "ring.svg", FOLDER)


if __name__ == "__main__":
    loop_orders()
    warp_ownership()
    fragments()
    swizzle()
    roles()
    ring()
