/* judge_row.c - see judge_row.h. */
#include "judge_row.h"

#include "../host/memory.h"
#include "../judge/rows.h"
#include "../numeric.h"
#include "judge_prepared.h"
#include "launch.h"
#include "run.h"
#include "variant.h"

#include <stdio.h>
#include <stdlib.h>

/* O and LSE against 00_naive's; for 00_naive itself, and where it did not run, against fp64 in sampled rows. In these rows O's
 * errors against fp64 are kept in any case. */
static void judge_outputs(Row *row) {
    Run *run = row->run;
    const Tensor *o = &row->outputs[0], *lse = &row->outputs[1];
    if (!run->samples.count)
        run->samples = samples_compute(run->p, run->options->key_lengths, &run->inputs, MAX_SAMPLES);
    row->errors = samples_errors(&run->samples, o->host);
    if (variant_rounds(row->variant, run->p)) {
        judge_prepared(row);
    } else {
        row->against_oracle = !o->reference;
        row->comparison_count = FORWARD_OUTPUTS;
        row->comparisons[0] = compare_output(&run->samples, o->host, o->reference, lse->reference);
        row->comparisons[1] = compare_lse(&run->samples, lse->host, lse->reference);
    }
}

/* How far dQ, dK and dV of a few more launches are from the first. They may differ only in a variant that is `unordered`. */
static void measure_spread(Row *row) {
    const Run *run = row->run;
    row->spread = 0;
    row->spread_runs = 4;
    size_t q = row->outputs[GRADIENT_Q].bytes, k = row->outputs[GRADIENT_K].bytes;
    void *again = host_alloc(q > k ? q : k, 1); /* one gradient at a time */
    for (int repeat = 1; repeat < row->spread_runs; repeat++) {
        launch_whole_row(row);
        for (int i = 0; i < row->output_count; i++) {
            const Tensor *output = &row->outputs[i];
            device_read(again, *pointer_to(&row->tensors, output), output->bytes);
            Comparison c = compare_runs(run->p, (Gradient)i, again, output->host);
            row->spread = worse(c.max_error, row->spread);
            if (!row->variant->unordered)
                comparison_repeat(&row->comparisons[i], &c);
        }
    }
    free(again);
}

/* A kernel that rounds dS to 16 bits gets infinity where dS is too large for them, and then NaN, though dQ and dK may be small
 * numbers. dV does not hang on dS. */
static void find_cause(Row *row) {
    const Run *run = row->run;
    const Dtype dtype = run->p->dtype;
    for (Gradient which = GRADIENT_Q; which < GRADIENT_V && !*row->cause; which++) {
        const Comparison *c = &row->comparisons[which];
        if (c->ok || isfinite(c->got))
            continue;
        double ds = largest_score_gradient(&run->gradients, run->options->key_lengths, &run->inputs, run->outputs[0].host,
                                           run->outputs[1].host, which, c);
        if (ds >= dtype_beyond(dtype))
            snprintf(
                row->cause, sizeof row->cause,
                "dS reaches %.2g and is infinite in %s, which ends at %.5g: choose a loss scale of 2^%d or less, that is, "
                "multiply dO by it and divide the gradients by it",
                ds, dtype_name(dtype), dtype_largest(dtype), (int)floor(log2(dtype_largest(dtype) / ds)));
    }
}

/* Rows of dQ, dK and dV that are looked at in fp64: as many of a short sequence as take the time of 64 rows of 4096. */
static size_t gradient_samples(const Problem *p) {
    const size_t queries = (size_t)p->seqlen_q * (p->heads / p->kv_heads), keys = (size_t)p->seqlen_k;
    const size_t rows = (size_t)MAX_SAMPLES * 4096 / (queries > keys ? queries : keys);
    return rows < MAX_SAMPLES ? MAX_SAMPLES : rows > 16 * MAX_SAMPLES ? 16 * MAX_SAMPLES : rows;
}

/* The gradients against 00_naive's, or as above against fp64 samples. The forward pass's O and LSE are the run's
 * first outputs. */
static void judge_gradients(Row *row) {
    Run *run = row->run;
    if (!run->gradients.p)
        run->gradients = gradients_compute(run->p, run->options->key_lengths, &run->inputs, run->outputs[0].host,
                                           run->outputs[1].host, gradient_samples(run->p));
    row->against_oracle = !row->outputs[0].reference;
    row->comparison_count = row->output_count;
    for (int i = 0; i < row->output_count; i++)
        row->comparisons[i] =
            compare_gradient(&run->gradients, (Gradient)i, row->outputs[i].host, row->outputs[i].reference);
    find_cause(row);
    if (row->role == ROW_VARIANT)
        measure_spread(row);
}

void judge_row(Row *row) {
    if (row->passes == FORWARD_PASS)
        judge_outputs(row);
    else
        judge_gradients(row);
}
