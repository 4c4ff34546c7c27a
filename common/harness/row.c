/* row.c - see row.h. */
#include "row.h"

#include "../host/chips.h"
#include "../host/text.h"
#include "../traffic.h"
#include "variant.h"

#include <stdio.h>
#include <string.h>

int row_unchecked(const Row *row) {
    int results = 0, empty = 0;
    while (results < row->comparison_count && (row->passes == BACKWARD_PASS || results < FORWARD_OUTPUTS))
        empty += row->comparisons[results++].empty;
    return results && empty == results;
}

const char *row_note(const Row *row) {
    static char text[400];
    if (!row_ran(row) || !row_ok(row))
        return row_ran(row) ? row->cause : row->note;
    *text = 0;
    for (const Comparison *c = row->comparisons; c < row->comparisons + row->comparison_count; c++)
        if (c->empty)
            append(text, sizeof text, "%s %s by %.2g, and it is at most %.2g",
                   *text ? ";" : "not checked: rounding alone may change", c->tensor, c->loosest, c->largest);
    return text;
}

/* What is right and not checked comes behind everything else. */
static double rank_of(const Comparison *c) { return c->ok && c->empty ? -2 : c->severity; }

const Comparison *row_worst(const Row *row) {
    const Comparison *worst = &row->comparisons[0];
    for (int i = 0; i < row->comparison_count; i++) {
        const Comparison *c = &row->comparisons[i];
        const int may_be_worse = row->passes == BACKWARD_PASS || (worst->ok && worst->empty);
        if ((worst->ok && !c->ok) || (may_be_worse && rank_of(c) > rank_of(worst)))
            worst = c;
    }
    return worst;
}

int row_has_errors(const Row *row) { return row->comparison_count && row->passes & FORWARD_PASS; }

const char *passes_name(Passes passes) {
    return passes == PREPARE        ? "prepare"
           : passes == WITH_PREPARE ? "prepare and forward"
           : passes == BOTH         ? "both"
           : passes == FORWARD_PASS ? "forward"
                                    : "backward";
}

/* ---- FLOPs and bytes ---- */

double counted_flops(const Problem *p, const int *key_lengths, Passes passes) {
    int is_half = p->causal && p->seqlen_q == p->seqlen_k && !key_lengths && !p->blocks && !has_window(p);
    double pairs = is_half ? (double)row_count(p) * p->seqlen_k / 2 : visible_pairs(p, key_lengths);
    double forward = 4.0 * pairs * p->head_dim;
    return (passes & FORWARD_PASS ? forward : 0) + (passes & BACKWARD_PASS ? 2.5 * forward : 0);
}

double compulsory_bytes(const Problem *p, const int *key_lengths, Passes passes, size_t key_bytes) {
    double q = query_bytes(p), lse = row_bytes(p), gradients = 2.0 * (double)key_elements(p) * (double)dtype_bytes(p->dtype);
    double keys = 2 * all_keys(p, key_lengths) * p->kv_heads / p->heads * p->head_dim * (double)key_bytes;
    return (passes & FORWARD_PASS ? 2 * q + keys + lse : 0) + (passes & BACKWARD_PASS ? 4 * q + keys + gradients + lse : 0);
}

double moved_bytes(const Row *row) {
    const Run *run = row->run;
    int is_cached = variant_rounds(row->variant, run->p) && row->variant->preparation->key_bytes;
    return compulsory_bytes(run->p, run->options->key_lengths, row->passes,
                            is_cached ? row->variant->preparation->key_bytes : dtype_bytes(run->p->dtype));
}

int row_traffic(const Row *row, Traffic *traffic) {
    Predictor *formulas[3];
    int kernels = 0, count = 0;
    if (row->passes != PREPARE)
        formulas[kernels++] = row->variant->predict;
    if (row->passes & PREPARE)
        formulas[kernels++] = row->variant->preparation->predict;
    if (row->passes == BOTH)
        formulas[kernels++] = row->run->forward->predict;
    for (int i = 0; i < kernels; i++) {
        if (!formulas[i])
            return -1;
        count += formulas[i](row->run->p, row->run->options->key_lengths, traffic + count);
    }
    return count;
}

double peak_tflops(const DeviceProperties *device, Dtype dtype, int eight_bits) {
    for (size_t i = 0; i < sizeof MULTIPROCESSORS / sizeof *MULTIPROCESSORS; i++) {
        if (MULTIPROCESSORS[i].chip != device->chip)
            continue;
        double flops = dtype == DTYPE_FP32 ? MULTIPROCESSORS[i].fp32 : MULTIPROCESSORS[i].tensor;
        if (dtype != DTYPE_FP32 && strstr(device->name, "GeForce"))
            flops /= 2;
        if (eight_bits && device->chip >= 89)
            flops *= 2;
        return flops * device->sm_count * device->clock_mhz * 1e-6;
    }
    return NAN;
}

static double flops_of(const Row *row, const Problem *p) {
    return row->passes == PREPARE ? NAN : counted_flops(p, row->run->options->key_lengths, row->passes);
}

double row_tflops(const Row *row) { return flops_of(row, row->run->p) / (row->latency_ms * 1e9); }
double row_dense_tflops(const Row *row) {
    Problem dense = *row->run->p;
    dense.blocks = NULL;
    return flops_of(row, &dense) / (row->latency_ms * 1e9);
}
double row_gbps(const Row *row) { return row->passes == PREPARE ? NAN : moved_bytes(row) / (row->latency_ms * 1e6); }
double row_of_peak(const Row *row) { return 100 * row_tflops(row) / row->peak_tflops; }
double row_intensity(const Row *row) { return flops_of(row, row->run->p) / row->gpu_bytes; }
double row_noise(const Row *row) { return row->runs >= 4 ? row->iqr_ms / row->latency_ms : NAN; }

const char *setting_text(const Run *run, int number) {
    static char text[64];
    const Setting *setting = &run->stage->settings[number];
    const int value = run->p->settings[number];
    if (setting->max == TEXT)
        return run->p->score ? run->p->score->text : run->p->blocks ? run->p->blocks->text : run->stage->read_score ? "none" : "all";
    if (setting->max && value > 0) {
        snprintf(text, sizeof text, "%d", value);
        return text;
    }
    const char *choice = setting->choices ? setting->choices : "off|on";
    for (int i = 0; i < value; i++)
        choice += strcspn(choice, "|") + 1;
    snprintf(text, sizeof text, "%.*s", (int)strcspn(choice, "|"), choice);
    return text;
}
