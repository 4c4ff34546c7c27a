#!/usr/bin/env python3
# site.py - the notes and pages of runs as a folder of HTML that any web server shows as it is.             (make site DIR=...)
#
#     python3 common/plots/site.py FOLDER BUILD        BUILD: programs with the trace
#
# Begins with README.md and follows links: a .md becomes a page, a source file a page with numbered lines, a picture is copied. The
# layout is that of the tree, so that links stay as they are but for their ends. Needs Python's markdown package.
import html
import os
import re
import shutil
import subprocess
import sys

try:
    import markdown
except ImportError:
    print("make site needs Python's markdown package: install python3-markdown, or use pip install markdown", file=sys.stderr)
    sys.exit(2)

# What a page of runs shows: the stage, those before it that stand beside it, the problem, and why one opens it.
WATCHED = (
    ("04_fa2", ("03_fa1",), "--heads 1 --seqlen 128 --seqlen-k 512", "FlashAttention-1 beside FlashAttention-2",
     "Why one stores O again and again, and the other once."),
    ("05_fa2_backward", (), "--heads 1 --seqlen 128", "The backward pass", "Why dQ has to be added by many blocks."),
    ("07_flash_decoding", (), "--heads 8 --kv-heads 2 --seqlen-k 2048", "Decoding", "How splits of the keys give more blocks work."),
    ("08_fa3", (), "--heads 1 --seqlen 512", "FlashAttention-3", "How copies, products and the softmax are divided among warps."),
    ("10_block_sparse", (), "--heads 1 --seqlen 1024 --blocks sink:128:256", "A mask of blocks", "Which tiles are skipped, and what that saves."),
)
STYLE = """:root{--back:#fff;--text:#1b1f24;--soft:#5b6570;--line:#d5dbe1;--panel:#f5f7f9;--link:#0a58ca}
@media screen and (prefers-color-scheme:dark){:root{--back:#15191e;--text:#e8ebee;--soft:#a3abb4;--line:#3a424b;--panel:#1e242b;--link:#7db4ff}}
body{margin:0 auto;max-width:54rem;padding:0 1rem 3rem;background:var(--back);color:var(--text);font:16px/1.55 system-ui,sans-serif}
a{color:var(--link)}nav{border-bottom:1px solid var(--line);padding:.6rem 0;font-size:15px}nav a{margin-right:1rem}
h1,h2,h3{line-height:1.25;margin:1.6em 0 .6em}img{max-width:100%;height:auto}blockquote{margin:1em 0;padding:0 1em;border-left:3px solid var(--line)}
pre,.table{overflow-x:auto}pre{background:var(--panel);border:1px solid var(--line);border-radius:6px;padding:.7em}
@media (min-width:60rem){pre{width:fit-content;min-width:100%;max-width:calc(50vw + 25rem);box-sizing:border-box}}
code{font:14px/1.45 ui-monospace,monospace}table{border-collapse:collapse;font-size:15px}td,th{border:1px solid var(--line);padding:.25em .6em;vertical-align:top}
summary{cursor:pointer}.lines a{color:var(--soft);text-decoration:none;display:inline-block;width:4ch;margin-right:2ch;text-align:right}"""


def page(path, title, body):
    """An HTML document for the file at `path` of the site."""
    up = "../" * path.count("/")
    watched = "".join(f'<a href="{up}watch/{stage}.html">{stage[:2]}</a>' for stage, *_ in WATCHED)
    return (f'<!DOCTYPE html>\n<html lang="en">\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">\n'
            f'<title>{html.escape(title)}</title>\n<link rel="icon" href="data:,">\n<style>\n{STYLE}\n</style>\n'
            f'<nav><a href="{up}index.html">Start</a><a href="{up}notes/README.html">Notes</a>Watch: {watched}</nav>\n{body}\n</html>\n')


def target(path):
    """Where the site has a file of the tree."""
    if path == "README.md":
        return "index.html"
    if os.path.isdir(path):
        return os.path.join(path, "index.html")
    if path.endswith(".md"):
        return path[:-3] + ".html"
    if path.endswith(".html"):  # a page of a run that lies beside its note: the site has one of its own
        return "watch/" + os.path.basename(path)
    return path if path.endswith((".svg", ".txt")) else path + ".html"


def anchor(heading, _):
    """A heading's name in links, as code hosts make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def linked(base, link):
    """(the file of the tree that a link of the page `base` leads to, its anchor), or None for other links."""
    if re.match(r"[a-z]+:|#", link):
        return None
    file, _, place = link.partition("#")
    return os.path.normpath(os.path.join(os.path.dirname(base), file)), place


class Site:
    def __init__(self, folder):
        self.folder, self.waiting, self.seen = folder, ["README.md", "notes/README.md"], set()

    def write(self, path, text):
        whole = os.path.join(self.folder, path)
        os.makedirs(os.path.dirname(whole), exist_ok=True)
        with open(whole, "w", encoding="utf-8") as file:
            file.write(text)

    def follow(self, base, link):
        """The link as the site has it. A folder's is that of its README."""
        found = linked(base, link)
        if not found:
            return link
        file, place = found
        if os.path.isdir(file) and os.path.isfile(os.path.join(file, "README.md")):
            file = os.path.join(file, "README.md")
        if not os.path.exists(file):
            sys.exit(f"site.py: {base}: {link} leads nowhere")
        self.waiting.append(file)
        there = os.path.relpath(target(file), os.path.dirname(target(base)) or ".")
        return there + (f"#{place}" if place else "")

    def note(self, path):
        with open(path, encoding="utf-8") as file:
            text = file.read()
        text = re.sub(r"^<!--.*?-->\n|<!--.*?-->", "", text, flags=re.MULTILINE | re.DOTALL)  # what tables.pl reads
        text = re.sub(r"^```(\w+) .*$", r"```\1", text, flags=re.MULTILINE)
        text = text.replace("<details>", '<details markdown="1">')
        body = markdown.markdown(text, extensions=["tables", "fenced_code", "sane_lists", "md_in_html", "toc"],
                                 extension_configs={"toc": {"slugify": anchor}})
        body = re.sub(r'(href|src)="([^"]*)"', lambda m: f'{m[1]}="{self.follow(path, html.unescape(m[2]))}"', body)
        body = body.replace("<table>", '<div class="table"><table>').replace("</table>", "</table></div>")
        title = re.search(r"^# (.*)", text, re.MULTILINE)[1].replace("`", "")
        if path == "README.md":
            body = body.replace("</h1>", "</h1>\n" + welcome(), 1)
        self.write(target(path), page(target(path), title, body))

    def source(self, path):
        with open(path, encoding="utf-8") as file:
            lines = file.read().split("\n")
        body = "\n".join(f'<a id="L{i}" href="#L{i}">{i}</a>{html.escape(line)}' for i, line in enumerate(lines, 1))
        self.write(target(path), page(target(path), path, f'<h1>{path}</h1>\n<pre class="lines"><code>{body}</code></pre>'))

    def listing(self, path):
        """A folder without a README: its files."""
        names = [name for name in sorted(os.listdir(path)) if os.path.isfile(os.path.join(path, name))]
        items = "".join(f'<li><a href="{self.follow(os.path.join(path, "x"), name)}">{name}</a></li>\n' for name in names)
        self.write(target(path), page(target(path), path, f"<h1>{path}</h1>\n<ul>\n{items}</ul>"))

    def build(self):
        while self.waiting:
            path = self.waiting.pop()
            if path in self.seen or path.endswith(".html"):
                continue
            self.seen.add(path)
            if path.endswith(".md"):
                self.note(path)
            elif os.path.isdir(path):
                self.listing(path)
            elif target(path) == path:
                os.makedirs(os.path.dirname(os.path.join(self.folder, path)), exist_ok=True)
                shutil.copyfile(path, os.path.join(self.folder, path))
            else:
                self.source(path)

    def watch(self, build):
        for stage, before, options, *_ in WATCHED:
            programs = [f"{build}/{name}/{name}" for name in (*before, stage)]
            path = os.path.join(self.folder, "watch", stage + ".html")
            subprocess.run(["sh", "common/classroom/watch.sh", path, options, *programs], check=True, stdout=subprocess.DEVNULL)


def welcome():
    """The list of pages that open, at the top of the first one."""
    items = "".join(f'<li><a href="watch/{stage}.html">{title}</a>: {why}</li>\n' for stage, _, _, title, why in WATCHED)
    return f"<p>Watch kernels of this project tile by tile, in pages made from real runs:</p>\n<ul>\n{items}</ul>"


if __name__ == "__main__":
    if len(sys.argv) != 3 or not sys.argv[1] or os.path.realpath(sys.argv[1]) == os.path.realpath("."):
        print("make site needs DIR=...: the folder that the pages go into, not the project's own", file=sys.stderr)
        sys.exit(2)
    site = Site(sys.argv[1])
    site.build()
    site.watch(sys.argv[2])
    site.write(".nojekyll", "")  # for hosts that would otherwise rewrite the pages
    print(f"{sys.argv[1]}/index.html: open it, or python3 -m http.server --directory {sys.argv[1]}")
