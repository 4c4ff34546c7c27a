# diff.sh - the lesson between two kernels: what the second changes in the first.                            (make diff-04)
#
#     sh common/classroom/diff.sh 04                   each kernel that 04 builds on, and the one of 04 that does
#     sh common/classroom/diff.sh 03-04                the last kernel of stage 03 and the first of stage 04
#     sh common/classroom/diff.sh loop_swap-split_q    any two; where several stages have the name: 03_fa1.fma
#
# The kernel of variant X is <stage>/X.cu, and a stage's kernels have the order of its main.c. Which stage builds on which says
# common/ladder.txt. If two variants launch one kernel, it is in a header of their folder, and is shown in place of the line that
# includes it. The comment at the top of a file is left out. The last line counts lines of code alone: no comments, no blank lines,
# and space does not matter.
name=diff
. common/classroom/tools.sh

ladder() { sed 's/#.*//' common/ladder.txt | awk 'NF'; }
kernels() { # all, as 04_fa2.split_q
    ladder | while read -r stage rest; do
        names=$(sed -n '/\.variants/,$s/.*\.name *= *"\([^"]*\)".*/\1/p' "$stage/main.c")
        for name in ${names:-$(cd "$stage" && ls ./*.cu | sed 's/..\(.*\)\.cu/\1/')}; do # there are stages without variants
            [ -e "$stage/$name.cu" ] && echo "$stage.$name"
        done
    done
}
kernel() { # the file of the kernel with this name, or of a stage the first or the last (1p, $p)
    asked=$1 found=
    stage=$(ladder | awk -v name="$asked" '$1 == name || substr($1, 1, 2) == name {print $1; exit}') # of a number the first
    [ ! "$stage" ] || found=$(kernels | grep "^$stage\\." | sed -n "$2")
    [ "$found" ] || found=$(kernels | grep -E "(^|\\.)$asked\$")
    set -- $found
    case $# in
    1) echo "${found%.*}/${found#*.}.cu"; return ;;
    0) found=$(kernels | grep -e "\\.$(printf %.1s "$asked")" -e "^${asked%%.*}[._]") ;; # similar ones
    esac
    stop "$asked: choose from $(echo ${found:-$(kernels | cut -c 1-2 | uniq), or a kernel\'s name})"
}

case $1 in
*-*) old=${1%%-*} new=${1#*-} ;;
*) pairs=$(ladder | awk -v name="$1" '$1 == name || substr($1, 1, 2) == name {
        gsub("/", ".", $2)
        count = split($2, bases, ",") # of "03_fa1.fma,epilogue:03_fa1.fa1"
        for (i = 1; i <= count; i++) print (split(bases[i], base, ":") == 2 ? base[2] "-" $1 "." base[1] : bases[i] "-" $1)
    }')
    [ "${pairs#--}" = "$pairs" ] || stop "$1 builds on no other stage: choose two, like 03-04"
    for pair in $pairs; do sh "$0" "$pair" || exit; done
    [ ! "$pairs" ] || exit 0 ;;
esac
[ "$old" ] || stop "${1:+$1: }choose a stage, like 04, or two kernels, like 03-04 or loop_swap-split_q"
old=$(kernel "$old" '$p') && new=$(kernel "$new" 1p) || exit

body() { awk 'NR == 1 && /^\/\*/ {head = 1} !head; head && /\*\// {head = 0; print "/* ... */"}' "$1"; } # without the comment at the top

scratch=$(mktemp -d) && trap 'rm -rf "$scratch"' EXIT
for file in "$old" "$new"; do
    mkdir -p "$scratch/${file%/*}"
    header=$(grep -q __global__ "$file" || sed -n 's/^#include "\([^/]*\)"$/\1/p' "$file") show=
    if [ "$header" ]; then
        body "${file%/*}/$header" | sed '/^#.* FA_/d; /^#endif$/d' >"$scratch/header" # without its include guard
        show="/^#include \"$header\"\$/ {
            r $scratch/header
            d
        }"
    fi
    body "$file" | sed "$show" >"$scratch/$file"
    awk '{text = text $0 "\n"} END { # strings are passed over: they may hold what looks like a comment
        while (match(text, /\/\*|\/\/|"([^"\\]|\\.)*"|\047([^\047\\]|\\.)+\047/)) {
            token = substr(text, RSTART, RLENGTH)
            code = code substr(text, 1, RSTART - 1)
            text = substr(text, RSTART + RLENGTH)
            if (token == "/*") text = substr(text, index(text, "*/") + 2)
            else if (token == "//") text = substr(text, index(text, "\n"))
            else code = code token
        }
        print code text
    }' "$scratch/$file" | grep '[^[:space:]]' >"$scratch/$file.code"
done
cd "$scratch" || exit
if command -v git >/dev/null; then
    git --no-pager diff --no-index -w "$old" "$new"
else
    diff -uw "$old" "$new"
fi
diff -dw "$old.code" "$new.code" >lines
echo
echo "$old to $new: $(grep -c '^<' lines) lines of code go, $(grep -c '^>' lines) come"
