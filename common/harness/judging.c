/* judging.c - what a variant wrote, which is on the host by now, against what is right. See run.h. */
#include "../host/memory.h"
#include "../judge/rows.h"
#include "checks.h"
#include "run.h"

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
        launch_row(row);
        for (int i = 0; i < row->output_count; i++) {
            const Tensor *output = &row->outputs[i];
            device_read(again, *pointer_to(&row->tensors, output), output->bytes);
            Comparison c = compare_runs(run->p, (Gradient)i, again, output->host);
            row->spread = worse(c.max_error, row->spread);
            if (!row->variant->unordered)
                comparison_merge(&row->comparisons[i], &c);
        }
    }
    free(again);
}

/* The gradients against 00_naive's, or as above against fp64 samples. The forward pass's O and LSE are the run's
 * first outputs. */
static void judge_gradients(Row *row) {
    Run *run = row->run;
    if (!run->gradients.p)
        run->gradients = gradients_compute(run->p, run->options->key_lengths, &run->inputs, run->outputs[0].host,
                                           run->outputs[1].host, MAX_SAMPLES);
    row->against_oracle = !row->outputs[0].reference;
    row->comparison_count = GRADIENT_COUNT;
    for (int i = 0; i < GRADIENT_COUNT; i++)
        row->comparisons[i] =
            compare_gradient(&run->gradients, (Gradient)i, row->outputs[i].host, row->outputs[i].reference);
    if (row->role == ROW_VARIANT)
        measure_spread(row);
}

void judge_row(Row *row) {
    if (row->passes == FORWARD_PASS)
        judge_outputs(row);
    else
        judge_gradients(row);
}
