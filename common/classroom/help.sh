# help.sh - the targets of a Makefile: each line `target: ... ## what it does`, in the file's order.      (make help)
#
#     sh common/classroom/help.sh STAGES MAKEFILE
export LC_ALL=C
echo "make <stage>         build one stage; then run it: ./<stage>/<stage> --help"
echo "stages: $1" | fold -s -w 110 | sed 's/^/    /'
sed -n 's/^$(STAGES:%=\([a-z-]*\)%)/\1<stage>/; s/^diff-%/diff-<stage>/; s/^\([a-z0-9_.<>-]*\):.*## \(.*\)/\1|\2/p' "$2" |
    while IFS='|' read -r target does; do printf 'make %-15s %s\n' "$target" "$does"; done
echo "Names in capitals are variables, as in make trace TRACE_OPTIONS=\"--seqlen 512\". For options, see <stage> --help."
