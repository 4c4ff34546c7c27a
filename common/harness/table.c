/* table.c - the table for people. See table.h. */
#include "table.h"

#include "../host/text.h"

#include <recorded.h> /* made by make */
#include <stdio.h>
#include <string.h>

/* "-" for what is not known */
static void print_known(Cell cell, double value, const char *unit) {
    if (isfinite(value))
        print_number(cell, value, unit);
    else
        strcpy(cell, "-");
}

enum {
    VARIANT,
    DIRECTION,
    LATENCY,
    MIN,
    TFLOPS,
    OF_PEAK,
    GBPS,
    OF_READ,
    OF_COPY,
    SIMULATED,
    MOVED,
    INTENSITY,
    MEMORY,
    VS_NAIVE,
    ERROR,
    COLUMN_COUNT
};

/* On the CPU device no figure that comes from the clock says anything about a GPU: bytes take their place. */
enum { ON_GPU = 1, ON_CPU = 2, ON_BOTH = 3 };

/* clang-format off */
static const struct {
    const char *title;
    int width;
    int on;
    unsigned asked; /* the task must ask for it */
} COLUMNS[COLUMN_COUNT] = {
    [VARIANT] = {"variant", 0, ON_BOTH, 0},
    [DIRECTION] = {"direction", 10, ON_BOTH, SHOW_DIRECTION},
    [LATENCY] = {"latency", 9, ON_GPU, 0},
    [MIN] = {"min", 8, ON_GPU, 0},
    [TFLOPS] = {"TFLOP/s", 9, ON_GPU, SHOW_TFLOPS},
    [OF_PEAK] = {"of peak", 9, ON_GPU, SHOW_TFLOPS},
    [GBPS] = {"GB/s", 7, ON_GPU, SHOW_GBPS},
    [OF_READ] = {"of read", 8, ON_GPU, SHOW_GBPS},
    [OF_COPY] = {"of copy", 8, ON_GPU, SHOW_GBPS},
    [SIMULATED] = {"simulated", 10, ON_CPU, 0},
    [MOVED] = {"bytes moved", 12, ON_CPU, 0},
    [INTENSITY] = {"FLOPs/byte", 11, ON_CPU, 0},
    [MEMORY] = {"tensors + workspace", 21, ON_BOTH, 0},
    [VS_NAIVE] = {"vs naive", 9, ON_GPU, 0},
    [ERROR] = {"error / allowed", 19, ON_BOTH, 0},
};
/* clang-format on */

static int is_shown(const Report *r, int column) {
    unsigned asked = COLUMNS[column].asked;
    return COLUMNS[column].on & (r->device->is_cpu ? ON_CPU : ON_GPU) && (!asked || r->task->columns & asked);
}

/* The first column holds the longest of the stage's names, "01_tiled/mma", "06_fp8/quantise+mma", if the line has room for it. */
static int name_width(const Report *r) {
    int room = LINE_PLACES;
    size_t longest = strlen(NAIVE);
    for (int i = 0; i < COLUMN_COUNT; i++)
        room -= is_shown(r, i) ? COLUMNS[i].width : 0;
    for (int i = 0; i < MAX_VARIANTS && r->stage->variants[i].name; i++) {
        const Variant *v = &r->stage->variants[i];
        size_t length = strlen(r->stage->name) + 1 + strlen(v->name) + (v->preparation ? strlen(v->preparation->name) + 1 : 0);
        longest = length > longest ? length : longest;
    }
    return (int)longest < room ? (int)longest : room;
}

/* Names to the left, numbers to the right. What a long name takes too much comes from the gaps behind it. */
static void print_line(const Report *r, const Cell cells[COLUMN_COUNT]) {
    int room = name_width(r) - (int)strlen(cells[VARIANT]), too_much = room < 0 ? -room : 0;
    print_text("%s%*s", cells[VARIANT], room < 0 ? 0 : room, "");
    for (int i = VARIANT + 1; i < COLUMN_COUNT; i++) {
        int padding = COLUMNS[i].width - (int)strlen(cells[i]);
        if (!is_shown(r, i))
            continue;
        int taken = padding - 1 < too_much ? padding - 1 : too_much; /* less than none where this cell is too long itself */
        too_much -= taken;
        print_text("%*s%s", padding - taken, "", cells[i]);
    }
    print_text("\n");
}

void table_start(const Report *r) {
    const Problem *p = r->problem;
    print_text("%sdevice   %s, %s\n", r->options->selected ? "\n" : "", r->device->name, r->device->platform);
    print_text("problem  %s, batch %d, heads %d/%d, seqlen %dx%d, head_dim %d, %s, %s", r->task->title, p->batch,
               p->heads, p->kv_heads, p->seqlen_q, p->seqlen_k, p->head_dim, dtype_name(p->dtype),
               p->causal ? "causal" : "full");
    if (p->scale != 1 / sqrtf((float)p->head_dim))
        print_text(", scale %g", p->scale);
    if (r->options->key_lengths) {
        print_text(", key lengths");
        for (int b = 0; b < p->batch && b < 8; b++)
            print_text("%s%d", b ? "," : " ", r->options->key_lengths[b]);
        print_text("%s", p->batch > 8 ? ",..." : "");
    }
    for (int i = 0; i < MAX_SETTINGS && r->stage->settings[i].name; i++) {
        char value[32];
        setting_text(&r->stage->settings[i], p->settings[i], value, sizeof value);
        print_text(", %s %s", r->stage->settings[i].name, value);
    }
    if (r->options->load)
        print_text(", from %s", r->options->load);
    else if (r->options->outliers)
        print_text(", inputs with outliers");
    if (r->options->warm)
        print_text(", warm L2");
    print_text("\n");
    if (r->bandwidth.read_gbps > 0)
        print_text("memory   gives %.0f GB/s when it is read, %.0f GB/s when it is copied (bytes read and written)\n",
                   r->bandwidth.read_gbps, r->bandwidth.copy_gbps);
    if (r->device->is_cpu)
        print_text("times    are the simulator's: they say nothing about a GPU, not even which variant is faster\n");
    Cell titles[COLUMN_COUNT];
    for (int i = 0; i < COLUMN_COUNT; i++)
        snprintf(titles[i], sizeof(Cell), "%s", COLUMNS[i].title);
    print_line(r, titles);
}

void table_row(const Report *r, const Row *row) {
    if (!row_ran(row)) {
        print_text("%-*s   %s\n", name_width(r), row->name, row->note);
        return;
    }
    Cell cells[COLUMN_COUNT], tensors, workspace;
    snprintf(cells[VARIANT], sizeof(Cell), "%s", row->name);
    snprintf(cells[DIRECTION], sizeof(Cell), "%s", directions[row->direction].name);
    print_time(cells[LATENCY], row->latency_ms);
    print_time(cells[MIN], row->min_ms);
    print_known(cells[TFLOPS], row_tflops(r, row), "");
    print_known(cells[OF_PEAK], row_of_peak(r, row), "%");
    print_known(cells[GBPS], row_gbps(r, row), "");
    print_known(cells[OF_READ], 100 * row_gbps(r, row) / r->bandwidth.read_gbps, "%");
    print_known(cells[OF_COPY], 100 * row_gbps(r, row) / r->bandwidth.copy_gbps, "%");
    print_time(cells[SIMULATED], row->latency_ms);
    print_known(cells[INTENSITY], row_intensity(r, row), "");
    strcpy(cells[MOVED], "-");
    if (isfinite(row->gpu_bytes))
        print_bytes(cells[MOVED], row->gpu_bytes);
    print_bytes(tensors, (double)row->tensor_bytes);
    print_bytes(workspace, (double)row->workspace_bytes);
    snprintf(cells[MEMORY], sizeof(Cell), "%.30s + %.30s", tensors, workspace);
    if (row->speed_ratio > 0)
        print_number(cells[VS_NAIVE], row->speed_ratio, "x");
    else
        strcpy(cells[VS_NAIVE], "-");
    if (row_ok(row) && row_unchecked(row))
        strcpy(cells[ERROR], "not checked");
    else if (row->validated)
        snprintf(cells[ERROR], sizeof(Cell), "%.1e / %.1e", row_worst(row)->error, row_worst(row)->allowed);
    else
        strcpy(cells[ERROR], row->role == ROW_PART ? "-" : "not validated");
    print_line(r, cells);
}

/* "recorded on an NVIDIA H200, 2026-11-22, batch 4, 16 heads, 4096: epilogue 28.5 ms, loop_swap 2.87" */
static void print_recorded(const char *stage, const Row *rows, int count) {
    int printed = 0;
    for (int k = 0; RECORDED[k].variant; k++)
        for (int i = 0; i < count; i++)
            if (strcmp(RECORDED[k].stage, stage) == 0 && strcmp(RECORDED[k].variant, rows[i].name) == 0) {
                if (!printed)
                    print_text("recorded on an " RECORDED_ON ", %s:", RECORDED[k].problem);
                print_text("%s %s %.3g%s", printed ? "," : "", RECORDED[k].name, RECORDED[k].ms, printed ? "" : " ms");
                printed = 1;
                break;
            }
    if (printed)
        print_text("\n");
}

/* "workspace 00_naive: S 2.00 GiB, P 1.00 GiB" */
static void print_workspace(const Row *row) {
    print_text("workspace  %s:", row->name);
    for (int i = 0; i < row->workspace_count; i++) {
        Cell bytes;
        print_bytes(bytes, (double)row->workspace[i].bytes);
        print_text("%s %s %s", i ? "," : "", row->workspace[i].purpose, bytes);
    }
    print_text("\n");
}

/* "gradients  05_fa2_backward/atomic: dQ 1.2e-03 / 4.0e-03, dK ..., dV ...; 4 runs differ by up to 3.1e-05" */
static void print_gradients(const Row *row) {
    print_text("gradients  %s:", row->name);
    for (int i = 0; i < row->comparison_count; i++)
        print_text("%s %s %.1e / %.1e", i ? "," : "", row->comparisons[i].tensor, row->comparisons[i].error,
                   row->comparisons[i].allowed);
    if (row->spread_runs && row->spread == 0)
        print_text("; %d runs are bit-equal", row->spread_runs);
    else if (row->spread_runs)
        print_text("; %d runs differ by up to %.1e", row->spread_runs, row->spread);
    print_text("\n");
}

/* "accuracy   06_fp8/mma: RMSE 1.2e-02, worst error 9.8e-02, against fp64 on 64 rows" */
static void print_accuracy(const Report *r, const Row *row) {
    print_text("accuracy   %s: RMSE %.1e, worst error %.1e, against fp64 of the inputs as given, on %d rows\n", row->name,
               row->errors.rms, row->errors.worst, r->sample_count);
}

/* "noise      04_fa2/tuned: the middle half of 23 runs spans 7.3% of the median" */
static void print_noise(const Row *row) {
    Cell share;
    print_number(share, 100 * row_noise(row), "%");
    print_text("noise      %s: the middle half of %d runs spans %s of the median: measure again, on a quiet machine\n",
               row->name, row->runs, share);
}

void table_end(const Report *r, const Row *rows, int count) {
    if (r->device->is_cpu)
        print_recorded(r->stage->name, rows, count);
    int prepared = 0; /* where every variant is exact up to rounding, nobody asks how exact */
    for (int i = 0; i < count; i++) {
        prepared |= rows[i].direction == PREPARE;
        if (rows[i].workspace_count && row_ran(&rows[i]) && rows[i].role != ROW_PART)
            print_workspace(&rows[i]);
    }
    for (int i = 0; i < count; i++)
        if (prepared && rows[i].errors_known)
            print_accuracy(r, &rows[i]);
    for (int i = 0; i < count; i++)
        if (rows[i].direction == BACKWARD_PASS && rows[i].validated)
            print_gradients(&rows[i]);
    for (int i = 0; i < count; i++)
        if (row_ran(&rows[i]) && !r->device->is_cpu && row_noise(&rows[i]) > NOISY)
            print_noise(&rows[i]);
}
