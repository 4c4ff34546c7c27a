/* details.c - see details.h. */
#include "details.h"

#include "../host/text.h"
#include "../traffic.h"
#include "recorded.h"
#include "row.h"

#include <math.h>
#include <string.h>

/* "recorded on an NVIDIA H200, 2026-11-26, forward, batch 4, 16 heads, 4096, head dim 128, fp16, full: epilogue 28.2 ms, loop_swap
 * 2.8". Under another mask nothing is printed: which variant is faster may depend on it. */
static void print_recorded(const Run *run) {
    int printed = 0;
    if (run->p->causal || run->p->blocks || run->options->key_lengths)
        return;
    for (int k = 0; k < RECORDED_COUNT; k++) {
        const Recorded *r = &RECORDED[k];
        int i = 0;
        while (i < run->row_count && strcmp(r->variant, run->rows[i].name) != 0)
            i++;
        if (i == run->row_count || strncmp(r->variant, run->stage->name, strlen(run->stage->name)) != 0)
            continue; /* it did not run, or is 00_naive beside another stage's variants */
        if (!printed)
            print_text("recorded on an %s, %s:", RECORDED_ON, r->problem);
        const char *slash = strrchr(r->variant, '/');
        print_text("%s %s %.3g%s", printed ? "," : "", slash ? slash + 1 : r->variant, r->ms, printed ? "" : " ms");
        printed = 1;
    }
    if (printed)
        print_text("\n");
}

/* "workspace 00_naive: S 2.00 GiB, P 1.00 GiB". All devices have as much as device 0. */
static void print_workspace(const Row *row) {
    const int devices = row->variant->devices ? row->variant->devices(row->run->p) : 1;
    print_text("workspace  %s%s:", row->name, devices > 1 ? ", each device" : "");
    for (int i = 0; i < row->workspace_count / devices; i++) {
        Cell bytes;
        print_bytes(bytes, (double)row->workspace[i].bytes);
        if (row->workspace[i].bytes)
            print_text("%s %s %s", i ? "," : "", row->workspace[i].purpose, bytes);
    }
    print_text("\n");
}

/* "gradients  05_fa2_backward/atomic: dQ 1.2e-03 / 4.0e-03, dK ..., dV ...; 4 runs differ by up to 3.1e-05" */
static void print_gradients(const Row *row) {
    print_text("gradients  %s:", row->name);
    for (int i = 0; i < row->comparison_count; i++) {
        const Comparison *c = &row->comparisons[i];
        print_text("%s %s ", i ? "," : "", c->tensor);
        if (c->ok && c->empty)
            print_text("not checked");
        else
            print_text("%.1e / %.1e", c->error, c->allowed);
    }
    if (row->spread_runs && row->spread == 0)
        print_text("; %d runs are bit-equal", row->spread_runs);
    else if (row->spread_runs)
        print_text("; %d runs differ by up to %.1e", row->spread_runs, row->spread);
    print_text("\n");
}

/* "accuracy   06_fp8/mma: RMSE 1.2e-02, worst error 9.8e-02, against fp64 of the inputs as given, on 64 rows" */
static void print_accuracy(const Row *row) {
    print_text("accuracy   %s: RMSE %.1e, worst error %.1e, against fp64 of the inputs as given, on %d rows\n", row->name,
               row->errors.rms, row->errors.worst, (int)row->run->samples.count);
}

/* "noise      04_fa2/tuned: the middle half of 1000 runs spans 7.3% of the median, more than 1%" */
static void print_noise(const Row *row) {
    Cell share;
    print_number(share, 100 * row_noise(row), "%");
    print_text("noise      %s: the middle half of %d runs spans %s of the median, more than %g%%\n", row->name, row->runs,
               share, 100 * NOISY);
}

/* "device 1   rounds: pulls 64.0 KiB from 0, 64.0 KiB counted; computes 50.0% of all pairs in 8.4 ms": in the last run, by
 * formula and as the copies were counted. Then the efficiency T1 / (G TG); T1 is of the variant that runs on one device. The
 * CPU device's devices take turns: there the busiest one's time stands for TG. */
static void print_devices(const Row *row) {
    const Run *run = row->run;
    const Variant *v = row->variant;
    const int *lengths = run->options->key_lengths, devices = v->devices(run->p);
    double busiest = 0, alone_ms = 0;
    for (int r = 0; r < devices; r++) {
        double predicted = 0;
        Cell bytes;
        print_text("device %d   %s: pulls", r, v->name);
        for (int from = 0; from < devices; from++) {
            predicted += v->link_bytes(run->p, lengths, from, r);
            print_bytes(bytes, v->link_bytes(run->p, lengths, from, r));
            if (from != r)
                print_text(" %s from %d,", bytes, from);
        }
        busiest = fmax(busiest, row->busy_ms[r]);
        print_bytes(bytes, row->pulled[r]);
        print_text(" %s counted%s; computes %.1f%% of all pairs in %.3g ms\n", bytes,
                   row->pulled[r] == predicted ? "" : ", WHICH IS NOT WHAT THE FORMULA SAYS",
                   100 * v->pairs(run->p, lengths, r) / visible_pairs(run->p, lengths), row->busy_ms[r]);
    }
    for (const Row *other = run->rows; other < row; other++)
        if (other->role == ROW_VARIANT && other->passes == row->passes && !other->variant->devices && row_ran(other))
            alone_ms = other->latency_ms;
    const double together = run->device->is_cpu ? busiest : row->latency_ms;
    if (alone_ms > 0)
        print_text("efficiency %s: %.0f%% of %d times one device, whose %.3g ms became %.3g\n", v->name,
                   100 * alone_ms / (devices * together), devices, alone_ms, together);
}

void print_details(const Run *run) {
    const Row *rows = run->rows;
    if (run->device->is_cpu)
        print_recorded(run);
    int prepared = 0; /* where every variant is exact up to rounding, nobody asks how exact */
    for (int i = 0; i < run->row_count; i++) {
        prepared |= rows[i].passes == PREPARE;
        if (rows[i].workspace_count && row_ran(&rows[i]) && rows[i].role != ROW_PART)
            print_workspace(&rows[i]);
    }
    for (int i = 0; i < run->row_count; i++)
        if (rows[i].variant->devices && rows[i].role == ROW_VARIANT && row_ran(&rows[i]))
            print_devices(&rows[i]);
    for (int i = 0; i < run->row_count; i++)
        if (prepared && row_has_errors(&rows[i]))
            print_accuracy(&rows[i]);
    for (int i = 0; i < run->row_count; i++)
        if (rows[i].passes == BACKWARD_PASS && rows[i].comparison_count)
            print_gradients(&rows[i]);
    for (int i = 0; i < run->row_count; i++)
        if (row_ran(&rows[i]) && !run->device->is_cpu && row_noise(&rows[i]) > NOISY)
            print_noise(&rows[i]);
}
