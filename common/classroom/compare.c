/* compare.c - every stage on one problem, in one table; then the backward's, FP8's and decoding's own.        (make compare)
 *
 *     compare PROGRAM... -- OPTION... [-- PROGRAM... -- OPTION...]
 *
 * Runs each program with --csv and the options after its group. A stage that is out of memory, refuses the problem or crashes is a
 * line that says so. Exit code: 0 all agree with 00_naive; 1 one does not, or a program broke; 2 nothing ran, or not all of it
 * could be checked. */
#define _POSIX_C_SOURCE 200809L
#include "../host/errors.h"
#include "../host/text.h"
#include "command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_COLUMNS = 64, MAX_ROWS = 512 };
typedef char Names[2048];

/* ---- rows of CSV ---- */

typedef struct {
    char *cells[MAX_COLUMNS];
    int count;
} Line;

/* Takes a line of CSV apart, in place. Inside quotes a comma is text, and two quotes are one. */
static Line split(char *from) {
    Line line = {.cells = {from}, .count = 1};
    char *to = from;
    for (int quoted = 0; *from; from++)
        if (*from == '"' && quoted && from[1] == '"')
            *to++ = *from++;
        else if (*from == '"')
            quoted = !quoted;
        else if (*from == ',' && !quoted && line.count < MAX_COLUMNS)
            *to++ = 0, line.cells[line.count++] = to;
        else
            *to++ = *from;
    *to = 0;
    return line;
}

static Line names; /* of the columns that the program at hand prints */

static const char *text(const Line *row, const char *name) {
    for (int i = 0; i < names.count; i++)
        if (strcmp(names.cells[i], name) == 0)
            return row->cells[i];
    cannot_run("a program prints no column %s", name);
}
static double number(const Line *row, const char *name) { return atof(text(row, name)); }
static int is(const Line *row, const char *name, const char *value) { return strcmp(text(row, name), value) == 0; }
static int is_known(const Line *row, const char *name) { return *text(row, name) != 0; }

/* ---- what has been seen so far ---- */

typedef struct {
    char problem[320]; /* and the direction */
    char variant[128];
    double latency_ms; /* 0: it did not run */
} Seen;
static Seen seen[MAX_ROWS];
static int seen_count;
static Names disagree, unchecked, broken; /* each name with a space before it */
static int agree, device_known;

static void add(Names to, const char *name) {
    size_t length = strlen(to);
    snprintf(to + length, sizeof(Names) - length, " %s", name);
}

static void problem_of(const Line *row, char problem[256]) {
    snprintf(problem, 256, "batch %s, heads %s/%s, seqlen %sx%s, head_dim %s, %s, %s", text(row, "batch"),
             text(row, "heads"), text(row, "kv_heads"), text(row, "seqlen_q"), text(row, "seqlen_k"), text(row, "head_dim"),
             text(row, "dtype"), is(row, "causal", "true") ? "causal" : "full");
}

static const Seen *find(const char *problem, const char *variant) {
    for (const Seen *one = seen; one < seen + seen_count; one++)
        if (strcmp(one->problem, problem) == 0 && strcmp(one->variant, variant) == 0)
            return one;
    return NULL;
}

/* About the stage's own variants: not the reference it runs, nor the forward pass that a backward starts from. */
static int is_own(const Line *row, const char *stage) {
    const char *variant = text(row, "variant");
    size_t length = strlen(stage);
    return strncmp(variant, stage, length) == 0 && (!variant[length] || variant[length] == '/');
}

/* It ran, and was compared, but rounding alone may change half of its result. */
static int is_unchecked(const Line *row) { return is_known(row, "worst_error") && !is_known(row, "ok"); }

/* ---- the table ---- */

/* On the CPU device the times are a simulator's: bytes take the place of speeds and ratios. */
enum { TITLES = 9 };
/* clang-format off */
static const char *const ON_GPU[TITLES] = {"variant", "direction", "latency", "TFLOP/s", "of peak", "GB/s",
                                           "tensors + workspace", "vs naive", "error / allowed"};
static const char *const ON_CPU[TITLES] = {"variant", "direction", "simulated", "bytes moved", "FLOPs/byte",
                                           "tensors + workspace", "error / allowed"};
static const int GPU_WIDTHS[TITLES] = {-30, -9, 8, 7, 7, 6, 19, 8, 17}; /* < 0: names, to the left */
static const int CPU_WIDTHS[TITLES] = {-30, -9, 9, 11, 10, 19, 17};
/* clang-format on */

static int is_simulated(const Line *row) { return !is_known(row, "cuda"); }

static void print_cells(const int widths[TITLES], const char *const cells[TITLES]) {
    int is_long = (int)strlen(*cells) > abs(*widths); /* then it has a line to itself */
    if (is_long)
        print_text("%s\n%*s", *cells, abs(*widths), "");
    for (int i = is_long; i < TITLES && cells[i]; i++) {
        int padding = abs(widths[i]) - (int)strlen(cells[i]);
        padding = padding < 0 ? 0 : padding;
        print_text("%s%*s%s%*s", i ? " " : "", widths[i] < 0 ? 0 : padding, "", cells[i], widths[i] < 0 ? padding : 0, "");
    }
    print_text("\n");
}

static void print_heading(const char *problem, const Line *row) {
    int simulated = is_simulated(row);
    if (!device_known) {
        print_text("device   %s%s%s, commit %s\n", text(row, "device"), simulated ? "" : ", CUDA ", text(row, "cuda"),
                   text(row, "commit"));
        if (simulated)
            print_text("times    are the simulator's: they say nothing about a GPU, not even which variant is faster\n");
        device_known = 1;
    }
    print_text("\nproblem  %s\n", problem);
    print_cells(simulated ? CPU_WIDTHS : GPU_WIDTHS, simulated ? ON_CPU : ON_GPU);
}

/* "-" for what is not known */
static void print_known(Cell cell, const Line *row, const char *name, const char *unit) {
    if (number(row, name) > 0)
        print_number(cell, number(row, name), unit);
    else
        strcpy(cell, "-");
}

static void print_row(const Line *row, const char *problem) {
    const char *direction = is(row, "direction", "prepare and forward") ? "prep+fwd" : text(row, "direction");
    if (is_known(row, "note") && !is_unchecked(row)) {
        print_text("%-30s %-9s %s\n", text(row, "variant"), direction, text(row, "note"));
        return;
    }
    const char *variant = text(row, "variant");
    Cell latency, tensors, workspace, memory, error = "-";
    const Seen *naive = find(problem, "00_naive");
    print_time(latency, number(row, "latency_ms"));
    print_bytes(tensors, number(row, "tensor_bytes"));
    print_bytes(workspace, number(row, "workspace_bytes"));
    snprintf(memory, sizeof memory, "%.30s + %.30s", tensors, workspace);
    if (is_unchecked(row))
        strcpy(error, "not checked");
    else if (is_known(row, "worst_error"))
        snprintf(error, sizeof error, "%.1e / %.1e", number(row, "worst_error"), number(row, "allowed_error"));
    if (is_simulated(row)) {
        Cell moved = "-", intensity;
        print_known(intensity, row, "gpu_flops_per_byte", "");
        if (is_known(row, "gpu_bytes"))
            print_bytes(moved, number(row, "gpu_bytes"));
        print_cells(CPU_WIDTHS, (const char *[TITLES]){variant, direction, latency, moved, intensity, memory, error});
    } else {
        Cell tflops, of_peak, gbps, ratio = "-";
        print_known(tflops, row, "tflops", "");
        print_known(of_peak, row, "percent_of_peak", "%");
        print_known(gbps, row, "gbps", "");
        if (naive && naive->latency_ms > 0)
            print_number(ratio, naive->latency_ms / number(row, "latency_ms"), "x");
        print_cells(GPU_WIDTHS, (const char *[]){variant, direction, latency, tflops, of_peak, gbps, memory, ratio, error});
    }
}

/* ---- one program ---- */

/* A table begins where the problem, or what is computed of it, is another than before. */
static void print_stage(const char *stage, Command run) {
    static char section[320];
    Line rows[MAX_ROWS];
    int count = 0, bad = 0, backward = 0;
    char *save, *line = strtok_r(run.out, "\n", &save);
    if (line)
        names = split(line);
    while ((line = strtok_r(NULL, "\n", &save)) && count < MAX_ROWS) {
        rows[count] = split(line);
        if (rows[count].count == names.count) /* a program that broke may leave half a line */
            backward |= is(&rows[count++], "direction", "backward");
    }
    if (count == 0 && run.code == 2 && *run.reason == '-') /* a mistake in the options */
        cannot_run("%s", run.reason);

    for (const Line *row = rows; row < rows + count; row++) {
        const char *passes = backward ? "forward and backward" : "forward", *variant = text(row, "variant");
        char problem[256], this[sizeof section];
        problem_of(row, problem);
        snprintf(this, sizeof this, "%s, %s", passes, problem);
        if (strcmp(this, section) != 0)
            print_heading(this, row);
        strcpy(section, this);
        Seen one = {.latency_ms = number(row, "latency_ms")};
        snprintf(one.problem, sizeof one.problem, "%s %s", problem, text(row, "direction"));
        snprintf(one.variant, sizeof one.variant, "%s", variant);
        if (!find(one.problem, variant) && seen_count < MAX_ROWS) { /* every program runs 00_naive: the first will do */
            seen[seen_count++] = one;
            print_row(row, one.problem);
        }
        if (!is_own(row, stage))
            continue;
        if (is(row, "ok", "false"))
            add(disagree, variant), bad = 1;
        if (is_unchecked(row))
            add(unchecked, variant);
        agree += is(row, "ok", "true") && !is(row, "direction", "both") && !is(row, "variant", "00_naive");
    }

    if (run.signal || run.code > 2 || (run.code == 1 && !bad) || strncmp(run.reason, "kernel ", 7) == 0) {
        print_text("%-30s %s %d%s%s\n", stage, run.signal ? "ended by signal" : "exit code",
                   run.signal ? run.signal : run.code, *run.reason ? ": " : "", run.reason);
        add(broken, stage);
    } else if (count == 0) {
        print_text("%-30s not run: %s\n", stage, run.reason);
    }
    flush_output();
}

/* Adds a word to a command, so that the shell takes it as it is. */
static void add_quoted(char *line, size_t size, const char *word) {
    size_t n = strlen(line);
    n += snprintf(line + n, size - n, " '");
    for (; *word && n + 8 < size; word++)
        n += snprintf(line + n, size - n, *word == '\'' ? "'\\''" : "%c", *word);
    snprintf(line + n, size - n, "'");
}

static int verdict(void) {
    print_text("\n");
    if (*disagree || *broken)
        print_text("FAIL  %s%s%s%s%s\n", *disagree ? "disagree:" : "", disagree, *disagree && *broken ? ", " : "",
                   *broken ? "broken:" : "", broken);
    else if (*unchecked)
        print_text("NOT CHECKED %s\n", unchecked);
    else if (!device_known)
        print_text("NOT RUN  nothing can run this problem here\n");
    else if (!agree)
        print_text("not validated\n");
    else
        print_text("PASS  %d variant%s with 00_naive\n", agree, agree == 1 ? " agrees" : "s agree");
    return *disagree || *broken ? 1 : *unchecked || !device_known ? 2 : 0;
}

/* The argument at which a group of programs or options ends. */
static int end_of_group(int i, int argc, char **argv) {
    while (i < argc && strcmp(argv[i], "--") != 0)
        i++;
    return i;
}

int main(int argc, char **argv) {
    program_is("compare");
    if (end_of_group(1, argc, argv) == 1)
        cannot_run("usage: compare PROGRAM... -- OPTION... [-- PROGRAM... -- OPTION...]");
    for (int first = 1, end, last; first < argc; first = last + 1) {
        end = end_of_group(first, argc, argv);
        last = end_of_group(end + 1, argc, argv);
        char options[4096] = "";
        for (int i = end + 1; i < last; i++)
            add_quoted(options, sizeof options, argv[i]);
        for (char **program = argv + first; program < argv + end; program++) {
            const char *stage = name_of(*program);
            show_progress("%s ...", stage);
            Command run = command("exec '%s' --csv%s", *program, options);
            end_progress();
            print_stage(stage, run);
        }
    }
    int code = verdict();
    flush_output();
    return code;
}
