/* verdict.c - see verdict.h. */
#include "verdict.h"

#include "../host/text.h"
#include "row.h"

#include <stdio.h>
#include <string.h>

void print_failures(const Run *run) {
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
int print_verdict(const Run *run) {
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
        printf("FAIL  %s wrote outside its own memory\n", first_bad->name);
    else if (first_bad && first_bad->role == ROW_FORWARD)
        printf("FAIL  the forward pass, %s, disagrees with %s\n", first_bad->name, oracle);
    else if (first_bad && first_bad->role == ROW_REFERENCE)
        printf("FAIL  " NAIVE " disagrees with %s\n", oracle);
    else if (wrong && ran == 1)
        printf("FAIL  the variant disagrees with %s\n", with);
    else if (wrong)
        printf("FAIL  %d of %d variants %s with %s\n", wrong, ran, wrong == 1 ? "disagrees" : "disagree", with);
    else if (first_bad)
        printf("FAIL  %d of %d variants wrote outside their own memory\n", outside, ran);
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
