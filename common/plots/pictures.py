#!/usr/bin/env python3
# pictures.py - the pictures of the notes that need no measurement: who visits, owns and stores what, and when.
#                                                                                                     (make pictures)
#     python3 common/plots/pictures.py [notes/pictures]
#
# A picture a function, of the same name. Lanes, registers and chunks are computed with the formulas of common/gpu/instructions.cuh and
# tile.cuh, the worked example's numbers are those of notes/worked_example.md.
import math
import random
import sys

from drawing import ALARM, FAINT, INK, PANEL, WARPS, arrow, cell, heading, plt, save, sheet, write

QK, SOFTMAX, PV, COPY = WARPS[0], WARPS[1], WARPS[2], FAINT


def grid(left, top, columns, rows, unit):
    for row in range(rows):
        for column in range(columns):
            cell(left + column * unit, top + row * unit, unit, unit, PANEL)


def lane(left, top, height, unit, name, boxes):
    """A row of boxes, (start, length, colour, text), behind its name. What is white waits, and has a pale edge."""
    write(left - 8, top + height / 2, name, 8, "right")
    for start, length, colour, text in boxes:
        cell(left + start * unit, top, length * unit, height, colour, text, edge=FAINT if colour == PANEL else INK)


# ---- 00 to 03 ----

def naive():
    """Which thread of 00_naive's three kernels computes what from what."""
    n, d, unit, top = 8, 3, 13, 160
    columns = {"Q": d, "S": n, "P": n, "V": d, "O": d, "K transposed": n}
    for left, title, what, first, second, result in (
            (20, "naive_scores", "one thread, one element of S", "Q", "K transposed", "S"),
            (270, "naive_softmax", "one thread, one row of P", "S", "", "P"),
            (550, "naive_output", "one thread, one element of O", "P", "V", "O")):
        deep, right = columns[first], left + columns[first] * unit + 15
        heading(left, 12, title)
        write(left, 30, what, 8, "left")
        grid(left, top, deep, n, unit)
        cell(left, top + 5 * unit, deep * unit, unit, WARPS[0])
        grid(right, top, columns[result], n, unit)
        if second:
            grid(right, top - deep * unit - 6, columns[second], deep, unit)
            cell(right + unit, top - deep * unit - 6, unit, deep * unit, WARPS[1])
            write(right + columns[second] * unit + 5, top - 28, second, 8, "left")
        cell(right + (unit if second else 0), top + 5 * unit, unit if second else n * unit, unit, WARPS[2])
        write(left + deep * unit / 2, top + n * unit + 11, first, 8)
        write(right + columns[result] * unit / 2, top + n * unit + 11, result, 8)
    write(365, 295, "Nothing is shared: for each element of S a row of Q and a row of K are loaded again")


def tiling():
    """What a block loads for one element of S, and for a tile of 64 x 64."""
    sides = ((90, "00_naive: a thread loads for itself", 92, 6, "1 + 1 rows of D numbers for one element:\na row is used once"),
             (460, "01_tiled: a block loads for a tile", 60, 60, "64 + 64 rows for 64 · 64 elements:\na row is used 64 times"))
    for left, title, at, size, words in sides:
        heading(left - 75, 12, title)
        grid(left, 85, 3, 3, 60)
        cell(left, 35, 180, 42, PANEL)
        cell(left - 50, 85, 42, 180, PANEL)
        cell(left + at, 35, size, 42, WARPS[1])
        cell(left - 50, 85 + at, 42, size, WARPS[0])
        cell(left + at, 85 + at, size, size, WARPS[2])
        write(left + 186, 56, "K transposed", 8, "left")
        write(left - 29, 276, "Q", 8)
        write(left + 90, 276, "S", 8)
        write(left + 60, 302, words)
    write(550, 175, "tile", 8)


def online_softmax():
    """The worked example's row, tile by tile: both sums, so far and of the tile, move to the larger maximum."""
    zero, unit, wide = 150, 30, 50
    write(5, 32, "scores in units of ln 2,\nso e^S is a power of 2", 8, "left")
    tiles = (("tile 0", (2, 1), 2, "m = 2 ln 2\nl = 1 + 1/2 = 3/2"),
             ("tile 1", (3, 1), 3, "m̃ = 3 ln 2\nl̃ = 1 + 1/4 = 5/4"))
    for t, (name, scores, m, sums) in enumerate(tiles):
        left = 150 + 200 * t
        for i, s in enumerate(scores):
            cell(left + wide * i, zero - s * unit, wide - 4, s * unit, WARPS[t])
            write(left + wide * i + 23, zero + 10, f"{s} ln 2" if s > 1 else "ln 2", 7.5)
        plt.plot([left - 8, left + 2 * wide + 4], [zero - m * unit - 3] * 2, color=ALARM, linewidth=1.8)
        write(left + wide, 178, name, 8, fontweight="bold")
        write(left + wide, 206, sums, 8)
    write(620, 70, "both: m' = 3 ln 2", 8, fontweight="bold")
    write(620, 118, "l, moved up by ln 2: times 1/2\nl̃, not moved: times 1\nl' = 1/2 · 3/2 + 1 · 5/4 = 2", 8)
    write(620, 190, "LSE = 3 ln 2 + ln 2 = 4 ln 2\nNo score was kept.", 8)


def merge():
    """Two sets of keys become one: with (m, l, O undivided), and with (LSE, O). The numbers of the worked example."""
    rows = (
        ("undivided: m, l and Õ of each set", "m = 2 ln 2\nl = 3/2\nÕ = (6, 3)", "m = 3 ln 2\nl = 5/4\nÕ = (4, −5/4)",
         "· α = e^(m − m') = 1/2", "· β = e^(m̃ − m') = 1",
         "m' = max = 3 ln 2\nl' = α 3/2 + β 5/4 = 2\nÕ' = α (6, 3) + β (4, −5/4)\n"
         "   = (7, 1/4)"),
        ("divided: LSE and O of each set (07)", "LSE = ln 6\nO = (4, 2)", "LSE = ln 10\nO = (16/5, −1)",
         "· e^(LSE_A − LSE) = 3/8",
         "· e^(LSE_B − LSE) = 5/8", "LSE = ln (6 + 10)\nO = 3/8 (4, 2)\n   + 5/8 (16/5, −1)\n   = (7/2, 1/8)"))
    for i, (title, a, b, weight_a, weight_b, both) in enumerate(rows):
        top = 20 + 165 * i
        heading(10, top - 8, title)
        for j, (name, text, weight) in enumerate((("keys 1, 2", a, weight_a), ("keys 3, 4", b, weight_b))):
            write(45, top + 40 + 68 * j, name, 8)
            cell(90, top + 10 + 68 * j, 150, 58, WARPS[j], text, 8)
            arrow((244, top + 39 + 68 * j), (476, top + 52 + 42 * j))
            write(350, top + (26 if j == 0 else 118), weight, 8)
        cell(480, top + 24, 215, 90, WARPS[2], both, 8)
    write(737, 93, "at the end\nO = Õ / l\n= (7/2, 1/8)", 8)


# ---- 04 and 05 ----

def loop_orders():
    """In which order the tiles of S are visited, and by which block."""
    n, unit, top = 4, 58, 70
    for side, left, title in ((0, 45, "03_fa1: keys outer, queries inner"), (1, 445, "04_fa2/loop_swap: queries outer, keys inner")):
        heading(left - 35, 12, title)
        write(left + n * unit / 2, 36, "tiles of keys", 8)
        write(left - 25, top + n * unit / 2, "tiles of queries", 8, rotation=90)
        for i in range(n):
            write(left + (i + 0.5) * unit, 58, f"K, V {i}")
            write(left + n * unit + 8, top + (i + 0.5) * unit, f"O {i}" + (f"   block {i}" if side else ""), 7.5, "left")
            steps = range(1, n + 1) if side else range(i + 1, n * n + 1, n)
            lane(left, top + i * unit, unit, unit, "", [(j, 1, WARPS[i if side else 0], step) for j, step in enumerate(steps)])
            if side:
                arrow((left + 5, top + (i + 0.8) * unit), (left + n * unit - 5, top + (i + 0.8) * unit))
            else:
                arrow((left + (i + 0.8) * unit, top + 5), (left + (i + 0.8) * unit, top + n * unit - 5))
    write(160, 340, "numbers: steps of the head's one block. Between two\n"
          "columns O, l, m of all rows go to device memory and back")
    write(575, 340,
          "numbers: steps of the row's own block. O, l, m stay in\nregisters; K and V are read again by every block")


def steps():
    """The blocks of 03_fa1/fma and of 04_fa2/fma: how many multiprocessors have one, and who works while it waits."""
    left, wide = 95, 660
    parts = {"load": (60, PANEL), "Q Kᵀ": (62, QK), "softmax": (48, SOFTMAX), "P V": (46, PV), "store": (44, PANEL)}

    def chip(top, busy):
        write(left - 8, top + 11, "the chip", 8, "right")
        for i in range(132):
            cell(left + 5 * i, top, 5, 22, WARPS[3] if i < busy else PANEL, edge=FAINT)

    def block(at, top, height, name, *step):
        boxes = []
        while at < wide:
            for part in step:
                length, colour = parts[part]
                if at < wide:
                    boxes.append((at, min(length, wide - at), colour, part if at + length <= wide else ""))
                at += length
        lane(left, top, height, 1, name, boxes)

    heading(5, 12, "03_fa1/fma: 64 blocks, one per head; 68 of the 132 multiprocessors of an H200 are empty")
    chip(24, 64)
    block(0, 60, 32, "one of the 64", "load", "Q Kᵀ", "softmax", "P V", "store")
    write(left + wide / 2, 106, "white: the block waits, and no other block is there to work", 7.5)
    heading(5, 145, "04_fa2/fma: 8192 blocks, one per query tile; O, l and m stay in registers")
    chip(157, 132)
    write(left - 8, 238, "one of 132:\nfour blocks", 8, "right")
    for i in range(4):
        block(54 * i, 191 + 24 * i, 21, "", "load", "Q Kᵀ", "softmax", "P V")
    write(left + wide / 2, 308, "Lengths are not to scale. While one block waits for K and V, another computes. When a block has ended,\n"
          "the next of the 8192 takes its place", 7.5)


def warp_ownership():
    """How four warps share S = Q K^T and O = P V of a tile."""
    unit, d, top = 38, 54, 185
    for left, title in ((105, "split-K: a warp owns keys (03_fa1)"), (515, "split-Q: a warp owns queries (04_fa2/split_q)")):
        right = left + 4 * unit + 30
        heading(left - 95, 12, title)
        if "split-K" in title:
            lane(left, top, 4 * unit, unit, "", [(w, 1, WARPS[w], f"warp\n{w}") for w in range(4)])
            lane(left, top - d - 6, d, unit, "", [(w, 1, WARPS[w], "") for w in range(4)])
            for w in range(4):
                cell(right, top - 4 * unit - 6 + w * unit, d + 16, unit, WARPS[w], f"warp {w}")
                cell(right + 6 * w, top + 6 * w, d, 4 * unit - 18, WARPS[w])
            cell(left - d - 6, top, d, 4 * unit, FAINT, "all\nwarps")
            write(right + 45, top + 86, "4 partial\nsums")
        else:
            for w in range(4):
                cell(left, top + w * unit, 4 * unit, unit, WARPS[w], f"warp {w}")
                cell(left - d - 6, top + w * unit, d, unit, WARPS[w], f"warp {w}")
                cell(right, top + w * unit, d + 16, unit, WARPS[w], f"warp {w}")
            cell(left, top - d - 6, 4 * unit, d, FAINT, "all warps")
            cell(right, top - 4 * unit - 6, d + 16, 4 * unit, FAINT, "all\nwarps")
        for name, at, height in (("Q", left - d / 2 - 6, top + 4 * unit + 10), ("S, then P", left + 2 * unit, top + 4 * unit + 10),
                                 ("O", right + 35, top + 4 * unit + 10), ("K transposed", left + 2 * unit, top - d - 16),
                                 ("V", right + 35, top - 4 * unit - 16)):
            write(at, height, name, 8)
    write(200, 372,
          "a row's maximum, sum and O are found by four warps together,\nthrough shared memory, with barriers between")
    write(610, 372, "a row's maximum, sum and O never leave the warp;\nevery warp reads all of K and V")


def backward_ownership():
    """Which block owns which gradient in the two kernels of 05_fa2_backward."""
    unit, d, top = 48, 40, 95
    for left, title in ((100, "a block owns keys: dK and dV"),
                        (510, "a block owns queries: dQ")):
        keys = "keys" in title
        heading(left - 90, 12, title)
        write(left + 2 * unit, 34, "tiles of keys", 8)
        write(left - 75, top + 2 * unit, "tiles of queries", 8, rotation=90)
        lane(left, top - d - 8, d, unit, "", [(i, 1, WARPS[i] if keys else FAINT, f"K, V\n{i}") for i in range(4)])
        for i in range(4):
            at, middle = top + i * unit, (i + 0.5) * unit
            cell(left - d - 8, at, d, unit, FAINT if keys else WARPS[i], f"Q, dO\n{i}", 7)
            lane(left, at, unit, unit, "", [(j, 1, WARPS[j if keys else i], "") for j in range(4)])
            cell(left + 4 * unit + 8, at, d + 16, unit, PANEL if keys else WARPS[i], f"dQ {i}", edge=ALARM if keys else INK)
            if keys:
                arrow((left + middle, top + 8), (left + middle, top + 4 * unit - 4))
            else:
                arrow((left + 8, top + middle), (left + 4 * unit - 4, top + middle))
        if keys:
            lane(left, top + 4 * unit + 8, d, unit, "", [(i, 1, WARPS[i], f"dK, dV\n{i}") for i in range(4)])
    write(205, 362, "Each dK and dV is whole when its block ends.\n"
          "A row of dQ is a sum over all blocks, by atomic additions")
    write(610, 362, "Each dQ is whole when its block ends.\n"
          "The price: S and dP are computed again")


def warps_of_a_block(name, left_operand, right_operand, left_width, warp_at, colour_of=lambda warp: WARPS[warp // 2]):
    """A product of a block of eight warps, the operands at its left and above; warp_at(row, column) owns a piece of the result."""
    unit, half, d, top = 36, 90, 46, 105
    left = 100 + left_width
    write(60 + left_width / 2, top + 4 * unit + 14, left_operand, 8)
    write(left + half, top - d - 20, right_operand, 8)
    write(left + half, top + 4 * unit + 14, name, 8)
    for row in range(4):
        for column in range(2):
            warp = warp_at(row, column)
            cell(left + column * half, top + row * unit, half, unit, colour_of(warp), f"warp {warp}")
    return left, top, unit, half, d


def backward_pairs():
    """Who computes which part of the transposed S and dP in atomic, at D = 128."""
    left, top, unit, half, d = warps_of_a_block("Sᵀ, dPᵀ: 128 keys × 128 queries", "K, or V", "Qᵀ, or dOᵀ", 60,
                                                lambda row, column: 2 * row + column)
    for row in range(4):
        cell(60, top + row * unit, 60, unit, WARPS[row], f"keys\n{32 * row}-{32 * row + 31}")
    for column, queries in enumerate(("queries 0-63", "queries 64-127")):
        cell(left + column * half, top - d - 8, half, d, FAINT, queries)
    write(left + 2 * half + 30, top + 2 * unit, "a color is a pair: it has 32 keys,\nand each of its warps half of the queries", 8, "left")


def backward_exchange():
    """Who keeps which part of dV and dK in atomic, and where the factors come from."""
    left, top, unit, half, d = warps_of_a_block("dV, dK: 128 keys × 128 columns", "Pᵀ, or dSᵀ", "dO, or Q", 180,
                                                lambda row, column: 2 * row + column)
    for row in range(4):
        for column in range(2):
            cell(60 + column * half, top + row * unit, half, unit, WARPS[row], f"of warp {2 * row + column}")
    for column, columns in enumerate(("columns 0-63", "columns 64-127")):
        cell(left + column * half, top - d - 8, half, d, FAINT, columns)
    write(60 + half / 2, top - 12, "registers", 8)
    write(60 + half * 3 / 2, top - 34, "through\nshared memory", 8)
    arrow((60 + half * 3 / 2, top - 18), (60 + half * 3 / 2, top + 4), ALARM)
    write(left + 2 * half + 30, top + 2 * unit, "for warp 0: queries 0-63 are in its\nregisters, 64-127 come from warp 1", 8, "left")


def backward_dq():
    """Who computes which part of dQ in atomic."""
    left, top, unit, half, d = warps_of_a_block("dQ: 128 queries × 128 columns", "dS: its columns are keys", "K", 180,
                                                lambda row, column: 4 * column + row, lambda warp: PANEL)
    for row in range(4):
        for pair in range(4):
            cell(60 + pair * 45, top + row * unit, 45, unit, WARPS[pair])
        write(52, top + (row + 0.5) * unit, f"queries\n{32 * row}-{32 * row + 31}", 8, "right")
    for column, columns in enumerate(("columns 0-63", "columns 64-127")):
        cell(left + column * half, top - d - 8, half, d, FAINT, columns)
    write(left + 2 * half + 30, top + 2 * unit, "every warp needs the dS of all four pairs,\nwhich is in shared memory", 8, "left")


# ---- the instructions of Hopper, and 06 to 08 ----

def phases():
    """Who waits for which phase when numbers go through two places, as in notes/hopper/phases.cu."""
    left, unit, high, count = 190, 100, 34, 6
    rows = (("n", 20), ("place n mod 2", 60), ("phase ⌊n / 2⌋", 100), ("the producer waits at\nempty[place] for parity", 155),
            ("the consumer waits at\nfull[place] for parity", 260))
    for name, top in rows:
        write(left - 12, top + high / 2, name, 8, "right")
    for n in range(count):
        at, place, phase = left + n * unit, n % 2, n // 2
        write(at + unit / 2, 20 + high / 2, n, 9, fontweight="bold")
        for top, colour, text in ((60, PANEL, place), (100, PANEL, phase), (155, WARPS[(phase + 1) % 2], (phase + 1) % 2),
                                  (260, WARPS[phase % 2], phase % 2)):
            cell(at + 6, top, unit - 12, high, colour, text, 9)
        write(at + unit / 2, 206, "at once" if phase == 0 else f"phase {phase - 1} over:\n{n - 2} is taken", 7.5)
        write(at + unit / 2, 311, f"phase {phase} over:\n{n} is there", 7.5)
        if n + 2 < count:
            arrow((at + unit / 2 + 25, 257), (at + 2 * unit + 30, 224), ALARM)
    write(left + 210, 350, "red: the consumer, done with n, arrives at empty[place]; that ends the phase for which the producer of n + 2 waits", 8)


def descriptor():
    """B, 16 x 128, in a tile with 64 k, as notes/hopper/product.cu hands it to wgmma in either order: what the descriptor names."""
    unit, high, top = 24, 12, 60
    for left, title, panels, used in ((120, "K_MAJOR: B as [n][k], a row is a column of B", 1, lambda group, chunk: chunk // 2 == 1),
                                      (490, "MN_MAJOR: B as [k][n]", 2, lambda group, chunk: group % 8 // 2 == 1)):
        heading(left - 110, 12, title)
        for group in range(16):
            for chunk in range(8):
                cell(left + chunk * unit, top + group * high + 8 * (panels == 2 and group > 7), unit, high,
                     WARPS[0] if used(group, chunk) else PANEL, edge=FAINT)
        write(left + 4 * unit, 44, "128 bytes: 64 k" if panels == 1 else "128 bytes: 64 n", 8)
    write(112, top + 96, "128 rows,\nn = 0 … 127", 8, "right")
    for panel in range(2):
        write(482, top + 48 + 104 * panel, f"64 rows, k = 0 … 63\nn = {64 * panel} … {64 * panel + 63}", 8, "right")
    arrow((120 + 2 * unit, 282), (120 + 2 * unit, 254), ALARM)
    write(120 + 2 * unit, 292, "address: + 32 bytes, k = 16", 8, color=ALARM)
    arrow((720, top + 2 * high), (686, top + 2 * high), ALARM)
    write(725, top + 2 * high - 8, "address:\n+ 2048 bytes, k = 16", 8, "left", color=ALARM)
    arrow((320, top + high / 2), (320, top + 1.5 * high))
    write(326, top + high, "stride:\n1024 bytes", 8, "left")
    arrow((690, top + 2.6 * high), (690, top + 3.6 * high))
    write(725, top + 50, "stride:\n1024 bytes", 8, "left")
    arrow((690, top + 56), (690, top + 160))
    write(725, top + 110, "leading:\n8192 bytes", 8, "left")
    write(410, 318, "a small box: a chunk of 8 rows, 16 bytes of each. blue: what the wgmma reads. Chunks are drawn as if there were no swizzle", 8)


def key_order():
    """In which order 06_fp8 stores the keys of V, so that P stays in its lane."""
    unit, left, half = 40, 130, 8
    held = [[2 * c, 2 * c + 1, half + 2 * c, half + 2 * c + 1] for c in range(4)]  # lane c's keys in S
    lane_of = {key: c for c, keys in enumerate(held) for key in keys}
    stored = sum(held, [])
    lane(left, 22, 36, unit, "S: key", [(key, 1, WARPS[lane_of[key]], f"{key}\nlane {lane_of[key]}") for key in range(16)])
    lane(left, 147, 36, unit, "P as operand: place", [(i, 1, WARPS[i // 4], f"{i}\nlane {i // 4}") for i in range(16)])
    lane(left, 200, 30, unit, "V transposed: key", [(i, 1, WARPS[i // 4], key) for i, key in enumerate(stored)])
    for place, key in enumerate(stored):
        plt.plot([left + (key + 0.5) * unit, left + (place + 0.5) * unit], [60, 145], color=INK, linewidth=0.7)
    write(left + 8 * unit, 256,
          "a lane keeps what it has: V's keys change their places instead, and a sum has no order", 8)


def shares():
    """How 07's three kernels cut the keys of four heads, and how tickets find the block that merges a head."""
    lengths, left, unit, share = (12, 7, 20, 11), 115, 13, 5
    heads = [(sum(lengths[:h]), length, WARPS[h]) for h, length in enumerate(lengths)]
    heading(5, 12, "Who reads which key tiles of heads 0 to 3")
    lane(left, 30, 26, unit, "one_block", [(*head, f"block {h}") for h, head in enumerate(heads)])
    half = max(lengths) // 2  # every head is cut as the longest one: the second piece of head 1 is empty
    pieces = [(start + at, min(length - at, half), colour) for start, length, colour in heads for at in (0, half) if length > at]
    blocks = (0, 1, "2 (3: no keys)", 4, 5, 6, 7)
    lane(left, 70, 26, unit, "split_k, 2 pieces", [(*piece, block) for piece, block in zip(pieces, blocks)])
    lane(left, 110, 26, unit, "equal_shares", [(*head, "") for head in heads])
    for block in range(11):
        plt.plot([left + block * share * unit] * 2, [106, 140], color=INK, linewidth=1.6)
        if block < 10:
            write(left + (block + 0.5) * share * unit, 148, f"block {block}", 7)
    write(left + 325, 168,
          "Blocks 2, 3 and 7 have the end of one head and the beginning of the next: two partial results each")
    heading(5, 200, "Tickets of head 2: five blocks have a part of it, and end in any order")
    ends = {3: 135, 4: 305, 5: 215, 6: 405, 7: 175}  # when a block's partial result is written
    for place, (block, end) in enumerate(ends.items()):
        ticket = sorted(ends.values()).index(end)
        last = [(end + 80, 150, WARPS[0], "the last: merges all five")] if ticket == 4 else []
        lane(left, 215 + 29 * place, 22, 1, f"block {block}",
             [(0, end, WARPS[2], "keys of head 2"), (end, 80, SOFTMAX, f"ticket {ticket}")] + last)
    write(left + 325, 378,
          "A block writes its O and LSE, then draws. Nobody waits: ticket 4 is the fifth, so all parts are there")


def roles():
    """What the warpgroups of the three kernels of 08_fa3 do over time. Lengths are the note's, in hundreds of cycles,
    D = 128: a warpgroup's Q K^T and P V 5 each, its softmax 8; twice that where two warpgroups do the same together."""
    unit, left = 9.8, 90

    def tile(start, i, times):
        return [(start, 5 * times, QK, f"Q K{i}"), (start + 5 * times, 8 * times, SOFTMAX, f"softmax {i}"),
                (start + 13 * times, 5 * times, PV, f"P V{i}")]

    heading(0, 10, "wgmma: three of four blocks, each at another step by chance (lengths as if each had the units alone)")
    for block in range(3):
        lane(left, 24 + 34 * block, 28, unit, f"block {block}",
             [box for i in range(4 if block == 0 else 3) for box in tile(6 * block + 18 * i, i, 1)])
    heading(0, 144, "specialised: two consumers in step, so each product and each softmax takes twice as long")
    lane(left, 158, 28, unit, "producer", [(0, 6, COPY, "K1, V1"), (36, 6, COPY, "K2, V2")])
    for consumer in range(2):
        lane(left, 192 + 34 * consumer, 28, unit, f"consumer {consumer}", tile(0, 0, 2) + tile(36, 1, 2))
    heading(0, 280, "overlapped: turns, and the next S before this P V")
    lane(left, 294, 28, unit, "producer", [(20 * i, 6, COPY, f"K{i + 2}, V{i + 1}") for i in range(4)])
    for consumer in range(2):
        top, starts = 330 + 50 * consumer, [20 * turn + 10 * consumer for turn in range(4 - consumer)]
        lane(left, top, 20, unit, "", [box for turn, start in enumerate(starts)
                                       for box in ((start, 5, QK, f"Q K{turn + 1}"), (start + 5, 5, PV, f"P V{turn}"))])
        lane(left, top + 21, 20, unit, "", [(start + 5, 8, SOFTMAX, f"softmax {turn + 1}") for turn, start in enumerate(starts[:3])])
        write(left - 8, top + 20, f"consumer {consumer}", 8, "right")


def ring():
    """The ring of 08_fa3: two buffer slots, two mbarriers each, and who waits where."""
    cell(10, 95, 140, 70, COPY, "producer warp\nasks TMA for tiles", 8)
    for i in range(2):
        top = 40 + 110 * i
        cell(300, top, 150, 70, WARPS[i], f"buffer slot {i}\ntiles {i}, {i + 2}, {i + 4}, …", 8)
        cell(620, top, 150, 70, WARPS[2], f"consumer {i}\n4 warps", 8)
        arrow((154, 115 + 30 * i), (296, top + 35))
        for j in range(2):
            arrow((454, top + 20), (616, 60 + 110 * j))
            arrow((616, 90 + 110 * j), (454, top + 50), ALARM)
    write(215, 75, "TMA", 8)
    write(535, 15, "full: TMA has written all bytes; consumers wait", 8)
    write(535, 245, "empty: all eight warps are done; the producer waits", 8, color=ALARM)


def backward_step():
    """A step of a consumer of 09_fa3_backward/overlapped at D = 128, time downwards: where the operands are, who waits for what."""
    unit, top, threads = 29, 30, 475
    heading(55, 10, "tensor cores: a product and its two operands")
    heading(threads, 10, "threads of the consumer")
    products = (("dK +=", "dSᵀ(n−1)", "Q(n−1)"), ("Sᵀ(n) =", "K", "Qᵀ(n)"), ("dPᵀ(n) =", "V", "dOᵀ(n)"), ("dV +=", "Pᵀ(n)", "dO(n)"),
                ("dQ(n−1) =", "dS(n−1) of both\nconsumers", "K"), ("dK +=", "dSᵀ(n)", "Q(n)"), ("Sᵀ(n+1) =", "K", "Qᵀ(n+1)"))
    for i, (product, left, right) in enumerate(products):
        at, edge = top + 2 * i * unit, INK if 0 < i < 6 else FAINT  # of another step
        cell(55, at, 85, 2 * unit, PANEL, product, 8, edge=edge)
        cell(140, at, 135, 2 * unit, WARPS[1] if product in ("dK +=", "dV +=") else WARPS[0], left, 8, edge=edge)
        cell(275, at, 90, 2 * unit, WARPS[0], right, 8, edge=edge)
    work = ((0, 1, "dQ(n−2) is added"), (1, 1, "start Sᵀ(n) and dPᵀ(n)"), (4, 1, "P(n), rounded, to registers"), (5, 1, "start dV"),
            (6, 1, "dS(n) to registers and to shared memory"), (7, 1, "start dQ(n−1) and dK"),
            (10, 1, "dQ(n−1) is added to the accumulator"), (11, 1, "start Sᵀ(n+1) and dPᵀ(n+1)"))
    for start, length, text in work:
        starts = text.startswith("start")
        cell(threads, top + start * unit, 290, unit, PANEL if starts else WARPS[2], text, 8, edge=ALARM if starts else INK)
        if starts:
            arrow((threads - 3, top + (start + 0.5) * unit), (368, top + (start + 1.2) * unit), ALARM)
        elif start:
            arrow((368, top + (start - 0.2) * unit), (threads - 3, top + (start + 0.5) * unit))
    arrow((40, top + 2 * unit), (40, top + 12 * unit))
    write(25, top + 7 * unit, "step n", 8, rotation=90)
    write(395, 470, "blue: an operand in shared memory.  orange: in the consumer's own registers.  green: the threads work\n"
          "red: a product is started, and runs by itself behind those before it.  black: the threads have waited for its result\n"
          "At D = 64, and in specialised, the threads wait for dK before the next step. Lengths are not to scale", 8)


# ---- 10 ----

def block_masks():
    """Five masks of 48 x 48 pairs, causal, in blocks of 8 x 8: what skipping visits, and the lists of one query block."""
    n, block, unit, side = 48, 8, 21, 6
    document = [0 if j < 13 else 1 if j < 36 else 2 for j in range(n)]
    drawn = {(3, 0), (3, 2), (5, 1), (5, 3), (5, 4), (2, 2), (1, 0), (4, 1), (4, 4), (0, 0)}
    masks = (("window:20", lambda i, j: j > i - 20), ("sink:4:12", lambda i, j: j > i - 12 or j < 4),
             ("documents:13+23+12", lambda i, j: document[i] == document[j]),
             ("strided:3", lambda i, j: j // block % 3 == 0 or j // block == i // block),
             ("file:blocks.npy", lambda i, j: (i // block, j // block) in drawn))
    for number, (name, keeps) in enumerate(masks):
        left, top, lists = 20 + 162 * number, 52, {"partial": [], "full": []}
        heading(left, 14, name)
        for a in range(side):
            for b in range(side):
                kept = sum(keeps(i, j) for i in range(block * a, block * a + block)
                           for j in range(block * b, min(block * b + block, i + 1)))
                kind = "full" if kept == block * block else "partial" if kept else ""
                cell(left + b * unit, top + a * unit, unit, unit, WARPS[0] if kind == "full" else WARPS[1] if kind else "#ffffff",
                     edge=FAINT)
                if a == side - 1 and kind:
                    lists[kind].insert(0, str(b))
        for b in range(side):
            write(left + (b + 0.5) * unit, top - 9, b, 7.5)
        write(left, 200, "\n".join(f"{kind} {' '.join(blocks) or '-'}" for kind, blocks in lists.items()), 8, "left")
    for at, colour, text in ((20, WARPS[1], "partial: the mask is evaluated"), (260, WARPS[0], "full: it is not"),
                             (420, "#ffffff", "nothing kept: not visited")):
        cell(at, 226, 14, 14, colour, edge=FAINT)
        write(at + 20, 233, text, 8, "left")
    write(20, 258, "rows: query blocks; columns: key blocks; below each mask the lists of its last query block", 7.5, "left")


# ---- 11 ----

def score_mods():
    """P of 16 queries and 16 keys, causal: of scores as they are, and with each f. The darker, the more of its row."""
    n, unit = 16, 8.5
    dots = random.Random(5)
    scores = [[dots.gauss(0, 2.5) for _ in range(n)] for _ in range(n)]
    kinds = (("none", lambda s, i, j: s), ("softcap:2", lambda s, i, j: 2 * math.tanh(s / 2)),
             ("alibi, slope 1/2", lambda s, i, j: s - abs(i - j) / 2), ("window:4,0", lambda s, i, j: s if i - j <= 4 else -math.inf),
             ("sink = 3", lambda s, i, j: s))
    for number, (name, f) in enumerate(kinds):
        left, top, sink = 20 + 165 * number, 30, 3 if name.startswith("sink") else -math.inf
        heading(left, 14, name)
        for i in range(n):
            weights = [math.exp(f(scores[i][j], i, j)) for j in range(i + 1)]
            total = sum(weights) + math.exp(sink)
            for j in range(n):
                is_dropped = j > i or (name.startswith("window") and i - j > 4)
                share = 0 if is_dropped else weights[j] / total
                cell(left + j * unit, top + i * unit, unit, unit, PANEL if is_dropped else shade(share), edge=FAINT)
            if sink > 0:
                cell(left + n * unit + 5, top + i * unit, unit, unit, shade(math.exp(sink) / total, "#b85a91"), edge=FAINT)
    write(20, 184, "rows: queries; columns: keys; blue: P, from 0 to 1. White keys have no weight. The column on the far right is the "
          "sink's share, which no value gets", 7.5, "left")


def shade(share, colour="#00669c"):
    """From nearly white to the colour."""
    parts = [int(colour[at:at + 2], 16) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(244 + (part - 244) * share ** 0.6):02x}" for part in parts)


# ---- what cuts across ----

def memory_hierarchy():
    """The levels of an H200, with the figures of notes/counting.md. An arrow is as thick as its bandwidth."""
    for column, text in ((140, "level"), (390, "size"), (545, "reads, whole chip"), (705, "latency, cycles")):
        write(column, 14, text, 8.5, fontweight="bold")
    levels = (("registers", "256 KB per multiprocessor\n132 of them: 34 MB", "", "", 110, WARPS[2]),
              ("shared memory", "up to 227 KB per block\n132 of them: 30 MB", "33 TB/s\nA100: 19.5 TB/s", "about 29", 150, WARPS[0]),
              ("L2", "60 MB\nA100: 40 MB", "9.7 TB/s\nA100: 5.4 TB/s", "260 to 280", 200, WARPS[1]),
              ("device memory (HBM)", "141 GB\nA100: 80 GB", "4.8 TB/s (data sheet)\nA100: 2.04 TB/s", "480 to 690", 260,
               WARPS[3]))
    for i, (name, size, bandwidth, latency, width, colour) in enumerate(levels):
        top = 35 + 98 * i
        cell(140 - width / 2, top, width, 50, colour, name, 8.5)
        write(390, top + 25, size, 8)
        if i:
            thick = (33, 9.7, 4.8)[i - 1]
            cell(140 - thick / 2, top - 47, thick, 46, INK, edge=INK)
            write(545, top + 25, bandwidth, 8)
            write(705, top + 25, latency, 8)


def fragments():
    """Which lane holds which element of the operands of mma m16n8k16, and in which register."""
    unit, top = 17.5, 45
    at = {"a": 30, "b": 365, "c": 540}
    for name, columns, title in (("a", 16, "A, 16 × 16"), ("b", 8, "B, 16 × 8"), ("c", 8, "C, 16 × 8")):
        heading(at[name], 10, title)
        for column in range(columns):
            write(at[name] + (column + 0.5) * unit, 35, column, 7)
        for row in range(16):
            write(at[name] - 11, top + (row + 0.5) * unit, row, 7)

    def element(name, column, row, width, height, register, lane):
        cell(at[name] + column * unit, top + row * unit, width * unit, height * unit, WARPS[register], lane, 7)

    for lane in range(32):
        r, pair = lane // 4, 2 * (lane % 4)
        for i in range(4):  # a register holds two neighbors of a row
            element("a", pair + 8 * (i // 2), r + 8 * (i % 2), 2, 1, i, lane)
        for i in range(2):  # of B two neighbors of a column
            element("b", r, pair + 8 * i, 1, 2, i, lane)
        for i in range(4):  # C is fp32: one element a register
            element("c", pair + i % 2, r + 8 * (i // 2), 1, 1, i, lane)
    for name, registers, step in (("a", 4, 65), ("b", 2, 65), ("c", 4, 40)):
        for i in range(registers):
            cell(at[name] + i * step, 334, 9, 9, WARPS[i])
            write(at[name] + i * step + 12, 339, f"{name}[{i}]", 7, "left")
    write(340, 360, "number: the lane that holds it.  A and B: a register holds two 16-bit elements", 8)


def swizzle():
    """Where the 16-byte chunks of a 128-byte row lie, and so which banks a read of one chunk of 8 rows meets."""
    read, unit, top = 3, 37, 62
    for left, title, key in ((60, "plain", lambda row: 0), (460, "swizzled: chunk XOR row", lambda row: row)):
        heading(left - 50, 10, title)
        write(left + 4 * unit, 32, "banks", 8)
        for i in range(8):
            write(left + (i + 0.5) * unit, 52, f"{4 * i}-{4 * i + 3}", 7)
            lane(left, top + i * unit, unit, unit, f"row {i}",
                 [(chunk ^ key(i), 1, WARPS[1] if chunk == read else PANEL, chunk) for chunk in range(8)])
        places = len({read ^ key(row) for row in range(8)})
        write(left + 4 * unit, top + 8 * unit + 16, f"chunk {read} of eight rows: {places} of 8 bank groups, "
              f"{8 // places} wavefront{'s' if places < 8 else ''}", 8)


def formats():
    """The bits of the number formats."""
    unit, left = 15, 60
    sign, exponent, mantissa = WARPS[3], WARPS[1], WARPS[0]
    for i, (name, high, low, words) in enumerate((
            ("fp32", 8, 23, "to 3.4 · 10³⁸, 2²³ numbers from 1 to 2"), ("fp16", 5, 10, "to 65504, 2¹⁰ numbers from 1 to 2"),
            ("bf16", 8, 7, "to 3.4 · 10³⁸, 2⁷ numbers from 1 to 2"), ("e4m3", 4, 3, "to 448, 2³ numbers from 1 to 2"),
            ("e5m2", 5, 2, "to 57344, 2² numbers from 1 to 2"))):
        bits = [sign] + [exponent] * high + [mantissa] * low
        lane(left, 10 + 40 * i, 26, unit, name, [(bit, 1, colour, "") for bit, colour in enumerate(bits)])
        write(left + len(bits) * unit + 10, 23 + 40 * i, words, 8, "left")
    for i, (text, colour) in enumerate((("sign", sign), ("exponent: the range", exponent), ("mantissa: the precision", mantissa))):
        cell(left + 150 * i, 218, 12, 12, colour)
        write(left + 150 * i + 18, 224, text, 8, "left")


def timing():
    """What the host does and what the device does while a kernel is timed."""
    left = 70
    for run in range(2):
        start = left + 350 * run
        queue = ("over-\nwrite", COPY), ("mark", WARPS[3]), ("kernel", QK), ("mark", WARPS[3])
        lane(start, 35, 34, 44, "" if run else "host", [(i, 0.95, colour, text) for i, (text, colour) in enumerate(queue)])
        lane(start, 105, 34, 1, "" if run else "device", [(30, 170, COPY, "L2 is overwritten"), (204, 140, QK, "the kernel")])
        for at in (202, 346):
            plt.plot([start + at] * 2, [98, 158], color=ALARM, linewidth=2)
        arrow((start + 204, 152), (start + 344, 152), ALARM, "<|-|>")
        write(start + 274, 166, f"run {run + 1}", 8, color=ALARM)
    write(left + 350, 17, "the host queues and runs ahead: it is done long before the first mark is passed", 8)
    write(left + 350, 205,
          "The device notes the time at the marks. What the host does, the launch among it, is not between them.\n"
          "The latency is the median of the runs; none finds its inputs in L2", 8)


def sectors():
    """How many sectors of 32 bytes a request of 32 lanes touches."""
    unit, left = 7.6, 185
    cases = (("32 neighbors", range(32), 4), ("not at a sector's beginning", range(3, 35), 5),
             ("every second float", range(0, 64, 2), 8), ("down a column", range(0, 64, 8), 32))
    for row, (name, words, count) in enumerate(cases):
        top = 28 + 54 * row
        write(left - 12, top + 13, name, 8, "right")
        for sector in range(min(count, 8)):
            for word in range(8 * sector, 8 * sector + 8):
                cell(left + word * unit + 4 * sector, top, unit, 26, WARPS[2] if word in words else PANEL, edge=FAINT)
            cell(left + 8 * sector * unit + 4 * sector, top, 8 * unit, 26, "none")
        write(left + min(count, 8) * (8 * unit + 4) + 6, top + 13, f"{'… ' if count > 8 else ''}{count} sectors",
              8, "left")
    write(left, 14, "a frame: a sector, 32 bytes, 8 floats of 4 bytes.  green: a lane reads it", 8, "left")
    write(400, 252,
          "32 lanes want 128 bytes each time. Device memory moves whole sectors: 128, 160, 256 and 1024 bytes", 8)


def fibers():
    """How one core of the CPU runs the four threads of a block: each until a barrier, then the next."""
    left, unit = 90, 78
    barrier = left + 4 * unit
    for i in range(4):
        top = 30 + 36 * i
        lane(left, top, 26, unit, f"thread {i}", [(i, 1, WARPS[i], "runs"), (4 + i, 1, WARPS[i], "runs on")])
        plt.plot([left + (i + 1) * unit, barrier], [top + 13] * 2, color=INK, linewidth=0.8, linestyle=":")
    plt.plot([barrier] * 2, [18, 180], color=ALARM, linewidth=1.6)
    write(barrier, 10, "__syncthreads: all four are here", 8, color=ALARM)
    arrow((left, 192), (left + 8 * unit, 192))
    write(left + 4 * unit, 204, "time of one core", 8)
    write(left + 4 * unit, 222, "dotted: the fiber waits; its stack and registers are kept. "
          "Only barriers and warp-wide instructions switch fibers", 8)


def rooms():
    """Who may call whom: the rooms of common/ and the places of a new stage."""
    for left, top, height, name, what, colour in ((5, 25, 90, "0N_name/", "kernels, table\nof variants,\nformulas", WARPS[2]),
                                                  (205, 25, 90, "harness", "options, runs,\ntable", WARPS[0]),
                                                  (405, 18, 46, "judge", "right or wrong", WARPS[0]),
                                                  (405, 76, 46, "device", "memory, launch, time", WARPS[0]),
                                                  (640, 25, 90, "host", "files, threads,\nerrors", WARPS[0])):
        width = 160 if height == 46 else 125
        cell(left, top, width, height, colour)
        write(left + width / 2, top + 15, name, 8.5, fontweight="bold")
        write(left + width / 2, top + (32 if height == 46 else 55), what, 8)
    for start, end in (((133, 70), (202, 70)), ((333, 60), (402, 41)), ((333, 80), (402, 99)), ((568, 41), (637, 60)),
                       ((568, 99), (637, 80))):
        arrow(start, end)
    write(395, 140, "arrow: may include and call; never the other way. Green is what a new stage brings,", 8)
    write(395, 158, "with its note and its line of common/ladder.txt; blue is common/ and stays as it is", 8)


for draw, width, height in ((naive, 730, 305), (tiling, 720, 320), (online_softmax, 770, 230),
                            (merge, 780, 330), (loop_orders, 800, 360), (steps, 800, 330), (warp_ownership, 810, 390),
                            (backward_ownership, 810, 385), (backward_pairs, 610, 285), (backward_exchange, 740, 285),
                            (backward_dq, 720, 285), (phases, 800, 365), (descriptor, 840, 335),
                            (key_order, 780, 270), (shares, 800, 395),
                            (roles, 810, 440), (ring, 780, 260), (backward_step, 800, 505), (block_masks, 830, 275), (score_mods, 850, 195),
                            (memory_hierarchy, 790, 400), (fragments, 700, 370), (swizzle, 770, 385),
                            (formats, 800, 245), (timing, 790, 235), (sectors, 800, 265), (fibers, 780, 230),
                            (rooms, 790, 175)):
    sheet(width, height)
    draw()
    save(draw.__name__ + ".svg", sys.argv[1] if len(sys.argv) > 1 else "notes/pictures")
