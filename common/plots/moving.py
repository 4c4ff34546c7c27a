#!/usr/bin/env python3
# moving.py - the pictures of the notes that move: what kernels did, tile by tile, from their traces.             (make moving)
#
#     python3 common/plots/moving.py BUILD [FOLDER]       BUILD: programs with the trace; FOLDER: else notes/pictures
#
# A picture a function, at the end. Each runs a program with --watch and draws the steps in the order and at the times of the
# model clock (notes/trace.md): nothing is invented. The motion is CSS inside the SVG, with no script, so that it also plays
# where a page shows the file as an image. The shapes themselves have the colors of the end: that is the still for print and for
# readers who asked their system for less motion. Needs no library.
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict, namedtuple

WIDTH = 830  # CSS pixels: a page of GitHub, so that letters are shown in the size that is written here
HUES = (212, 28, 150, 320, 265, 48, 185, 0)  # of blocks; neighbors differ
HOLD = 0.2  # the part of each turn in which the end stays

Step = namedtuple("Step", "launch block start end moves products exponentials flops place")
Move = namedtuple("Move", "tensor written bytes lo hi left right")
Product = namedtuple("Product", "warp tensor q0 q1 k0 k1")


# ---- traces ----

class Run:
    """What one variant did: its steps by their beginnings, its kernels' names, and how many multiprocessors the chip has."""

    def __init__(self, variant, chip):
        self.name, self.places, self.steps = variant["name"], chip["multiprocessors"], []
        names = variant["tensors"]
        self.kernels = [variant["kernels"][launch["kernel"]]["name"] for launch in variant["launches"]]
        self.devices = [launch["device"] for launch in variant["launches"]]
        for number, launch in enumerate(variant["launches"]):
            for s in launch["steps"]:
                moves = [Move(names[s[6][i]], *s[6][i + 1:i + 7]) for i in range(0, len(s[6]), 7)]
                products = [Product(s[7][i], names[s[7][i + 1]], *s[7][i + 2:i + 6]) for i in range(0, len(s[7]), 6)]
                self.steps.append(Step(number, s[0], s[10], s[10] + s[11], moves, products, s[3], s[1], s[9]))
        self.steps.sort(key=lambda step: (step.start, step.block))
        self.end = max(step.end for step in self.steps)

    def ends(self):
        """When each launch is over."""
        return [max(s.end for s in self.steps if s.launch == i) for i in range(len(self.kernels))]

    def bytes(self, *tensors, written=(0, 1)):
        """[(clock, bytes so far)] of these tensors, or of all."""
        total, series = 0, [(0, 0)]
        for step in sorted(self.steps, key=lambda step: step.end):
            add = sum(m.bytes for m in step.moves if m.written in written and (not tensors or m.tensor in tensors))
            if add:
                total += add
                series.append((step.end, total))
        return series

    def tiles(self, rows, keys):
        """{(row, column): [first clock, last clock, block, products with V begin]} of each tile of S that was multiplied."""
        tiles = {}
        for step in self.steps:
            for p in step.products:
                for at in ((i, j) for i in range(p.q0 // rows, p.q1 // rows + 1) for j in range(p.k0 // keys, p.k1 // keys + 1)):
                    tile = tiles.setdefault(at, [step.start, step.end, step.block])
                    tile[1] = max(tile[1], step.end)
        return tiles

    def blocks(self):
        """{block: [start, end]} of the launches' blocks, numbered (launch, block)."""
        spans = {}
        for s in self.steps:
            span = spans.setdefault((s.launch, s.block), [s.start, s.end])
            span[0], span[1] = min(span[0], s.start), max(span[1], s.end)
        return spans


def runs(build, stage, options, *variants):
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for variant in variants:
            path = os.path.join(folder, "steps.json")
            command = [f"{build}/{stage}/{stage}", "--watch", path, "--json", "--variant", variant, *options.split()]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            with open(path, encoding="utf-8") as file:
                data = json.load(file)
            found += [Run(v, data["chip"]) for v in data["variants"] if v["name"].endswith("/" + variant)]
    return found


def between(series, clock):
    """The value of a series at a clock, on the line between its neighbors."""
    for (c0, v0), (c1, v1) in zip(series, series[1:]):
        if clock < c1:
            return v0 + (v1 - v0) * max(0, clock - c0) / (c1 - c0)
    return series[-1][1]


def size(number):
    for unit, name in ((2**20, "MiB"), (2**10, "KiB")):
        if number >= unit:
            return f"{number / unit:.{0 if number >= 10 * unit or number % unit == 0 else 1}f} {name}"
    return f"{number:.0f} bytes" if number else "0"


# ---- a sheet: shapes, and how they change ----

class Sheet:
    """An SVG of which shapes change at given cycles. `pace` is [(clock, seconds)]: where the clock is slowed down, it says so."""

    def __init__(self, height, title, words, pace):
        self.height, self.title, self.words, self.pace = height, title, words, [(0, 0), *pace]
        self.seconds = round(self.pace[-1][1] / (1 - HOLD), 1)
        self.body, self.frames, self.clips = [], {}, 0

    def percent(self, clock):
        for (c0, s0), (c1, s1) in zip(self.pace, self.pace[1:]):
            if clock <= c1:
                return round((s0 + (clock - c0) * (s1 - s0) / (c1 - c0)) / self.seconds * 100, 1)
        return 100 * (1 - HOLD)

    def animate(self, name, changes, smooth=False):
        """The classes of an element whose property has these values: [(clock, value)], the first from the beginning."""
        stops = {}
        for clock, value in changes:
            stops[self.percent(clock)] = value  # of several at once the last
        rule = "".join(f"{at:g}%{{{name}:{value}}}" for at, value in stops.items())
        if smooth:
            rule += f"to{{{name}:{changes[-1][1]}}}"
        if len(stops) < 2:
            return ""
        number = self.frames.setdefault(rule, len(self.frames))
        return f" {'g' if smooth else 'k'} k{number}"

    def add(self, text):
        self.body.append(text)

    def rect(self, x, y, w, h, color, changes=(), radius=0, style=""):
        """`changes` of the fill, [(clock, color)]; a color is a variable's name. The last color is the still's."""
        last = changes[-1][1] if changes else color
        moving = self.animate("fill", [(c, f"var(--{v})") for c, v in changes]) if changes else ""
        self.add(f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" class="f-{last}{moving}"'
                 + (f' rx="{radius}"' if radius else "") + (f' style="{style}"' if style else "") + "/>")

    def text(self, x, y, words, kind="", anchor="start", spans=()):
        """`spans`: cycles [(from, to)] while it is shown; without any, always. With one up to None it is part of the still."""
        moving, hidden = "", ""
        if spans:
            changes = [] if spans[0][0] == 0 else [(0, 0)]
            for begin, end in spans:
                changes.append((begin, 1))
                if end is not None:
                    changes.append((end, 0))
            moving, hidden = self.animate("opacity", changes), "" if changes[-1][1] else ' opacity="0"'
        self.add(f'<text x="{x:g}" y="{y:g}" class="{kind or "t"}{moving}"{hidden}'
                 + (f' text-anchor="{anchor}"' if anchor != "start" else "") + f">{words}</text>")

    def bar(self, x, y, w, h, color, series, most):
        """Grows with a series of [(clock, value)] up to `most`."""
        wanted, changes, last = max(1, len(series) // 40), [], None
        for i, (clock, value) in enumerate(series):
            if i % wanted == 0 or i == len(series) - 1:
                changes.append((clock, f"scaleX({value / most:.4g})"))
        self.rect(x, y, w, h, "empty", radius=2)
        moving = self.animate("transform", changes, smooth=True)
        self.add(f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="2" class="f-{color} left{moving}"'
                 f' style="transform:{changes[-1][1]}"/>')

    def number(self, x, y, series, form=size, kind="t n", anchor="end", wide=90):
        """A figure that counts up: a strip of figures behind a window, moved up line by line. Bytes move all through a step,
        and so they are counted between its ends, too."""
        last, texts, changes = None, [], []
        times = [clock for clock, _ in self.pace]
        ticks = {c0 + (c1 - c0) * i / 30 for c0, c1 in zip(times, times[1:]) for i in range(31)}
        for clock in sorted(ticks if form is size else {clock for clock, _ in series}):
            text = form(between(series, clock) if form is size else max(value for at, value in series if at <= clock))
            if text != last:
                changes.append((clock, f"translateY({-20 * len(texts)}px)"))
                texts.append(text)
                last = text
        self.clips += 1
        left = x - wide if anchor == "end" else x
        self.add(f'<clipPath id="c{self.clips}"><rect x="{left:g}" y="{y - 15:g}" width="{wide}" height="20"/></clipPath>'
                 f'<g clip-path="url(#c{self.clips})"><g class="{self.animate("transform", changes)}" style="transform:{changes[-1][1]}">')
        for i, text in enumerate(texts):
            self.text(x, y + 20 * i, text, kind, anchor)
        self.add("</g></g>")

    def clock(self, y, words):
        """The time at the bottom, as far as the run goes."""
        self.text(20, y + 5, words, "s")
        self.rect(20, y + 14, WIDTH - 40, 4, "empty", radius=2)
        changes = [(clock, f"scaleX({self.percent(clock) / (100 - 100 * HOLD):.4g})") for clock, _ in self.pace]
        self.add(f'<rect x="20" y="{y + 14}" width="{WIDTH - 40}" height="4" rx="2" class="f-soft left{self.animate("transform", changes, True)}"/>')

    def save(self, name, folder):
        path = os.path.join(folder, name)
        os.makedirs(folder, exist_ok=True)
        frames = "\n".join(f"@keyframes k{n}{{{rule}}}" for rule, n in self.frames.items())
        uses = "\n".join(f".k{n}{{animation-name:k{n}}}" for n in self.frames.values())
        with open(path, "w", encoding="utf-8") as file:
            file.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" width="{WIDTH}" height="{self.height}"'
                       f' role="img" aria-label="{self.title}">\n<title>{self.title}</title>\n<desc>{self.words}</desc>\n<style>\n{colors()}\n'
                       f"{frames}\n@media screen and (prefers-reduced-motion:no-preference){{\n"
                       f".k{{animation:{self.seconds}s step-end infinite}}\n.g{{animation:{self.seconds}s linear infinite}}\n{uses}\n}}\n</style>\n"
                       f'<rect width="{WIDTH}" height="{self.height}" rx="8" class="f-back"/>\n' + "\n".join(self.body) + "\n</svg>\n")
        print(path)


def colors():
    """Colors by name, in light and in dark: n3 is block 3's where it works now, d3 where it is done."""
    light = {"back": "#fafaf7", "ink": "#222222", "soft": "#63686e", "empty": "#e6e6e0", "line": "#b9bbb6", "chip": "#efefe9", "now": "#ffe9a8",
             "read": "#2f7fc2", "write": "#c0501a", "warm": "#e08a2c", "good": "#3f8f62"}
    dark = {"back": "#15191e", "ink": "#eceff2", "soft": "#a3abb4", "empty": "#2b3138", "line": "#555d66", "chip": "#1e242b", "now": "#5a4c1c",
            "read": "#64b0ee", "write": "#f0915a", "warm": "#f0a95c", "good": "#3d8a60"}
    for i, hue in enumerate(HUES):
        light |= {f"n{i}": f"hsl({hue} 80% 42%)", f"d{i}": f"hsl({hue} 52% 72%)"}
        dark |= {f"n{i}": f"hsl({hue} 90% 66%)", f"d{i}": f"hsl({hue} 38% 40%)"}
    both = ["".join(f"--{name}:{value};" for name, value in some.items()) for some in (light, dark)]
    return (f":root{{{both[0]}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{both[1]}}}}}\n"
            "text{font-family:system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif}\n"
            ".t{font-size:15px;fill:var(--ink)}.s{font-size:14px;fill:var(--soft)}.h{font-size:17px;font-weight:600;fill:var(--ink)}\n"
            ".i{fill:var(--ink)}.b{font-size:20px;font-weight:600;fill:var(--ink)}.n{font-variant-numeric:tabular-nums}\n"
            ".left{transform-box:fill-box;transform-origin:left}.dash{fill:none;stroke:var(--line);stroke-dasharray:4 3}\n"
            + "".join(f".f-{name}{{fill:var(--{name})}}" for name in light))


# ---- parts of pictures ----

def strip(sheet, x, y, count, unit, wide, changes_of, label, across=False, above=False):
    """A matrix of rows, as a strip of `count` pieces; changes_of(i): the colors of piece i."""
    for i in range(count):
        place = (x + i * unit, y, unit - 1, wide) if across else (x, y + i * unit, wide, unit - 1)
        sheet.rect(*place, "empty", changes_of(i))
    if across:
        sheet.text(x - 8, y + wide - 1, label, "s", "end")
    else:
        sheet.text(x + wide / 2, y - 8 if above else y + count * unit + 16, label, "s", "middle")


def touched(run, tensor, unit, count, written, color, rest):
    """For each piece of a tensor's rows: its color while a step reads or writes it, and after that."""
    pieces = [[(0, "empty" if written else rest)] for _ in range(count)]
    for step in run.steps:
        for m in step.moves:
            if m.tensor == tensor and m.written == written:
                for i in range(m.lo // unit, min(m.hi // unit, count - 1) + 1):
                    pieces[i] += [(step.start, color), (step.end, rest)]
    return lambda i: pieces[i]


def places(sheet, run, x, y, columns, unit, color_of=None):
    """The chip's multiprocessors, lit while they have a block."""
    lit = defaultdict(list)
    for s in run.steps:
        lit[s.place].append((s.start, f"n{s.block % 8}" if color_of is None else color_of(s)))
        lit[s.place].append((s.end, "empty"))
    for i in range(run.places):
        changes = [(0, "empty"), *simplify(lit[i])] if lit[i] else []
        sheet.rect(x + i % columns * unit, y + i // columns * unit, unit - 2, unit - 2, "empty", changes)


def simplify(changes):
    """Without a change that is undone at the same clock, and without one to the color there already is."""
    kept = {}
    for clock, color in changes:
        kept[clock] = color
    result = []
    for clock, color in sorted(kept.items()):
        if not result or result[-1][1] != color:
            result.append((clock, color))
    return result


def square(sheet, run, x, y, rows, keys, down, across, unit, stays=True, kept=None):
    """S, tile by tile: empty, strong while it is multiplied, then pale (or empty again); gray where it is not `kept`."""
    tiles = run.tiles(rows, keys)
    for i in range(down):
        for j in range(across):
            if (i, j) in tiles:
                start, end, block = tiles[i, j]
                changes = [(0, "empty"), (start, f"n{block % 8}"), (end, "empty" if not stays else f"d{block % 8}" if kept is None or (i, j) in kept else "line")]
                sheet.rect(x + j * unit, y + i * unit, unit - 1, unit - 1, "empty", changes)
            else:
                sheet.rect(x + j * unit + .5, y + i * unit + .5, unit - 2, unit - 2, "back", style="stroke:var(--line);stroke-dasharray:2 3")
    return tiles


# ---- the pictures ----

def loops(build, folder):
    """FlashAttention-1 beside FlashAttention-2: who owns which tile when, and the bytes that it takes."""
    n, tile, unit, top = 256, 32, 24, 104
    one, two = (runs(build, stage, f"--heads 1 --seqlen {n}", "fma")[0] for stage in ("03_fa1", "04_fa2"))
    count = n // tile
    sheet = Sheet(474, "FlashAttention-1 beside FlashAttention-2, tile by tile",
                  "FlashAttention-1: one block goes through all tiles, key tile by key tile, and O is stored and read again. "
                  "FlashAttention-2: eight blocks, each with its own queries; O is stored once.", [(two.end, 6), (one.end, 14)])
    bars = (("O, m and l, stored", ("O", "O accumulator", "m", "l", "LSE"), (1,), "write"),
            ("O, m and l, read again", ("O accumulator", "m", "l"), (0,), "write"),
            ("K and V, read", ("K", "V"), (0,), "read"))
    most = max(run.bytes(*tensors, written=w)[-1][1] for run in (one, two) for _, tensors, w, _ in bars)
    for run, x, name, idea in ((one, 20, "FlashAttention-1", "one block takes the key tiles in turn"),
                               (two, 434, "FlashAttention-2", "a block for each tile of queries")):
        sheet.text(x, 32, name, "h")
        sheet.text(x, 54, idea, "s")
        tiles = square(sheet, run, x + 62, top, tile, tile, count, count, unit)
        strip(sheet, x + 62, top - 20, count, unit, 13, touched(run, "K", tile, count, 0, "read", "line"), "K, V", across=True)
        strip(sheet, x, top, count, unit, 16, touched(run, "Q", tile, count, 0, "read", "line"), "Q")
        part = touched(run, "O accumulator", tile, count, 1, "write", "warm")
        whole = touched(run, "O", tile, count, 1, "write", "good")
        strip(sheet, x + 32, top, count, unit, 16, lambda i: simplify(sorted(part(i) + whole(i)[1:], key=lambda c: c[0])), "O")
        sheet.text(x + 62 + count * unit / 2, top + count * unit + 16, "S: queries down, keys across", "s", "middle")
        places(sheet, run, x + 272, top - 18, 11, 10)
        busy = len({s.place for s in run.steps})
        sheet.text(x + 272, top + 122, f"{busy} of {run.places}", "b")
        sheet.text(x + 272, top + 140, "multiprocessors", "s")
        sheet.text(x + 272, top + 158, "have a block", "s")
        for i, (label, tensors, written, color) in enumerate(bars):
            series, y = run.bytes(*tensors, written=written), 346 + 26 * i
            sheet.text(x, y, label, "s")
            sheet.bar(x + 184, y - 11, 110, 11, color, series, most)
            sheet.number(x + 376, y, series)
        if run is two:
            last = min(s.start for s in run.steps for m in s.moves if m.tensor == "O")
            sheet.text(x, 424, "O stays in registers until its last key tile", spans=[(0, last)])
            sheet.text(x, 424, "each block stores its rows of O: once", spans=[(last, run.end)])
            sheet.text(x, 424, f"done after {run.end:,.0f} cycles", spans=[(run.end, None)])
        else:
            begins = [min(t[0] for (_, j), t in tiles.items() if j == column) for column in range(count)] + [run.end]
            for i in range(count):
                words = "O is begun, and stored unfinished" if i == 0 else f"key tile {i + 1}: O is read, changed, stored again"
                sheet.text(x, 424, words, spans=[(begins[i] if i else 0, begins[i + 1])])
            sheet.text(x, 424, f"done after {run.end:,.0f} cycles", spans=[(run.end, None)])
    sheet.clock(446, "model cycles; slower until FlashAttention-2 has finished")
    sheet.save("moving_loops.svg", folder)


def idea(build, folder):
    """Standard attention in three kernels, S and P in device memory; FlashAttention in one, S and P on the chip alone."""
    n, tile, unit = 512, 64, 13
    options = f"--heads 1 --seqlen {n} --roofline t4"
    three, one = runs(build, "01_tiled", options, "mma")[0], runs(build, "04_fa2", options, "split_q")[0]
    count, side = n // tile, n // tile * unit
    sheet = Sheet(500, "S and P pass through device memory, or they never leave the chip",
                  "Standard attention writes S and P to device memory and reads them again. FlashAttention computes them tile by "
                  "tile on the chip and discards each tile once O has taken it in.", [(one.end, 5.5), (three.end, 12.5)])
    most = three.bytes()[-1][1]
    for run, x, name in ((three, 20, "standard attention: three kernels"), (one, 430, "FlashAttention: one kernel")):
        sheet.text(x, 34, name, "h")
        for y, high, where in ((48, 168, "chip"), (228, 172, "device memory")):
            sheet.rect(x, y, 380, high, "chip", radius=6)
            sheet.text(x + 370, y + 22, where, "s", "end")
        places(sheet, run, x + 10, 192, 20, 9, (lambda s: f"n{s.launch}") if run is three else None)
        sheet.text(x + 370, 205, f"{run.places} multiprocessors", "s", "end")
        series = run.bytes()
        sheet.text(x, 424, "bytes moved", "s")
        sheet.bar(x + 96, 413, 190, 12, "write", series, most)
        sheet.number(x + 378, 424, series)
    ends = [0, *three.ends()]
    for i, words in enumerate(("Q Kᵀ", "softmax", "P V")):
        sheet.rect(30 + 118 * i, 92, 104, 44, "empty", [(0, "empty"), (ends[i], f"d{i}"), (ends[i + 1], "empty")] if i else
                   [(0, "d0"), (ends[1], "empty")], radius=6)
        sheet.text(82 + 118 * i, 119, f"{i + 1}. {words}", anchor="middle")
    stored_squares(sheet, three, 92, 272, tile, count, unit)
    inputs(sheet, three, (("Q", 30), ("K", 60), ("V", 338), ("O", 370)), 272, tile, count, unit)
    for x, begin, end, written in ((156, 0, 1, 1), (132, 1, 2, 0), (266, 1, 2, 1), (243, 2, 3, 0)):
        flow(sheet, x, 212, 266, (ends[begin], ends[end]), written)
    square(sheet, one, 460, 80, tile, tile, count, count, unit, stays=False)
    sheet.text(460 + side / 2, 71, "tiles of S and P", "s", "middle")
    growing(sheet, one, 620, 80, tile, count, unit)
    inputs(sheet, one, (("Q", 460), ("K", 498), ("V", 536), ("O", 770)), 272, tile, count, unit)
    sheet.text(600, 318, "S and P", "s")
    sheet.text(600, 337, "are not here", "s")
    told = lambda tensor, written: size(three.bytes(tensor, written=(written,))[-1][1])
    for i, words in enumerate((f"the first kernel stores S: {told('S', 1)}", f"softmax reads S ({told('S', 0)}) and stores P ({told('P', 1)})",
                               f"the last kernel reads P: {told('P', 0)}")):
        sheet.text(20, 452, words, spans=[(ends[i], ends[i + 1])])
    share = sum(three.bytes(t)[-1][1] for t in "SP") / most
    sheet.text(20, 452, f"{100 * share:.0f}% of these bytes are S and P", spans=[(three.end, None)])
    sheet.text(430, 452, "a tile of S lives only until O has taken it in", spans=[(0, one.end)])
    sheet.text(430, 452, f"done in {100 * one.end / three.end:.0f}% of the cycles, with {100 * one.bytes()[-1][1] / most:.0f}% of the bytes",
               spans=[(one.end, None)])
    sheet.clock(474, "model cycles of an NVIDIA T4; slower until FlashAttention has finished")
    sheet.save("moving_idea.svg", folder)


def inputs(sheet, run, tensors, y, tile, count, unit):
    """Strips of Q, K, V and O, lit while they are read or stored."""
    for name, x in tensors:
        written = int(name == "O")
        pieces = touched(run, name, tile, count, written, "write" if written else "read", "good" if written else "line")
        strip(sheet, x, y, count, unit, 18, lambda i: simplify(pieces(i)), name)


def stored_squares(sheet, run, x, y, tile, count, unit):
    """S and P as they lie in device memory: empty, stored, read, and still there."""
    for number, name in enumerate("SP"):
        at = x + number * 118
        cells = defaultdict(lambda: {0: [], 1: []})
        for step in run.steps:
            for m in step.moves:
                if m.tensor == name:
                    for i in range(m.lo // tile, m.hi // tile + 1):
                        for j in range(m.left // tile, m.right // tile + 1):
                            cells[i, j][m.written].append((step.start, step.end))
        for (i, j), moved in sorted(cells.items()):
            changes = [(0, "empty")]
            for written, color in ((1, "write"), (0, "read")):
                changes += [(min(moved[written])[0], color), (max(end for _, end in moved[written]), "warm")]
            sheet.rect(at + j * unit, y + i * unit, unit - 1, unit - 1, "empty", simplify(changes))
        sheet.text(at + count * unit / 2, y + count * unit + 16, name, "s", "middle")


def growing(sheet, run, x, y, tile, count, unit):
    """O on the chip: a bar for each tile of queries that grows by each tile of keys, until it is stored."""
    sheet.text(x + 60, y - 8, "O so far, kept here", "s", "middle")
    for i in range(count):
        ends = sorted({s.end for s in run.steps for p in s.products if p.tensor == "V" and p.q0 // tile == i})
        stored = max(s.end for s in run.steps for m in s.moves if m.tensor == "O" and m.lo // tile == i)
        changes = [(0, "scaleX(0)"), *((end, f"scaleX({(k + 1) / len(ends):g})") for k, end in enumerate(ends)), (stored, "scaleX(0)")]
        sheet.add(f'<rect x="{x}" y="{y + i * unit}" width="120" height="{unit - 1}" class="f-empty"/>'
                  f'<rect x="{x}" y="{y + i * unit}" width="120" height="{unit - 1}" class="f-n{i % 8} left{sheet.animate("transform", changes)}"'
                  ' style="transform:scaleX(0)"/>')


def flow(sheet, x, top, bottom, span, written):
    """An arrow between chip and memory, lit from one clock to another."""
    color, last = ("write" if written else "read"), "line"
    changes = [(0, "line")] * (span[0] > 0) + [(span[0], color), (span[1], last)]
    moving = sheet.animate("fill", [(c, f"var(--{v})") for c, v in changes])
    tip, tail = (bottom, top) if written else (top, bottom)
    back = -12 if written else 12
    sheet.add(f'<path d="M{x} {tip}l-9 {back}h5V{tail}h8V{tip + back}h5z" class="f-{last}{moving}"/>')


def gradients(build, folder):
    """The backward pass: blocks own keys, so dK and dV stay, and all of them add to the same rows of dQ."""
    n, rows, keys, unit, top = 256, 16, 32, 19, 112
    run = runs(build, "05_fa2_backward", f"--heads 1 --seqlen {n}", "fma")[0]
    down, across = n // rows, n // keys
    sheet = Sheet(top + down * unit + 92, "The backward pass: eight blocks add to the same rows of dQ",
                  "Each block owns a tile of keys and goes down all queries. dK and dV stay in its registers and are stored once; "
                  "to dQ all blocks add at the same time, with atomic additions.", [(run.end, 12)])
    wide = 38
    sheet.text(20, 32, "The backward pass, in plain CUDA", "h")
    sheet.text(20, 54, f"{across} blocks, each with {keys} keys; all go down the queries, {rows} at a time", "s")
    tiles = run.tiles(rows, keys)
    for (i, j), (start, end, block) in sorted(tiles.items()):
        sheet.rect(90 + j * wide, top + i * unit, wide - 1, unit - 1, "empty", [(0, "empty"), (start, f"n{block}"), (end, f"d{block}")])
    stored = {s.block: s.start for s in run.steps for m in s.moves if m.tensor == "dK" and m.written}
    for j in range(across):
        sheet.rect(90 + j * wide, top - 26, wide - 1, 17, "empty", [(0, "empty"), (tiles[0, j][0], "warm"), (stored[j], "good")])
    sheet.text(82, top - 12, "dK, dV", "s", "end")
    sheet.text(82, top + 16, "queries ↓", "s", "end")
    sheet.text(90 + across * wide / 2, top + down * unit + 17, "S: a column for each block, keys across", "s", "middle")
    x = 440
    sheet.text(x, top - 12, "dQ: additions to its rows, a color per block", "s")
    adds = defaultdict(list)
    for s in run.steps:
        if any(m.tensor == "dQ accumulator" and m.written for m in s.moves) and s.products:
            adds[min(p.q0 for p in s.products) // rows].append((s.end, s.block))
    for i in range(down):
        for k, (clock, block) in enumerate(sorted(adds[i])):
            sheet.rect(x + k * 26, top + i * unit, 25, unit - 1, "empty", [(0, "empty"), (clock, f"d{block}")])
    right = x + 26 * across + 62
    gathered = sorted(sum(adds.values(), []))
    sheet.number(right + 80, top + 40, [(0, 0)] + [(c, k + 1) for k, (c, _) in enumerate(gathered)], str, "b n", "end", 80)
    for i, words in enumerate(("additions", "to a tile of dQ")):
        sheet.text(right + 80, top + 62 + 18 * i, words, "s", "end")
    series = [(0, 0)] + [(c, k + 1) for k, c in enumerate(sorted(stored.values()))]
    sheet.number(right + 80, top + 130, series, str, "b n", "end", 80)
    for i, words in enumerate(("stores of a tile", "of dK and of dV")):
        sheet.text(right + 80, top + 152 + 18 * i, words, "s", "end")
    y = top + down * unit + 46
    last = min(stored.values())
    sheet.text(20, y, "all blocks add to the same rows of dQ at once: the additions must be atomic", spans=[(0, last)])
    sheet.text(20, y, "dK and dV stayed in registers and are stored once; dQ was added from every block", spans=[(last, None)])
    sheet.clock(y + 20, "model cycles; strong: multiplied now")
    sheet.save("moving_gradients.svg", folder)


def splits(build, folder):
    """Decoding: one query per head, many keys; the more blocks share them, the sooner it is over, and then parts are merged."""
    heads, length, tile, unit = 2, 4096, 256, 41
    options = f"--heads {4 * heads} --kv-heads {heads} --seqlen-k {length}"
    found = [runs(build, "07_flash_decoding", options + more, variant)[0]
             for variant, more in (("one_block", ""), ("split_k", " --splits 4"), ("equal_shares", ""))]
    longest = max(run.end for run in found)
    sheet = Sheet(488, "One query, thousands of keys: splits of the keys, and the merge",
                  "With one block per head two multiprocessors read all keys. Splits let more blocks read at the same time; their "
                  "partial results are merged at the end.", [(longest, 12)])
    sheet.text(20, 32, f"Decoding: one new query per head, {length:,} keys", "h")
    words = ("one_block: a block for each K/V head", "split_k: four splits of each head's keys, then a second launch merges",
             "equal_shares: equal shares of all tiles, and the last block of a head merges")
    count = length // tile
    for number, run in enumerate(found):
        top = 50 + 132 * number
        blocks = len({s.block for s in run.steps if s.launch == 0})
        sheet.text(20, top + 18, words[number], "t")
        tiles = {}
        for s in (s for s in run.steps if s.launch == 0):
            for m in s.moves:
                if m.tensor == "K":
                    for i in range(m.lo // tile, m.hi // tile + 1):
                        tiles[i] = (s.start, s.end, s.block)
        for i, (start, end, block) in sorted(tiles.items()):
            sheet.rect(78 + i % count * unit, top + 30 + i // count * 32, unit - 1, 26, "empty", [(0, "empty"), (start, f"n{block % 8}"), (end, f"d{block % 8}")])
        stored = {}
        for s in run.steps:
            for m in s.moves:
                if m.tensor == "O" and m.written:
                    for row in range(m.lo, m.hi + 1):
                        stored[row // 4] = max(stored.get(row // 4, 0), s.end)
        parts = max((s.end for s in run.steps for m in s.moves if m.tensor == "partial O" and m.written), default=None)
        for head in range(heads):
            sheet.text(70, top + 48 + head * 32, f"head {head}", "s", "end")
            changes = [(0, "empty"), (stored[head], "good")]
            sheet.rect(78 + count * unit + 14, top + 30 + head * 32, 54, 26, "empty", changes, radius=4)
            sheet.text(78 + count * unit + 41, top + 48 + head * 32, "O", anchor="middle")
        sheet.text(78, top + 114, f"{blocks} blocks read keys", "s", spans=[(0, run.end)])
        merged = f", {size(run.bytes('partial O', 'partial LSE', written=(1,))[-1][1])} of partial results merged" if parts else ""
        sheet.text(78, top + 114, f"{blocks} blocks, done after {run.end:,.0f} cycles{merged}", "t", spans=[(run.end, None)])
    sheet.clock(460, "model cycles; strong: being loaded, pale: loaded and multiplied, a color per block")
    sheet.save("moving_splits.svg", folder)


def roles(build, folder):
    """Hopper: what is copied, multiplied and exponentiated in each step, in 08's first kernel and in its last."""
    steps, unit, left = 11, 58, 176
    options = "--heads 1 --seqlen 1024 --head-dim 128"
    simple, overlapped = (runs(build, "08_fa3", options, variant)[0] for variant in ("wgmma", "overlapped"))
    sheet = Sheet(520, "Copies, products and softmax, step by step",
                  "In the kernel wgmma a tile's scores, its softmax and its product with V follow one another. In overlapped the scores of the "
                  "next tile are multiplied in the same step as P V of the tile before, and two consumers take turns.", [(steps, 13)])
    lanes = (("copies", None, None, 1), ("products", "K V", range(0, 4), 2), ("softmax", "exp", range(0, 4), 1))
    chart(sheet, simple, 20, "wgmma: the scores of a tile, then its softmax and P V, then the next tile", lanes, 64, steps, unit, left)
    lanes = (("producer: copies", None, None, 1), ("consumer 0: products", "K V", range(4, 8), 2), ("its softmax", "exp", range(4, 8), 1),
             ("consumer 1: products", "K V", range(8, 12), 2), ("its softmax", "exp", range(8, 12), 1))
    chart(sheet, overlapped, 208, "overlapped: the next scores are multiplied beside P V; two consumers take turns", lanes, 128, steps, unit, left)
    sheet.clock(490, "steps: what lies between two waits. The number is the tile of keys, last tile first.")
    sheet.save("moving_roles.svg", folder)


def chart(sheet, run, top, title, lanes, keys, steps, unit, left):
    """A lane for each role of block 0, a column for each of its first steps in which something is done."""
    mine = [s for s in run.steps if s.block == 0 and s.launch == 0 and (s.moves or s.products)][:steps]
    sheet.text(20, top + 14, title, "h")
    tallest = sum(24 * high + 6 for *_, high in lanes)
    for t in range(len(mine)):
        changes = [(0, "back")] * (t > 0) + [(t, "now"), (t + 1, "back")]
        sheet.rect(left + t * unit - 3, top + 26, unit, tallest + 4, "back", changes, radius=4)
    y = top + 30
    for name, what, warps, high in lanes:
        sheet.text(left - 10, y + 12 * high + 5, name, "s", "end")
        for t, s in enumerate(mine):
            boxes = []
            if what is None:
                tiles = [f"{m.tensor} {m.lo // keys}" + (f"–{m.hi // keys}" if m.hi // keys > m.lo // keys else "")
                         for m in s.moves if m.tensor in ("K", "V") and not m.written]
                boxes = [(0, " ".join(tiles) if len(tiles) < 2 else tiles[0].replace("K", "KV"), "line")] if tiles else []
            own = [p for p in s.products if p.warp in (warps or ())]
            if what == "K V":
                for line, (tensor, words, color) in enumerate((("K", "QKᵀ", "d0"), ("V", "P V", "d2"))):
                    some = [p for p in own if p.tensor == tensor]
                    if some:
                        boxes.append((line, f"{words} {min(p.k0 for p in some) // keys}", color))
            if what == "exp" and own and s.exponentials:
                of_keys = [p for p in own if p.tensor == "K"] or own
                boxes = [(0, f"tile {min(p.k0 for p in of_keys) // keys}", "d1")]
            for line, words, color in boxes:
                sheet.rect(left + t * unit, y + 24 * line, unit - 6, 22, "empty", [(0, "empty")] * (t > 0) + [(t, color)], radius=3)
                sheet.text(left + t * unit + (unit - 6) / 2, y + 24 * line + 16, words, "s i", "middle", spans=[(t, None)])
        y += 24 * high + 6


def skipping(build, folder):
    """A block mask: every tile visited and masked, or only the tiles of which something is kept."""
    n, tile, unit, top = 2048, 128, 16, 76
    options, count = f"--heads 1 --seqlen {n} --blocks sink:128:384", n // tile
    found = [runs(build, "10_block_sparse", options, variant)[0] for variant in ("masked", "skipping")]
    kept = set(found[1].tiles(tile, tile))
    sheet = Sheet(top + count * unit + 104, "A mask of blocks: tiles that are not there cost nothing",
                  "The kernel masked multiplies all tiles and then discards what the mask drops. skipping has a list of the tiles of which something is kept.",
                  [(found[1].end, 6), (found[0].end, 12)])
    for run, x, name, words in ((found[0], 20, "masked", "multiplies every tile; gray: for nothing"), (found[1], 434, "skipping", "multiplies only the tiles on its list")):
        sheet.text(x, 32, name, "h")
        sheet.text(x, 54, words, "s")
        tiles = square(sheet, run, x, top, tile, tile, count, count, unit, kept=kept)
        for i, (_, value, label) in enumerate(((0, len(tiles), "tiles multiplied"), (0, run.bytes("K", "V")[-1][1], "of K and V read"))):
            ends = sorted(t[1] for t in tiles.values())
            series = [(0, 0)] + [(clock, k + 1) for k, clock in enumerate(ends)] if not i else run.bytes("K", "V")
            sheet.number(x + 376, top + 40 + 80 * i, series, str if not i else size, "b n", "end", 96)
            sheet.text(x + 376, top + 62 + 80 * i, label, "s", "end")
        y = top + count * unit + 24
        sheet.text(x, y, "S: queries down, keys across", "s")
        sheet.text(x, y + 24, f"done after {run.end:,.0f} cycles", spans=[(run.end, None)])
    sheet.clock(top + count * unit + 74, "model cycles; slower until skipping has finished; a color per block of queries")
    sheet.save("moving_skipping.svg", folder)


LINK = 350 / 1.83  # bytes per model clock of a copy from another GPU: 350 GB/s at the H200's clock
Part = namedtuple("Part", "start end device queries keys")  # chunks


def rounds(run, devices, key_bytes, chunk):
    """What each device computes when, and its pulls: [(start, end, device, shard, slot, bytes)]. The order and what is read are the
    run's; each device's clock is its own, and a round also waits for its copy."""
    parts, pulls = [], []
    for r in range(devices):
        launches = [i for i, device in enumerate(run.devices) if device == r]
        spans = [(min(s.start for s in run.steps if s.launch == i), max(s.end for s in run.steps if s.launch == i)) for i in launches]
        clock = at = 0
        arrived, ended = [0], []

        def pull(number):
            """Two shards are copied at once; the others wait for a free slot."""
            shard = (r - number) % devices
            begin = max(arrived[-1], ended[number - 2] if number > 2 else 0)
            pulled = (1 if shard < r else 2) * chunk * key_bytes
            arrived.append(begin + pulled / LINK)
            pulls.append((begin, arrived[-1], r, shard, number % 2, pulled))

        for number in range(1, min(devices, 3)):
            pull(number)
        for number in range(devices):
            shard = (r - number) % devices
            clock = max(clock, arrived[number])
            seen = [(c, [k for k in (shard, 2 * devices - 1 - shard) if k <= c]) for c in (r, 2 * devices - 1 - r)]
            read = sum(m.bytes for s in run.steps if s.launch == launches[at] for m in s.moves if m.tensor in ("K", "V"))
            shown = sum(len(keys) for _, keys in seen) * chunk * key_bytes
            assert read == shown or number == 0 and read > shown, "the run does not read what this picture shows"  # causal: whole tiles
            count = 1 if number == 0 else 2  # attention, then the merge
            end = clock + sum(stop - start for start, stop in spans[at:at + count])
            parts += [Part(clock, end, r, queries, keys) for queries, keys in seen if keys]
            clock, at = end, at + count
            ended.append(end)
            if 0 < number and number + 2 < devices:
                pull(number + 2)
    return parts, pulls


def context(build, folder):
    """One sequence over four GPUs: which of them computes which part of S when, and whose keys it holds."""
    devices, n, dim, unit, top, left = 4, 1024, 64, 34, 92, 56
    count, chunk = 2 * devices, n // (2 * devices)
    run = runs(build, "12_context_parallel", f"--causal --heads 1 --seqlen {n} --head-dim {dim} --devices {devices}", "rounds")[0]
    parts, pulls = rounds(run, devices, 2 * dim * 2, chunk)
    end = max(part.end for part in parts)
    sheet = Sheet(456, "One sequence over four GPUs: shards of keys go around",
                  "Each GPU owns two chunks of the queries and their keys. It computes with its own keys first, and in each later round "
                  "with a shard that was copied meanwhile. All finish at about the same time.", [(end, 13)])
    owner = [min(c, count - 1 - c) for c in range(count)]
    sheet.text(20, 32, "One sequence over four GPUs", "h")
    sheet.text(20, 54, "S, in the color of the GPU that computes it", "s")
    strip(sheet, left, top - 18, count, unit, 13, lambda i: [(0, f"d{owner[i]}")], "K", across=True)
    strip(sheet, left - 20, top, count, unit, 13, lambda i: [(0, f"d{owner[i]}")], "Q")
    cells = {(part.queries, key): part for part in parts for key in part.keys}
    for i in range(count):
        for j in range(count):
            x, y = left + j * unit, top + i * unit
            if (i, j) in cells:
                part = cells[i, j]
                changes = [(0, "empty")] * (part.start > 0) + [(part.start, f"n{part.device}"), (part.end, f"d{part.device}")]
                sheet.rect(x, y, unit - 1, unit - 1, "empty", changes)
            else:
                sheet.rect(x + .5, y + .5, unit - 2, unit - 2, "back", style="stroke:var(--line);stroke-dasharray:2 3")
    sheet.text(left, top + count * unit + 22, "dashed: no query sees a key there", "s")
    for r in range(devices):
        x, y = 372, 40 + 100 * r
        sheet.text(x, y, f"GPU {r}", "h")
        sheet.text(x + 62, y, f"queries {r} and {count - 1 - r}", "s")
        mine = [part for part in parts if part.device == r]
        series = [(0, 0)]
        for _, arrived, _, _, _, pulled in (pull for pull in pulls if pull[2] == r):
            series.append((arrived, series[-1][1] + pulled))
        sheet.number(x + 398, y, series, size, "t n")
        sheet.text(x + 404, y, "in", "s")
        for box, name in enumerate(("own shard", "slot 0", "slot 1")):
            holds = [(0, -1, r)] if box == 0 else [pull[:2] + (pull[3],) for pull in pulls if pull[2] == r and pull[4] == box - 1]
            changes, used = [(0, "empty")], []
            for begin, arrived, shard in holds:
                busy = [part for part in mine if owner[part.keys[0]] == shard]
                first, last = busy[0].start, busy[-1].end
                changes += [(begin, "line")] * (box > 0) + [(max(arrived, 0), f"d{shard}"), (first, f"n{shard}"), (last, f"d{shard}")]
                used.append((begin, shard))
            sheet.rect(x + box * 142, y + 12, 134, 30, "empty", simplify(changes), radius=4)
            for (begin, shard), after in zip(used, used[1:] + [(None, 0)]):
                sheet.text(x + box * 142 + 67, y + 32, f"K, V of GPU {shard}", "s i", "middle", spans=[(begin, after[0])])
            sheet.text(x + box * 142 + 67, y + 60, name, "s", "middle")
    sheet.clock(426, "model cycles; strong: being computed with, gray: being copied at 350 GB/s")
    sheet.save("moving_context.svg", folder)


PICTURES = (idea, loops, gradients, splits, roles, skipping, context)

if __name__ == "__main__":
    if len(sys.argv) < 2 or not os.path.isdir(sys.argv[1]):
        print("moving.py: choose a folder of programs with the trace, as make moving does", file=sys.stderr)
        sys.exit(2)
    for draw in PICTURES:
        draw(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "notes/pictures")
