#!/bin/sh
# watch.sh - runs programs under the trace and makes one page of what they did: common/trace/watch.html with their data in it.
#                                                                                                   (make watch-<stage>)
#     sh common/classroom/watch.sh PAGE OPTIONS PROGRAM...
#
# The last program is the stage, those before it stand beside it, at first with the kernel that common/ladder.txt says it builds
# on; one that cannot run this problem is left out. Only files are taken in that a cost stands in. Exit code: the stage's, 1 if there is a race or a wrong formula (make trace-<stage> says where).
export LC_ALL=C
page=$1 options=$2 code=0 comma= sources= before=
shift 2
mkdir -p "$(dirname "$page")"
printf '[' >"$page.data"
for program; do
    said=$($program --watch "$page.json" --json $options 2>&1 >/dev/null)
    code=$?
    [ ! "$said" ] || [ "${said#*: }" = "$before" ] || echo "$said" >&2 # what is wrong for all of them is said once
    before=${said#*: }
    [ $code -gt 1 ] && continue
    { printf '%s' "$comma"; cat "$page.json"; } >>"$page.data"
    comma=,
    sources="$sources $(basename "$program")/*.cu*"
done
if [ $code -le 1 ]; then
    printf ']' >>"$page.data"
    for file in $sources 00_naive/*.cu common/gpu/*.cuh; do
        grep -q "[\" ]$(basename "$file"):" "$page.data" || continue
        printf '<script type="text/plain" class="source" data-file="%s">\n' "$file"
        sed 's/<\/script/<_script/g' "$file"
        echo '</script>'
    done >"$page.sources"
    beside=$(awk -v stage="$(basename "$program")" '$1 == stage { sub(/,.*/, "", $2); print $2 }' common/ladder.txt)
    sed -e "s|@BESIDE@|$beside|" -e "/^@DATA@\$/{r $page.data" -e 'd;}' -e "/^@SOURCES@\$/{r $page.sources" -e 'd;}' common/trace/watch.html >"$page" || code=2
    echo "open $page in a browser (options: $options)"
fi
rm -f "$page.json" "$page.data" "$page.sources"
exit $code
