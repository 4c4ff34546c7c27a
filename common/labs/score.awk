# score.awk - the points of a kernel, by what the trace counted. Behind rows.awk; lab.sh writes an END with the expressions of the
# lab, which fill worth, of, yours and most, or least, counted and bound. Prints a line for each, then the sum of the points alone.
# Exit code: 1 if fewer was counted than any kernel needs, so that something escaped the trace.
function score(    i, points) {
    for (i = 1; i <= bounds; i++)
        if (counted[i] < bound[i]) {
            printf "refused: %s, %g counted, but no kernel needs fewer than %g: something escaped the trace\n0\n", least[i], counted[i], bound[i]
            exit 1
        }
    for (i = 1; i <= scores; i++) {
        printf "%-60s %8.2f, at most %.2f: %d of %d points\n", of[i], yours[i], most[i], yours[i] <= most[i] ? worth[i] : 0, worth[i]
        if (yours[i] <= most[i])
            points += worth[i]
    }
    print points + 0
}
