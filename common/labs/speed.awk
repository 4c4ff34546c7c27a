# speed.awk - a kernel's time on a GPU beside ours, in one line. Behind rows.awk; code: of what was built and run; said: the first line of it.
END {
    yours = largest("launch_ms", "")
    our_ms = largest("latency_ms", "variant=" ours)
    if (code || !yours || !our_ms)
        printf "on this GPU: not measured, %s\n", said != "" ? said : "there was no time among what was printed"
    else
        printf "on this GPU: %.3g ms, and %.3g ms for our %s (%s): %.0f%% of our speed\n", yours, our_ms, ours, at, 100 * our_ms / yours
}
