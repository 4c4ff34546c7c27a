# compare.awk - every stage's times, a table a problem and direction.      (make compare)
#
# From the rows that rows.sh prints. A table begins where the problem, or what is computed of it, is another than before. A
# stage that is out of memory, refuses the problem or crashes is a line that says so. Exit code: 0 all agree with 00_naive; 1 one does
# not, or a program broke; 2 nothing ran, or not all of it could be checked.
BEGIN {
    on_gpu = "%-30s %-9s %8s %7s %7s %6s %19s %8s %17s\n"
    on_cpu = "%-30s %-9s %9s %11s %10s %19s %17s\n" # the times are a simulator's: bytes take the place of speeds and ratios
}

(rows, "exit_code") in cell { # all of a program's rows are there
    program = field("program")
    code = field("exit_code") + 0
    reason = field("reason")
    if (first + 1 == rows && code == 2 && reason ~ /^-/) { # a mistake in the options
        print "compare: " reason >"/dev/stderr"
        misused = 1
        exit
    }
    last = rows
    passes = "forward"
    for (rows = first + 1; rows < last; rows++)
        if (field("direction") == "backward")
            passes = "forward and backward"
    wrong = 0
    for (rows = first + 1; rows < last; rows++)
        result()
    if (code > 2 || (code == 1 && !wrong) || reason ~ /^kernel /) {
        ending = code > 128 ? "ended by signal " code - 128 : "exit code " code
        printf "%-30s %s%s\n", program, ending, reason == "" ? "" : ": " reason
        broken = broken " " program
    } else if (first + 1 == last)
        printf "%-30s not run: %s\n", program, reason
    first = last
}

END {
    if (misused)
        exit 2
    if (disagree broken != "")
        print "\nFAIL " (disagree == "" ? "" : " disagree:" disagree) (disagree broken == broken || broken == "" ? "" : ",") \
            (broken == "" ? "" : " broken:" broken)
    else if (unchecked != "")
        print "\nNOT CHECKED " unchecked
    else if (section == "")
        print "\nNOT RUN  nothing can run this problem here"
    else if (!agree)
        print "\nnot validated"
    else
        printf "\nPASS  %d variant%s with 00_naive\n", agree, agree == 1 ? " agrees" : "s agree"
    exit disagree broken != "" ? 1 : unchecked != "" || section == "" ? 2 : 0
}

# One row. Every program runs 00_naive: the first will do. A stage's own rows count, not those of the reference that it runs,
# nor the forward pass that a backward starts from.
function result(    variant, direction, problem, seen) {
    variant = field("variant")
    direction = field("direction")
    problem = "batch " field("batch") ", heads " field("heads") "/" field("kv_heads") \
        ", seqlen " field("seqlen_q") "x" field("seqlen_k") ", head_dim " field("head_dim") ", " field("dtype") \
        ", " (field("causal") == "true" ? "causal" : "full")
    if (section != passes ", " problem) {
        if (section == "")
            print_device()
        section = passes ", " problem
        print "\nproblem  " section
        print_heading()
    }
    seen = problem " " direction
    if (!shown[seen, variant]++) {
        latency[seen, variant] = field("latency_ms") + 0
        print_row(variant, direction == "prepare and forward" ? "prep+fwd" : direction, latency[seen, "00_naive"])
    }
    if (variant != program && index(variant, program "/") != 1)
        return
    if (field("ok") == "false") {
        disagree = disagree " " variant
        wrong = 1
    } else if (is_unchecked())
        unchecked = unchecked " " variant
    else if (field("ok") == "true" && direction != "both" && variant != "00_naive")
        agree++
}

function print_device() {
    print "device   " field("device") (field("cuda") == "" ? "" : ", CUDA " field("cuda")) ", commit " field("commit")
    if (field("cuda") == "")
        print "times    are the simulator's: they say nothing about a GPU, not even which variant is faster"
}

function print_heading() {
    if (field("cuda") == "")
        printf on_cpu, "variant", "direction", "simulated", "bytes moved", "FLOPs/byte", "tensors + workspace",
            "error / allowed"
    else
        printf on_gpu, "variant", "direction", "latency", "TFLOP/s", "of peak", "GB/s", "tensors + workspace", "vs naive",
            "error / allowed"
}

function print_row(variant, direction, naive,    ms, memory, error) {
    if (field("note") != "" && !is_unchecked()) {
        printf "%-30s %-9s %s\n", variant, direction, field("note")
        return
    }
    if (length(variant) > 30)
        variant = sprintf("%s\n%30s", variant, "")
    ms = field("latency_ms") + 0
    memory = bytes(field("tensor_bytes") + 0) " + " bytes(field("workspace_bytes") + 0)
    error = is_unchecked() ? "not checked" : "-"
    if (field("ok") != "")
        error = sprintf("%.1e / %.1e", field("worst_error"), field("allowed_error"))
    if (field("cuda") == "")
        printf on_cpu, variant, direction, time(ms), (field("gpu_bytes") == "" ? "-" : bytes(field("gpu_bytes") + 0)),
            known("gpu_flops_per_byte", ""), memory, error
    else
        printf on_gpu, variant, direction, time(ms), known("tflops", ""), known("percent_of_peak", "%"), known("gbps", ""),
            memory, (naive > 0 ? number(naive / ms, "x") : "-"), error
}

# It ran, and was compared, but rounding alone may change half of its result.
function is_unchecked() { return field("worst_error") != "" && field("ok") == "" }

# The value of a field in the row at hand; "": not known.
function field(name) { return cell[rows, name] == "null" ? "" : cell[rows, name] }

# Figures as the programs print them; + 0, for a cell is a string.
function number(n, unit) { return sprintf((n < 0.1 ? "%.4f" : n < 10 ? "%.2f" : n < 100 ? "%.1f" : "%.0f") "%s", n, unit) }
function known(name, unit) { return field(name) + 0 > 0 ? number(field(name) + 0, unit) : "-" }
function time(ms) { return ms < 1 ? number(ms * 1000, " us") : ms < 1000 ? number(ms, " ms") : number(ms / 1000, " s") }
function bytes(n) {
    return n == 0 ? "0" : n < 2^20 ? number(n / 2^10, " KiB") : n < 2^30 ? number(n / 2^20, " MiB") : number(n / 2^30, " GiB")
}
