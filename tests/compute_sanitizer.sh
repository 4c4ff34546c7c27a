# compute_sanitizer.sh GRID... - the grid programs under compute-sanitizer's four tools (make sanitize, on a GPU).
#
# compute-sanitizer slows a kernel down a hundred times, so it gets a third of the quick grid's points: about 50 a variant, in
# every dtype, head dim and mask, one to five tiles long. Ends at the first tool that finds something.
for grid; do
    for tool in memcheck racecheck synccheck initcheck; do
        start=$(date +%s)
        log=$(dirname "$grid")/$tool.log
        printf '%-9s %-23s ' $tool "${grid##*/}"
        GRID_EVERY=${GRID_EVERY:-24} compute-sanitizer --tool $tool --error-exitcode 1 --log-file "$log" "$grid" --quick >/dev/null ||
            { cat "$log"; exit 1; }
        echo "$(tail -n 1 "$log"), $(($(date +%s) - start)) s"
    done
done
