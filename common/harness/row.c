/* row.c - see row.h. */
#include "row.h"

#include <stdio.h>
#include <string.h>

int row_ran(const Row *row) { return !*row->note; }
int row_ok(const Row *row) {
    int ok = row_ran(row) && !*row->damaged;
    for (int i = 0; i < row->comparison_count; i++)
        ok = ok && row->comparisons[i].ok;
    return ok;
}

const Comparison *row_unchecked(const Row *row) {
    for (int i = 0; i < row->comparison_count; i++)
        if (row->comparisons[i].empty)
            return &row->comparisons[i];
    return NULL;
}

void row_note(const Row *row, char *text, size_t size) {
    const Comparison *c = row_ran(row) && row_ok(row) ? row_unchecked(row) : NULL;
    if (c)
        snprintf(text, size, "not checked: rounding alone may change %s by %.2g, and it is at most %.2g", c->tensor,
                 c->loosest, c->largest);
    else
        snprintf(text, size, "%s", row->note);
}

const Comparison *row_worst(const Row *row) {
    const Comparison *worst = &row->comparisons[0];
    for (int i = 1; i < row->comparison_count; i++) {
        const Comparison *c = &row->comparisons[i];
        if ((worst->ok && !c->ok) || (row->direction == BACKWARD_PASS && c->severity > worst->severity))
            worst = c;
    }
    return worst;
}

double row_tflops(const Report *r, const Row *row) {
    return directions[row->direction].passes
               ? counted_flops(r->problem, r->options->key_lengths, row->direction) / (row->latency_ms * 1e9)
               : NAN;
}

double row_of_peak(const Report *r, const Row *row) {
    return row->peak_tflops > 0 ? 100 * row_tflops(r, row) / row->peak_tflops : NAN;
}

double row_intensity(const Report *r, const Row *row) {
    double flops = counted_flops(r->problem, r->options->key_lengths, row->direction);
    return flops > 0 ? flops / row->gpu_bytes : NAN;
}

double row_noise(const Row *row) { return row->runs >= 4 ? row->iqr_ms / row->latency_ms : NAN; }

/* 00_naive knows none of the stage's own options, the 8-bit cache among them: its bytes are those without. */
double row_gbps(const Report *r, const Row *row) {
    Problem p = *r->problem;
    if (row->role == ROW_REFERENCE)
        memset(p.settings, 0, sizeof p.settings);
    const int *key_lengths = r->options->key_lengths;
    double moved = r->stage->bytes ? r->stage->bytes(&p, key_lengths) : compulsory_bytes(&p, key_lengths, row->direction);
    return directions[row->direction].passes ? moved / (row->latency_ms * 1e6) : NAN;
}

void setting_text(const Setting *setting, int value, char *text, size_t size) {
    if (setting->max && value > 0) {
        snprintf(text, size, "%d", value);
        return;
    }
    if (!setting->choices) { /* a flag */
        snprintf(text, size, "%s", value ? "on" : "off");
        return;
    }
    const char *choice = setting->choices;
    for (int i = 0; i < value; i++)
        choice += strcspn(choice, "|") + 1;
    snprintf(text, size, "%.*s", (int)strcspn(choice, "|"), choice);
}
