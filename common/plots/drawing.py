# drawing.py - how every picture of the tree looks. For plots.py, compare.py and pictures.py.
#
# SVG on an opaque pale panel with dark text, so that a picture reads alike on paper, on a white page and on a dark one.
# Colours are of middle tone and never alone: markers, dashes or words tell things apart. The same data gives the same
# file, byte for byte. save() says so on stderr if a page of GitHub would show a picture with letters too small, or
# with one text over another; the tests want it silent.
import io
import itertools
import os
import re
import sys
from collections import Counter

try:
    import matplotlib
except ImportError:
    print("plots need matplotlib: install python3-matplotlib, or use pip install matplotlib", file=sys.stderr)
    sys.exit(2)

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402: the backend comes first
from matplotlib.patches import FancyArrowPatch, Rectangle  # noqa: E402
from matplotlib.text import Text  # noqa: E402

PANEL, INK, FAINT = "#fafaf7", "#222222", "#c9c9c2"
ALARM, OTHERS = "#b04a00", "#b9b9b1"  # what must be seen; lines without a name
WARPS = ["#8fc3e8", "#f3c27a", "#9fd3b4", "#e0a9cb"]  # four warps, blocks or registers
WIDEST, SMALLEST = 850, 9  # CSS pixels: a page of GitHub; letters
FONTS = "'DejaVu Sans', 'Verdana', sans-serif"  # as matplotlib writes the list below

matplotlib.rcParams.update({
    "svg.hashsalt": "attention", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9,
    "font.sans-serif": ["DejaVu Sans", "Verdana"],
    "figure.facecolor": PANEL, "savefig.facecolor": PANEL, "axes.facecolor": PANEL, "axes.edgecolor": FAINT,
    "axes.labelcolor": INK, "text.color": INK, "xtick.color": INK, "ytick.color": INK, "axes.titlesize": 9,
    "axes.grid": True, "grid.color": FAINT, "grid.linewidth": 0.5, "axes.axisbelow": True,
    "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
})

# A stage has a colour, one that the colour-blind can tell from others (Okabe and Ito, but darker); a kernel's name, in whatever
# stage, has a marker and dashes. Other programs are black and without markers.
COLOURS = {
    "00_naive": "#6b6b6b", "01_tiled": "#8f5a00", "02_online_softmax": "#2f93cf", "03_fa1": "#b85a91", "04_fa2": "#007a58",
    "05_fa2_backward": "#b04a00", "06_fp8": "#7a4fb5", "07_flash_decoding": "#5f6f00", "08_fa3": "#a32020",
    "09_fa3_backward": "#005a91", "10_block_sparse": "#c98500",
    "11_score_mod": "#3f7f1f", "11_score_mod_backward": "#9c2f7a", "12_context_parallel": "#46717a",
}
MARKS = {
    "00_naive": "o-", "fma": "^--", "mma": "s-", "online": "^-", "fa1": "D-", "epilogue": "d:", "parallel": "<:", "loop_swap": "v-.",
    "split_q": "P--", "tall": "X:", "tuned": "p-", "atomic": ">-", "quantise+mma": "h--", "quantise+wgmma": "*-",
    "split_k": "p:", "wgmma": "s:", "specialised": "D--", "overlapped": "o-", "ordered": "<--", "masked": "x:", "skipping": "v--",
    "cuDNN": " -", "FlashAttention-2": " --", "FlashAttention-3": " :", "FlexAttention": " --",
}


def look(name):
    """Of 04_fa2/tuned, or of another program: what stands before a comma."""
    stage, _, kernel = name.split(",")[0].rpartition("/")
    mark = MARKS.get(kernel, ".-")
    return {"color": COLOURS.get(stage or kernel, INK), "marker": mark[0], "linestyle": mark[1:], "markersize": 4.5,
            "linewidth": 1.4}


def logarithmic(axis, names):
    """1000 rather than 10^3."""
    for name in names:
        getattr(axis, f"set_{name}scale")("log")
        getattr(axis, f"{name}axis").set_major_formatter(lambda value, _: f"{value:g}")
        getattr(axis, f"{name}axis").set_minor_formatter(plt.NullFormatter())


# ---- a sheet to draw on: one unit is a CSS pixel, rows count downwards ----

def sheet(width, height):
    axis = plt.figure(figsize=(width / 96, height / 96)).add_axes((0, 0, 1, 1))
    axis.axis("off")
    axis.set_xlim(0, width)
    axis.set_ylim(height, 0)


def cell(left, top, width, height, colour, text="", size=7.5, edge=INK, **more):
    plt.gca().add_patch(Rectangle((left, top), width, height, facecolor=colour, edgecolor=edge, linewidth=0.5,
                                  clip_on=False))
    if text != "":
        write(left + width / 2, top + height / 2, text, size, **more)


def write(left, top, text, size=7.5, align="center", **more):
    plt.text(left, top, text, fontsize=size, ha=align, va="center", **more)


def heading(left, top, text):
    write(left, top, text, 9, "left", fontweight="bold")


def arrow(start, end, colour=INK, style="-|>"):
    plt.gca().add_patch(FancyArrowPatch(start, end, arrowstyle=style, mutation_scale=9, color=colour, linewidth=1, shrinkA=0,
                                        shrinkB=0, clip_on=False, zorder=3))


# ---- files ----

def check(figure, name):
    """Says what a reader could not read."""
    figure.canvas.draw()
    axes = [axis for panel in figure.axes for axis in (panel.xaxis, panel.yaxis)]
    beyond = {tick.label1 for axis in axes for tick in axis.get_major_ticks()  # not drawn
              if not min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())}
    texts = [text for text in figure.findobj(Text)
             if text.get_visible() and text.get_text().strip() and text not in beyond]
    complaints = [f"letters of {text.get_fontsize() * 96 / 72:.1f} pixels: {text.get_text()!r}" for text in texts
                  if text.get_fontsize() * 96 / 72 < SMALLEST]
    width = figure.get_tightbbox().width * 96
    if width > WIDEST:
        complaints.append(f"{width:.0f} pixels wide")
    boxes = [(text, text.get_window_extent()) for text in texts if text.get_rotation() % 90 == 0]
    for (one, a), (other, b) in itertools.combinations(boxes, 2):
        across, down = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
        if across > 1 and down > 2:  # points; a box has some air above and below its letters
            complaints.append(f"{one.get_text()!r} lies over {other.get_text()!r}")
    for complaint in complaints:
        print(f"{name}: {complaint}", file=sys.stderr)


def compact(svg):
    """matplotlib's SVG without what no reader and no browser needs: a third of the bytes."""
    svg = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<!DOCTYPE.*?>|<\?xml.*?\?>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' transform="rotate\(-?0 [^)]*\)"|; stroke-linejoin: miter', "", svg)
    svg = re.sub(r' id="(patch|text|line2d|xtick|ytick)_\d+"', "", svg)
    short = lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip(".")
    svg = re.sub(r'="[^"]*"', lambda attribute: re.sub(r"\d+\.\d+", short, attribute[0]), svg)
    svg = re.sub(r' d="[^"]*"', lambda path: re.sub(r"\s*([MLHVCQz])\s*", r"\1", path[0]).replace("\n", ""), svg)
    before = None
    while svg != before:  # groups of one
        before, svg = svg, re.sub(r"<g>\s*(<[^g][^<]*?(?:/>|>[^<]*</text>))\s*</g>", r"\1", svg)
    svg = svg.replace(f"font-family: {FONTS}; ", "")
    rules = f"text{{font-family: {FONTS}}}"
    for i, (style, times) in enumerate(Counter(re.findall(r' style="([^"]*)"', svg)).most_common()):
        if times > 2:
            rules += f"\n.s{i}{{{style}}}"
            svg = svg.replace(f' style="{style}"', f' class="s{i}"')
    svg = svg.replace("*{", f"{rules}\n*{{", 1)
    return "".join(line.strip() + "\n" for line in svg.splitlines() if line.strip())


def save(name, folder):
    """Writes the figure at hand as folder/name, SVG without a date. No grid line passes through a label."""
    figure = plt.gcf()
    for label in (text for axis in figure.axes if axis.axison for text in axis.texts):
        label.set_bbox({"facecolor": PANEL, "edgecolor": "none", "pad": 0.6})
    check(figure, name)
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name)
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", bbox_inches="tight", pad_inches=0.12, metadata={"Date": None, "Creator": None})
    plt.close(figure)
    with open(path, "w", encoding="utf-8") as file:
        file.write(compact(drawn.getvalue()))
    print(path)
