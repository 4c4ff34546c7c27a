# diff.sh - the lesson between two kernels: what the second changes in the first.                            (make diff-04)
#
#     sh common/classroom/diff.sh 04           the kernel that 04 builds on, and the first of 04
#     sh common/classroom/diff.sh 03-04        the last variant of stage 03 and the first of stage 04
#     sh common/classroom/diff.sh 04.1-04.2    any two
#
# Variants are numbered in the order of the stage's main.c; the kernel of variant X is <stage>/X.cu. Which stage builds on which says
# common/ladder.txt. The comment at the top of a kernel is left out. The last line counts lines of code alone: no comments, no blank
# lines, and space does not matter.
stop() { echo "diff.sh: $1" >&2; exit 2; }

ladder() { sed 's/#.*//' common/ladder.txt | awk 'NF'; }
kernels() { # of a stage given by its number
    stage=$(ladder | awk -v n="$1" 'index($1, n "_") == 1 {print $1}')
    [ "$stage" ] || stop "$1: there is no such stage, choose from $(ladder | sed 's/_.*//' | xargs)"
    names=$(sed -n '/\.variants/,$s/.*\.name *= *"\([^"]*\)".*/\1/p' "$stage/main.c")
    for name in $names; do
        [ -e "$stage/$name.cu" ] && echo "$stage/$name.cu"
    done
    [ "$names" ] || ls "$stage"/*.cu # a stage without variants
}
kernel() { # "04.2"; or "04" and which one stands for the stage: 1p the first, $p the last
    files=$(kernels "${1%.*}") || exit
    case $1 in *.*) file=$(echo "$files" | sed -n "${1#*.}p") ;; *) file=$(echo "$files" | sed -n "$2") ;; esac
    [ "$file" ] || stop "$1: choose from $(echo "$files" | awk -v n="${1%.*}" '{printf "%s%s.%d (%s)", (NR > 1 ? ", " : ""), n, NR, $1}')"
    echo "$file"
}

case $1 in
[0-9][0-9]) base=$(ladder | awk -v n="$1" 'index($1, n "_") == 1 {print $2}') new=$1 old=${base%%_*}
    case $base in */*) old=$old.$(kernels "$old" | grep -nx "$base.cu" | cut -d: -f1) ;; esac
    [ "$old" != - ] || stop "$1 builds on no other stage: choose two, like 03-04" ;;
*-*) old=${1%-*} new=${1#*-} ;;
esac
for number in "$old" "$new"; do
    echo "$number" | grep -Eqx '[0-9]{2}(\.[1-9][0-9]*)?' || stop "${1:+$1: }choose a stage, like 04, or two kernels, like 03-04 or 04.1-04.2"
done
old=$(kernel "$old" '$p') && new=$(kernel "$new" 1p) || exit

scratch=$(mktemp -d) && trap 'rm -rf "$scratch"' EXIT
for file in "$old" "$new"; do
    mkdir -p "$scratch/${file%/*}"
    awk 'NR == 1 && /^\/\*/ {head = 1} !head; head && /\*\// {head = 0; print "/* ... */"}' "$file" >"$scratch/$file"
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
    }' "$file" | grep '[^[:space:]]' >"$scratch/$file.code"
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
