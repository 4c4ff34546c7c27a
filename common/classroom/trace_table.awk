# trace_table.awk - what the kernels of all stages do to memory, a line a variant, from the rows of --trace --json.   (make trace)
#
# Exit code: 1 if a program failed, or found a race or a wrong formula.
BEGIN {
    format = "%-30s %7s %7s %7s %9s %6s %7s %7s %10s %9s %5s %5s\n"
    printf format, "", "read", "written", "of S, P", "each byte", "FLOPs", "sectors", "shared", "wavefronts", "mma FLOPs", "exp", ""
    printf format, "variant", "KiB", "KiB", "KiB", "moved", "a byte", "/ ideal", "KiB", "/ ideal", "/ needed", "10^3", "races"
}

(rows, "attention_flops") in cell { # a variant's last row
    variant = "variant=" cell[rows, "variant"]
    device = variant ", tensor=.*"
    shared = variant ", memory=.*"
    flops = cell[rows, "attention_flops"]
    requested = cell[rows, "requested_bytes"]
    name = cell[rows, "variant"]
    if (length(name) > 30)
        name = sprintf("%s\n%30s", name, "")
    printf format, name, kib("bytes_read", device), kib("bytes_written", device),
        kib("bytes_read bytes_written", variant ", tensor=[SP]"), ratio(requested, cell[rows, "unique_bytes"], "%.1f x"),
        ratio(flops, requested, "%.1f"), ratio(sum("sectors_read sectors_written", device), sum("ideal_read ideal_written", device), "%.2f"),
        kib("bytes_read bytes_written", shared),
        ratio(sum("wavefronts_read wavefronts_written", shared), sum("ideal_read ideal_written", shared), "%.2f"),
        ratio(sum("mma_flops", variant), flops, "%.2f"), sprintf("%.0f", sum("exponentials", variant) / 1000), count(variant ", race=.*")
}
cell[rows, "exit_code"] + 0 > 0 {
    printf "%-30s exit code %s\n", cell[rows, "program"], cell[rows, "exit_code"]
    failed = 1
}
END { exit failed }

function kib(fields, where) { return sprintf("%.0f", sum(fields, where) / 1024) }
function ratio(a, b, digits) { return a > 0 && b > 0 ? sprintf(digits, a / b) : "-" }
