#!/bin/sh
# watch.sh - runs programs under the trace and makes one page of what they did: common/trace/watch.html with their data in it.
#                                                                                                   (make watch-<stage>)
#     sh common/classroom/watch.sh PAGE OPTIONS PROGRAM...
#
# The last program is the stage, those before it stand beside it; one that cannot run this problem is left out. Exit code: the
# stage's, 1 if there is a race (make trace-<stage> says where).
page=$1 options=$2 code=0 comma=
shift 2
data=$page.json
mkdir -p "$(dirname "$page")"
printf '[' >"$data.all"
for program; do
    $program --watch "$data" --json $options >/dev/null
    code=$?
    [ $code -gt 1 ] && continue
    printf '%s' "$comma" >>"$data.all"
    cat "$data" >>"$data.all"
    comma=,
done
if [ $code -le 1 ]; then
    printf ']' >>"$data.all"
    sed -e "/^@DATA@\$/{r $data.all" -e 'd;}' common/trace/watch.html >"$page" || code=2
    echo "open $page in a browser (options: $options)"
fi
rm -f "$data" "$data.all"
exit $code
