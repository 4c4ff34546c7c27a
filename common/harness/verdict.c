/* verdict.c - what stands above the rows and below: device and problem; workspace, errors, what failed or was not checked, the
 * verdict. See row.h. */
#include "../host/errors.h"
#include "../host/text.h"
#include "recorded.h"
#include "row.h"

#include <stdio.h>
#include <string.h>

void print_head(const Run *run) {
    const Problem *p = run->p;
    print_text("%sdevice   %s, %s\n", run->options->selected ? "\n" : "", run->device->name, run->device->platform);
    print_text("problem  %s, batch %d, heads %d/%d, seqlen %dx%d, head_dim %d, %s, %s",
               run->stage->kind == BACKWARD ? "forward and backward" : "forward", p->batch, p->heads, p->kv_heads,
               p->seqlen_q, p->seqlen_k, p->head_dim, dtype_name(p->dtype), p->causal ? "causal" : "full");
    if (p->scale != 1 / sqrtf((float)p->head_dim))
        print_text(", scale %g", p->scale);
    if (run->options->key_lengths) {
        print_text(", key lengths");
        for (int b = 0; b < p->batch && b < 8; b++)
            print_text("%s%d", b ? "," : " ", run->options->key_lengths[b]);
        print_text("%s", p->batch > 8 ? ",..." : "");
    }
    for (int i = 0; run->stage->settings[i].name; i++)
        print_text(", %s %s", run->stage->settings[i].name, setting_text(run, i));
    if (run->options->load)
        print_text(", from %s", run->options->load);
    else if (run->options->outliers)
        print_text(", inputs with outliers");
    if (run->options->warm)
        print_text(", warm L2");
    print_text("\n");
    if (run->bandwidth.read_gbps > 0)
        print_text("memory   gives %.0f GB/s when it is read, %.0f GB/s when it is copied (bytes read and written)\n",
                   run->bandwidth.read_gbps, run->bandwidth.copy_gbps);
    if (run->device->is_cpu)
        print_text("times    are the simulator's: they say nothing about a GPU, not even which variant is faster\n");
}

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
    print_text("noise      %s: the middle half of %d runs spans %s of the median, more than %g%%\n", row->name, row->runs, share,
               100 * NOISY);
}

static void print_details(const Run *run) {
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
        if (prepared && row_has_errors(&rows[i]))
            print_accuracy(&rows[i]);
    for (int i = 0; i < run->row_count; i++)
        if (rows[i].passes == BACKWARD_PASS && rows[i].comparison_count)
            print_gradients(&rows[i]);
    for (int i = 0; i < run->row_count; i++)
        if (row_ran(&rows[i]) && !run->device->is_cpu && row_noise(&rows[i]) > NOISY)
            print_noise(&rows[i]);
}

static void print_failures(const Run *run) {
    FILE *details = run->options->format == FORMAT_TABLE ? stdout : stderr;
    for (int i = 0; i < run->row_count; i++) {
        const Row *row = &run->rows[i];
        if (!row_ran(row))
            continue;
        if (*row->damaged)
            fprintf(details, "%s: wrote outside %s\n", row->name, row->damaged);
        for (int c = 0; c < row->comparison_count; c++)
            if (!row->comparisons[c].ok) {
                fprintf(details, "%s: ", row->name);
                comparison_print(details, &row->comparisons[c]);
            }
        if (*row_note(row))
            fprintf(details, "%s: %s\n", row->name, row_note(row));
    }
}

/* "; not checked: dQ, dK": tensors of right variants. Good until the next call. */
static const char *unchecked_tensors(const Run *run) {
    static char text[64];
    *text = 0;
    for (const Row *row = run->rows; row < run->rows + run->row_count; row++)
        for (const Comparison *c = row->comparisons; c < row->comparisons + row->comparison_count; c++)
            if (row->role != ROW_FORWARD && c->empty && !strstr(text, c->tensor))
                append(text, sizeof text, "%s %s", *text ? "," : "; not checked:", c->tensor);
    return text;
}

/* Why no row is a result. */
static void print_not_run(const Run *run) {
    if (run->only)
        printf("NOT RUN  %s cannot run this problem here\n", run->rows[run->row_count - 1].name);
    else
        printf("NOT RUN  no variant of %s can run this problem here\n", run->stage->name);
}

/* Under a table, and in the exit code. 00_naive's row counts where it was asked for alone. What a forward pass left is right or
 * wrong, but need not be checked: the gradients follow from it, whatever it is. */
static int print_verdict(const Run *run) {
    int ran = 0, wrong = 0, outside = 0, validated = 0, unchecked = 0, is_alone = run->only == run->reference,
        against_oracle = 0;
    const Row *first_bad = NULL;
    for (const Row *row = run->rows; row < run->rows + run->row_count; row++) {
        if (!row_ran(row))
            continue;
        if (!row_ok(row) && !first_bad)
            first_bad = row;
        validated += row->comparison_count > 0 && row->role != ROW_FORWARD;
        unchecked += row_unchecked(row) && row->role != ROW_FORWARD;
        if (row->role == (is_alone ? ROW_REFERENCE : ROW_VARIANT)) {
            ran++;
            wrong += !row_agrees(row);
            outside += row_agrees(row) && *row->damaged;
            against_oracle = row->against_oracle;
        }
    }
    int code = first_bad ? 1 : ran && !unchecked ? 0 : 2;
    if (run->options->format != FORMAT_TABLE)
        return code;
    char oracle[64];
    snprintf(oracle, sizeof oracle, "the fp64 oracle on %d rows", (int)run->samples.count);
    const char *with = against_oracle ? oracle : NAIVE;
    if (first_bad && first_bad->role != ROW_VARIANT && row_agrees(first_bad))
        printf("FAIL  %s wrote where nothing of its own is\n", first_bad->name);
    else if (first_bad && first_bad->role == ROW_FORWARD)
        printf("FAIL  the forward pass, %s, disagrees with %s\n", first_bad->name, oracle);
    else if (first_bad && first_bad->role == ROW_REFERENCE)
        printf("FAIL  " NAIVE " disagrees with %s\n", oracle);
    else if (wrong)
        printf("FAIL  %d of %d variants %s with %s\n", wrong, ran, wrong == 1 ? "disagrees" : "disagree", with);
    else if (first_bad)
        printf("FAIL  %d of %d variants wrote where nothing of theirs is\n", outside, ran);
    else if (!ran)
        print_not_run(run);
    else if (!validated)
        printf("not validated\n");
    else if (unchecked)
        printf("NOT CHECKED  nothing checked in %d of %d results: rounding alone may change them by half of the largest "
               "value\n",
               unchecked, validated);
    else if (is_alone)
        printf("PASS  " NAIVE " agrees with %s%s\n", with, unchecked_tensors(run));
    else
        printf("PASS  %d %s with %s%s\n", ran, ran == 1 ? "variant agrees" : "variants agree", with, unchecked_tensors(run));
    return code;
}

int report_end(const Run *run) {
    if (run->options->format == FORMAT_TABLE)
        print_details(run);
    print_failures(run);
    return print_verdict(run);
}
