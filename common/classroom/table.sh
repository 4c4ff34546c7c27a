# table.sh - the table that an awk script makes of a program's rows, no wider than the terminal.      (make compare, make trace)
#
#     ROWS | sh common/classroom/table.sh SCRIPT [VARIABLE=VALUE...]        SCRIPT: common/classroom/SCRIPT.awk, after rows.awk
#
# The script gets `width`, the columns of the terminal or, if stdout is a file or a pipe, 120.
. common/classroom/tools.sh
script=$1
shift
for variable; do
    set -- "$@" -v "$variable"
    shift
done
line_width
exec awk -v width="$width" "$@" -f common/classroom/rows.awk -f "common/classroom/$script.awk"
