# unlink.awk - a page of notes in which links to files that a copy leaves out are plain text.                (student_tree.sh)
#
#     awk -v folder=notes/ -f unlink.awk left_out page.md             left_out: paths from the repository's folder, one a line
FNR == NR { left_out[$0]; next }
{ text = text $0 "\n" }

# The file that a link in a page of `folder` leads to.
function target(link) {
    sub(/#.*/, "", link)
    sub(/\/$/, "", link)
    link = folder link
    while (sub(/[^\/]+\/\.\.\//, "", link))
        ;
    return link
}
END { # a link's words may go over two lines
    while (match(text, /\[[^][]*\]\([^()]*\)/)) {
        link = substr(text, RSTART, RLENGTH)
        middle = index(link, "](")
        printf "%s", substr(text, 1, RSTART - 1)
        if (target(substr(link, middle + 2, length(link) - middle - 2)) in left_out)
            link = substr(link, 2, middle - 2)
        printf "%s", link
        text = substr(text, RSTART + RLENGTH)
    }
    printf "%s", text
}
