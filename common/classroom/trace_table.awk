# trace_table.awk - what the kernels of all stages do to memory, a line per variant, from the rows of --trace --json.   (make trace)
#
# Exit code: 1 if a program failed, or found a race or a wrong formula; 2 if an option is wrong, which is said once.
BEGIN {
    width = width ? width : 120
    # title and unit, places, and when a narrow terminal leaves the column out: 1 first
    column("read", "KiB", 8)
    column("written", "KiB", 8)
    column("of S, P", "KiB", 8, 5)
    column("each byte", "moved", 10, 3)
    column("FLOPs", "a byte", 7)
    column("sectors", "/ ideal", 8)
    column("shared", "KiB", 8, 4)
    column("wavefronts", "/ ideal", 11)
    column("mma FLOPs", "/ needed", 10, 1)
    column("exp", "10^3", 6, 2)
    column("", "races", 6)
    for (i = 1; i <= 5 && total + 30 > width; i++)
        for (c = 1; c <= columns; c++)
            if (left_out[c] == i) {
                total -= places[c]
                places[c] = 0
            }
}
function print_heading() {
    if (headed++)
        return
    print_line("", title)
    print_line("variant", unit)
}

(rows, "attention_flops") in cell { # a variant's last row
    print_heading()
    variant = "variant=" cell[rows, "variant"]
    device = variant ", tensor=.*"
    shared = variant ", memory=.*"
    flops = cell[rows, "attention_flops"]
    requested = cell[rows, "requested_bytes"]
    figure[1] = kib("bytes_read", device)
    figure[2] = kib("bytes_written", device)
    figure[3] = kib("bytes_read bytes_written", variant ", tensor=[SP]")
    figure[4] = ratio(requested, cell[rows, "unique_bytes"], "%.1f x")
    figure[5] = ratio(flops, requested, "%.1f")
    figure[6] = ratio(sum("sectors_read sectors_written", device), sum("ideal_read ideal_written", device), "%.2f")
    figure[7] = kib("bytes_read bytes_written", shared)
    figure[8] = ratio(sum("wavefronts_read wavefronts_written", shared), sum("ideal_read ideal_written", shared), "%.2f")
    figure[9] = ratio(sum("mma_flops", variant), flops, "%.2f")
    figure[10] = sprintf("%.0f", sum("exponentials", variant) / 1000)
    figure[11] = count(variant ", race=.*")
    print_line(cell[rows, "variant"], figure)
}
cell[rows, "exit_code"] + 0 > 0 {
    if (cell[rows, "exit_code"] == 2 && cell[rows, "reason"] ~ /^-/) {
        print "trace: " cell[rows, "reason"] >"/dev/stderr"
        failed = 2
        exit
    }
    print_heading()
    ending = sprintf("%-30s exit code %s", cell[rows, "program"], cell[rows, "exit_code"])
    print substr(ending (cell[rows, "reason"] == "" ? "" : ": " cell[rows, "reason"]), 1, 120)
    failed = 1
}
END { exit failed }

function column(name, of, wide, leave) {
    title[++columns] = name
    unit[columns] = of
    total += places[columns] = wide
    left_out[columns] = leave
}
function print_line(name, cells,    c, line) {
    line = sprintf(length(name) > 30 ? "%s\n%30s" : "%-30s", name, "")
    for (c = 1; c <= columns; c++)
        if (places[c])
            line = line sprintf("%" places[c] "s", cells[c])
    print line
}
function kib(fields, where) { return sprintf("%.0f", sum(fields, where) / 1024) }
function ratio(a, b, digits) { return a > 0 && b > 0 ? sprintf(digits, a / b) : "-" }
