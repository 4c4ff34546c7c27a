# compare.awk - all stages that solve the same problem, side by side: one table per problem and direction.        (make compare)
#
# From the rows that rows.sh prints; table.sh says how wide the terminal is. A stage stands in the table of each problem that it
# solves, in the order of the ladder, below one row of 00_naive. A variant that prepares its inputs has the time of both. What is
# out of memory, refuses the problem or crashes is a line that says so. With plot=FILE the tables also go there, for
# common/plots/compare.py. Exit code: 0 all agree with 00_naive; 1 one does not, or a program broke; 2 nothing ran, or not all of it
# could be checked.
BEGIN { width = width ? width : 120 }

(rows, "exit_code") in cell { # all of a program's rows are there
    program = field("program")
    code = field("exit_code") + 0
    reason = field("reason")
    options = field("options")
    last = rows
    wrong = 0
    for (rows = first + 1; rows < last; rows++)
        result()
    if (first + 1 == last && code == 2 && reason ~ /^-/) # it does not know the option, or not this value
        refused[++refusals] = program
    else
        taken[options] = 1
    refusal[program] = reason
    options_of[program] = options
    if (code > 2 || (code == 1 && !wrong) || reason ~ /^kernel /) {
        ending = code > 128 ? "ended by signal " code - 128 : "exit code " code
        remark[++remarks] = program "  " ending (reason == "" ? "" : ": " reason)
        broken = broken " " program
    } else if (first + 1 == last && refused[refusals] != program)
        remark[++remarks] = program "  not run: " reason
    first = rows = last
}

END {
    check_options()
    print_device()
    for (t = 1; t <= tables; t++)
        print_table(t)
    if (remarks + refusals)
        print ""
    for (i = 1; i <= remarks; i++)
        print remark[i]
    print_left_out()
    print_verdict()
    exit disagree broken != "" ? 1 : unchecked != "" || !tables ? 2 : 0
}

# ---- from rows to tables: entry[t, i] is the row of table t that is printed in line i, judged[t, i] the one with its error ----

# One row. A stage's own rows count, and 00_naive's, but neither the forward pass that a backward starts from, nor the two together,
# nor a preparation alone.
function result(    variant, direction, is_own, t, base) {
    variant = field("variant")
    direction = field("direction")
    is_own = variant == program || index(variant, program "/") == 1
    if (is_own)
        judge(variant)
    if (direction == "both" || direction == "prepare" || !(is_own || variant == "00_naive"))
        return
    base = variant
    if (direction == "prepare and forward") { # 06_fp8/quantise+mma takes the place of 06_fp8/mma
        sub(/[^\/]*\+/, "", base)
        direction = "forward"
    }
    t = table_of(direction ", " problem())
    base = t SUBSEP base SUBSEP (variant == "00_naive" ? "" : method())
    if (!(base in place)) {
        place[base] = variant == "00_naive" ? 0 : ++lines[t]
        judged[t, place[base]] = rows
    } else if (variant == "00_naive")
        return # every program runs it: the first will do
    entry[t, place[base]] = rows
}

function judge(variant) {
    if (field("ok") == "false") {
        disagree = disagree " " variant
        wrong = 1
    } else if (is_unchecked(rows))
        unchecked = unchecked " " variant
    else if (field("ok") == "true" && variant != "00_naive") {
        agree++
        note_unchecked(field("note"))
    }
}

# "not checked: rounding alone may change dQ by 1e-07, and it is at most 0; dK by ...": the tensors' names, each once.
function note_unchecked(note,    part, name) {
    if (note !~ /^not checked: rounding alone may change /)
        return
    sub(/^.* may change /, "", note)
    for (part = split(note, parts, "; "); part >= 1; part--) {
        name = substr(parts[part], 1, index(parts[part], " ") - 1)
        if (!(name in named))
            unchecked_tensors = name (unchecked_tensors == "" ? "" : ", ") unchecked_tensors
        named[name]
    }
}

function table_of(title) {
    if (!(title in number_of)) {
        number_of[title] = ++tables
        title_of[tables] = title
    }
    return number_of[title]
}

# What is computed, as the programs say it. A stage's own options say how, all but the block mask.
function problem(    text) {
    text = "batch " field("batch") ", heads " field("heads") "/" field("kv_heads") \
        ", seqlen " field("seqlen_q") "x" field("seqlen_k") ", head_dim " field("head_dim") ", " field("dtype") ", " (field("causal") == "true" ? "causal" : "full")
    if (match(field("settings"), /blocks=[^;]*/) && substr(field("settings"), RSTART + 7, RLENGTH - 7) != "all")
        text = text ", blocks " substr(field("settings"), RSTART + 7, RLENGTH - 7)
    if (field("lengths") != "")
        text = text ", key lengths " field("lengths")
    if (field("scale") != "" && size(field("scale") * field("scale") * field("head_dim") - 1) > 1e-6)
        text = text ", scale " field("scale") + 0
    return text (field("inputs") == "normal" || field("inputs") == "" ? "" : ", inputs " field("inputs"))
}
function method(    text) {
    text = field("settings")
    sub(/blocks=[^;]*;?/, "", text)
    if (!((field("stage"), text) in known)) {
        known[field("stage"), text] = 1
        methods[field("stage")]++
    }
    return text
}

# ---- tables ----

function print_table(t,    names, columns, column, i, c, line) {
    compare_with(t)
    names = "latency|of fastest|vs naive|" (field_of(entry[t, any], "read_gbps") == "" ? "TFLOP/s|of peak" : "GB/s")
    if (field_of(entry[t, any], "cuda") == "")
        names = "bytes moved|vs fewest|FLOPs/byte|simulated"
    columns = split(names "|tensors + workspace|error / allowed", column, "|")
    print ""
    print_wrapped("problem  " title_of[t])
    for (i = 0; i <= lines[t]; i++)
        if ((t, i) in entry)
            fill(t, i, columns, column)
    set_widths(t, columns, column)
    line = sprintf("%-" wide["variant"] "s", "variant")
    for (c = 1; c <= columns; c++)
        if (wide[column[c]])
            line = line sprintf("%" wide[column[c]] "s", column[c])
    print line
    for (i = 0; i <= lines[t]; i++)
        if ((t, i) in entry)
            print_line(t, i, columns, column)
}

# What the table's lines are compared with. `any` is one of them, whichever, to ask for what all have in common.
function compare_with(t,    i, ms, bytes) {
    any = fastest = fewest = naive_ms = 0
    for (i = 0; i <= lines[t]; i++) {
        if (!((t, i) in entry)) # 00_naive does not run with --no-validate
            continue
        ms = field_of(entry[t, i], "latency_ms") + 0
        bytes = field_of(entry[t, i], "gpu_bytes") + 0
        if (ms > 0 && (!fastest || ms < fastest))
            fastest = ms
        if (bytes > 0 && (!fewest || bytes < fewest))
            fewest = bytes
        any = i
        if (i == 0)
            naive_ms = ms
    }
}

# The figures of a line, in `figure`. One that did not run has only a note.
function fill(t, i, columns, column,    row, ms, moved, c) {
    row = entry[t, i]
    ms = field_of(row, "latency_ms") + 0
    moved = field_of(row, "gpu_bytes") + 0
    figure["variant"] = field_of(row, "variant")
    if (methods[field_of(row, "stage")] > 1 && figure["variant"] != "00_naive")
        figure["variant"] = figure["variant"] " " field_of(row, "settings")
    figure["latency"] = figure["simulated"] = time(ms)
    figure["of fastest"] = ms > 0 ? number(100 * fastest / ms, "%") : "-"
    figure["vs naive"] = naive_ms > 0 && ms > 0 ? number(naive_ms / ms, "x") : "-"
    figure["TFLOP/s"] = known_figure(row, "tflops", "")
    figure["of peak"] = known_figure(row, "percent_of_peak", "%")
    figure["GB/s"] = known_figure(row, "gbps", "")
    figure["bytes moved"] = moved > 0 ? bytes(moved) : "-"
    figure["vs fewest"] = moved > 0 ? number(moved / fewest, "x") : "-"
    figure["FLOPs/byte"] = known_figure(row, "gpu_flops_per_byte", "")
    figure["tensors + workspace"] = bytes(field_of(row, "tensor_bytes") + 0) " + " bytes(field_of(row, "workspace_bytes") + 0)
    row = judged[t, i]
    figure["error / allowed"] = is_unchecked(row) ? "not checked" : field_of(row, "ok") == "" ? "-" : \
        sprintf("%.1e / %.1e", field_of(row, "worst_error"), field_of(row, "allowed_error"))
    shown[t, i, "variant"] = figure["variant"]
    for (c = 1; c <= columns; c++)
        shown[t, i, column[c]] = figure[column[c]]
    if (plot != "")
        plot_line(t, i, row, ms, moved)
}

function print_line(t, i, columns, column,    c, line, ran) { # a note on a row that ran is a remark, and leaves its figures
    ran = field_of(entry[t, i], "latency_ms") != ""
    line = sprintf("%-" wide["variant"] "s", shown[t, i, "variant"])
    if (length(line) > wide["variant"])
        line = sprintf("%s\n%" wide["variant"] "s", line, "")
    for (c = 1; ran && c <= columns; c++)
        if (wide[column[c]])
            line = line sprintf("%" wide[column[c]] "s", shown[t, i, column[c]])
    print line (ran ? "" : "  " field_of(entry[t, i], "note"))
}

# Each column has the room that its figures need. Where the line is longer than the terminal, columns are left out in this order.
function set_widths(t, columns, column,    c, i, dropped, drop, total) {
    wide["variant"] = 7
    for (i = 0; i <= lines[t]; i++)
        if (length(shown[t, i, "variant"]) > wide["variant"] && length(shown[t, i, "variant"]) <= 32)
            wide["variant"] = length(shown[t, i, "variant"])
    total = wide["variant"]
    for (c = 1; c <= columns; c++) {
        wide[column[c]] = length(column[c])
        for (i = 0; i <= lines[t]; i++)
            if (length(shown[t, i, column[c]]) > wide[column[c]])
                wide[column[c]] = length(shown[t, i, column[c]])
        total += wide[column[c]] += 2
    }
    split("tensors + workspace|simulated|of peak|FLOPs/byte|TFLOP/s|vs naive", dropped, "|")
    for (drop = 1; total > width && drop in dropped; drop++) {
        total -= wide[dropped[drop]]
        wide[dropped[drop]] = 0
    }
}

# ---- above and below the tables ----

# An option that no program of those that got it takes is a mistake; one that some take leaves the others out.
function check_options(    i, j, why) {
    for (i = 1; i <= refusals; i++)
        if (!(options_of[refused[i]] in taken)) {
            why = refusal[refused[i]]
            for (j = 1; j <= refusals; j++) # one that knows the option says more
                if (options_of[refused[j]] == options_of[refused[i]] && why ~ /no such option/)
                    why = refusal[refused[j]]
            print "compare: " why >"/dev/stderr"
            exit 2
        }
}

function print_left_out(    i, option, list, many) {
    for (i = 1; i <= refusals; i++) {
        option = refusal[refused[i]]
        sub(/: .*/, "", option)
        list[option] = list[option] (list[option] == "" ? "" : ", ") refused[i]
        many[option]++
    }
    for (option in list)
        print_wrapped("left out, because " (many[option] > 1 ? "they do" : "it does") " not take " option ": " list[option])
}

function print_device(    row) {
    for (row = 1; row <= rows && field_of(row, "device") == ""; row++)
        ;
    if (row > rows)
        return
    print "device   " field_of(row, "device") (field_of(row, "cuda") == "" ? "" : ", CUDA " field_of(row, "cuda")) ", commit " \
        field_of(row, "commit")
    if (field_of(row, "cuda") == "")
        print_wrapped("times    are the simulator's: they say nothing about a GPU, not even which variant is faster")
}

function print_verdict() {
    if (disagree broken != "")
        print "\nFAIL " (disagree == "" ? "" : " disagree:" disagree) (disagree broken == broken || broken == "" ? "" : ",") \
            (broken == "" ? "" : " broken:" broken)
    else if (unchecked != "")
        print "\nNOT CHECKED " unchecked
    else if (!tables)
        print "\nNOT RUN  nothing can run this problem here"
    else if (!agree)
        print "\nnot validated"
    else
        print "\nPASS  " agree (agree == 1 ? " variant agrees" : " variants agree") " with 00_naive" \
            (unchecked_tensors == "" ? "" : "; not checked: " unchecked_tensors)
}

function print_wrapped(text,    at) {
    while (length(text) > width) {
        for (at = width; at > 12 && substr(text, at + 1, 1) != " "; at--)
            ;
        print substr(text, 1, at)
        text = "         " substr(text, at + 2)
    }
    print text
}

function plot_line(t, i, row, ms, moved,    on_gpu, what) {
    on_gpu = field_of(row, "cuda") != ""
    if (!plotted++)
        print "problem\tdevice\tvariant\taxis\tfigure\ttext\tbeside" >plot
    what = title_of[t] "\t" field_of(row, "device") (on_gpu ? "" : " as the CPU device, a simulator") "\t" figure["variant"] "\t"
    if (on_gpu)
        print what "latency, ms\t" ms "\t" figure["latency"] "\t" figure["of fastest"] " of the fastest" >plot
    else
        print what "bytes moved, MiB\t" moved / 1048576 "\t" figure["bytes moved"] "\t" figure["vs fewest"] " the fewest" >plot
}

# ---- fields and figures ----

# It ran, and was compared, but rounding alone may change half of its result.
function is_unchecked(row) { return field_of(row, "worst_error") != "" && field_of(row, "ok") == "" }

# The value of a field in a row, or in the row at hand; "": not known.
function field_of(row, name) { return !((row, name) in cell) || cell[row, name] == "null" ? "" : cell[row, name] }
function field(name) { return field_of(rows, name) }

# Figures as the programs print them; + 0, for a cell is a string.
function number(n, unit) { return sprintf((n < 0.1 ? "%.4f" : n < 10 ? "%.2f" : n < 100 ? "%.1f" : "%.0f") "%s", n, unit) }
function known_figure(row, name, unit) { return field_of(row, name) + 0 > 0 ? number(field_of(row, name) + 0, unit) : "-" }
function time(ms) { return !ms ? "-" : ms < 1 ? number(ms * 1000, " us") : ms < 1000 ? number(ms, " ms") : number(ms / 1000, " s") }
function bytes(n) {
    return n == 0 ? "0" : n < 1048576 ? number(n / 1024, " KiB") : n < 1073741824 ? number(n / 1048576, " MiB") : \
        number(n / 1073741824, " GiB")
}
function size(x) { return x < 0 ? -x : x }
