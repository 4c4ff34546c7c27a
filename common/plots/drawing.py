# drawing.py - how every picture of the tree looks. For plots.py and pictures.py.
#
# SVG on an opaque pale panel with dark text, so that a picture reads alike on paper, on a white page and on a dark one.
# Colours are of middle tone and never alone: markers and dashes tell lines apart as well. The same data gives the same
# file, byte for byte.
import os
import sys

try:
    import matplotlib
except ImportError:
    print("plots need matplotlib: pip install matplotlib", file=sys.stderr)
    sys.exit(2)

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402: the backend comes first

PANEL, INK, FAINT = "#fafaf7", "#222222", "#c9c9c2"

matplotlib.rcParams.update({
    "svg.hashsalt": "attention", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9,
    "figure.facecolor": PANEL, "savefig.facecolor": PANEL, "axes.facecolor": PANEL, "axes.edgecolor": FAINT,
    "axes.labelcolor": INK, "text.color": INK, "xtick.color": INK, "ytick.color": INK, "axes.titlesize": 9,
    "axes.grid": True, "grid.color": FAINT, "grid.linewidth": 0.5, "axes.axisbelow": True,
    "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
})

# One look a variant: colour, marker, dashes. Colours that the colour-blind can tell apart (Okabe and Ito), darker for print.
LOOKS = {
    "00_naive": ("#6b6b6b", "o", "-"),
    "01_tiled/fma": ("#c98500", "s", "--"),
    "01_tiled/mma": ("#8f5a00", "s", "-"),
    "02_online_softmax/fma": ("#2f93cf", "^", "--"),
    "02_online_softmax/online": ("#2f93cf", "^", "-"),
    "03_fa1/fma": ("#b85a91", "D", "--"),
    "03_fa1/fa1": ("#b85a91", "D", "-"),
    "04_fa2/epilogue": ("#b85a91", "d", ":"),
    "04_fa2/loop_swap": ("#005a91", "v", "--"),
    "04_fa2/split_q": ("#007a58", "P", "--"),
    "04_fa2/tuned": ("#007a58", "p", "-"),
    "05_fa2_backward/two_pass": ("#b04a00", "<", "--"),
    "05_fa2_backward/atomic": ("#b04a00", ">", "-"),
    "06_fp8/mma": ("#7a4fb5", "h", "--"),
    "06_fp8/wgmma": ("#7a4fb5", "*", "-"),
    "07_flash_decoding/one_block": ("#5f6f00", "X", "--"),
    "07_flash_decoding/split_k": ("#5f6f00", "p", ":"),
    "07_flash_decoding/equal_shares": ("#5f6f00", "p", "-"),
    "08_fa3/wgmma": ("#a32020", "1", ":"),
    "08_fa3/specialised": ("#a32020", "2", "--"),
    "08_fa3/overlapped": ("#a32020", "3", "-"),
}


def look(variant):
    colour, marker, dashes = LOOKS.get(variant, (INK, ".", "-"))
    return {"color": colour, "marker": marker, "linestyle": dashes, "markersize": 4.5, "linewidth": 1.4}


def save(figure, name, folder):
    """Writes folder/name as SVG, without a date."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name)
    figure.savefig(path, format="svg", bbox_inches="tight", pad_inches=0.12, metadata={"Date": None, "Creator": None})
    plt.close(figure)
    # matplotlib leaves blanks at the ends of lines
    with open(path) as file:
        text = "".join(line.rstrip() + "\n" for line in file)
    with open(path, "w") as file:
        file.write(text)
    print(path)
