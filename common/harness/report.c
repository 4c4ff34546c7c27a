/* report.c - see report.h. */
#include "report.h"

#include "../host/errors.h"
#include "records.h"
#include "table.h"

#include <stdio.h>

static void print_verdict(const Report *r, const Row *rows, int count) {
    int ran = 0, bad = 0, against_oracle = 0, validated = 0, unchecked = 0, variants = 0;
    const Row *naive = NULL, *forward = NULL;
    for (int i = 0; i < count; i++) {
        int is_variant = rows[i].role == ROW_VARIANT;
        if (rows[i].role == ROW_REFERENCE)
            naive = &rows[i];
        if (rows[i].role == ROW_FORWARD)
            forward = &rows[i];
        variants += is_variant;
        if (!row_ran(&rows[i]))
            continue;
        validated += rows[i].validated;
        unchecked += row_unchecked(&rows[i]) != NULL;
        if (!is_variant)
            continue;
        ran++;
        bad += !row_ok(&rows[i]);
        against_oracle = rows[i].against_oracle;
    }
    char oracle[64];
    snprintf(oracle, sizeof oracle, "the fp64 oracle on %d rows", r->sample_count);
    int naive_ran = naive && row_ran(naive), alone = naive && !variants;
    if (forward && !row_ok(forward))
        printf("FAIL  the forward pass, %s, disagrees with %s\n", forward->name, oracle);
    else if (naive_ran && !row_ok(naive))
        printf("FAIL  " NAIVE " disagrees with %s\n", oracle);
    else if (bad && !validated)
        printf("FAIL  %d of %d variants wrote where nothing of theirs is\n", bad, ran);
    else if (bad)
        printf("FAIL  %d of %d variants %s with %s\n", bad, ran, bad == 1 ? "disagrees" : "disagree",
               against_oracle ? oracle : NAIVE);
    else if (ran == 0 && !(alone && naive_ran))
        printf("NOT RUN  no variant of %s can run this problem here\n", r->stage->name);
    else if (!validated)
        printf("not validated\n");
    else if (unchecked)
        printf("NOT CHECKED  %d of %d results: rounding alone may change them by half of the largest value\n", unchecked,
               validated);
    else if (alone)
        printf("PASS  " NAIVE " agrees with %s\n", oracle);
    else
        printf("PASS  %d %s with %s\n", ran, ran == 1 ? "variant agrees" : "variants agree",
               against_oracle ? oracle : NAIVE);
}

/* ---- the three calls ---- */

void report_start(const Report *r) {
    if (r->options->format == FORMAT_TABLE)
        table_start(r);
    else if (r->options->format == FORMAT_CSV && r->options->selected == 0)
        csv_start(r);
    flush_output(); /* a kernel may yet end the program */
}

void report_row(const Report *r, const Row *row) {
    if (r->options->format == FORMAT_TABLE)
        table_row(r, row);
    else
        record_row(r, row);
    flush_output();
}

void report_end(const Report *r, const Row *rows, int count) {
    FILE *details = r->options->format == FORMAT_TABLE ? stdout : stderr;
    if (r->options->format == FORMAT_TABLE)
        table_end(r, rows, count);
    for (int i = 0; i < count; i++) {
        const Row *row = &rows[i];
        if (!row_ran(row))
            continue;
        if (*row->damaged)
            fprintf(details, "%s: wrote outside %s\n", row->name, row->damaged);
        for (int c = 0; c < row->comparison_count; c++)
            if (!row->comparisons[c].ok) {
                fprintf(details, "%s: ", row->name);
                comparison_print(details, &row->comparisons[c]);
            }
        if (row_ok(row) && row_unchecked(row)) {
            char note[sizeof row->note];
            row_note(row, note, sizeof note);
            fprintf(details, "%s: %s\n", row->name, note);
        }
    }
    if (r->options->format == FORMAT_TABLE)
        print_verdict(r, rows, count);
    flush_output();
}
