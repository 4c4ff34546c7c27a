/* judging.c - what a variant wrote, which is on the host by now, against what is right. See run.h. */
#include "../host/memory.h"
#include "checks.h"
#include "prepare.h"

#include <stdlib.h>

/* O and LSE against 00_naive's, or where it did not run against fp64 in sampled rows; in these O's errors against fp64, too. */
static void judge_outputs(Row *row) {
    Run *run = row->run;
    const Output *o = &row->outputs[0], *lse = &row->outputs[1];
    if (!run->samples.count)
        run->samples = samples_compute(run->p, run->options->key_lengths, &run->inputs);
    run->sample_count = run->samples.count;
    row->errors = samples_errors(&run->samples, o->host);
    row->against_oracle = !o->reference;
    row->comparison_count = FORWARD_OUTPUTS;
    if (variant_prepares(row->variant, run->p)) {
        judge_prepared(row);
    } else if (row->against_oracle) {
        row->comparisons[0] = samples_compare_output(&run->samples, o->host);
        row->comparisons[1] = samples_compare_lse(&run->samples, lse->host);
    } else {
        row->comparisons[0] = compare_output(run->p, o->host, o->reference, lse->reference, run->samples.score_size);
        row->comparisons[1] = compare_lse(run->p, lse->host, lse->reference, run->samples.score_size);
    }
}

/* The gradients against 00_naive's, or for 00_naive itself against fp64 samples. The forward pass's O and LSE are the run's first
 * outputs. */
static void judge_gradients(Row *row) {
    Run *run = row->run;
    const Problem *p = run->p;
    const void *o = run->outputs[0].host;
    const float *lse = run->outputs[1].host;
    if (!run->gradient_samples.p) {
        run->gradient_scale = gradient_scale(p, &run->inputs, lse);
        run->gradient_samples =
            gradient_samples_compute(p, run->options->key_lengths, &run->inputs, o, lse, &run->gradient_scale);
    }
    row->against_oracle = !row->outputs[0].reference;
    if (row->against_oracle)
        run->sample_count = run->gradient_samples.query_count;
    row->comparison_count = GRADIENT_COUNT;
    for (int i = 0; i < GRADIENT_COUNT; i++) {
        const Output *output = &row->outputs[i];
        Comparison samples = gradient_samples_compare(&run->gradient_samples, (Gradient)i, output->host, output->reference,
                                                      &run->gradient_scale),
                   all = samples;
        if (output->reference)
            all = compare_gradient(p, (Gradient)i, output->host, output->reference, &run->gradient_scale);
        if (all.ok) /* sampled rows have narrower bounds of their own */
            comparison_merge(&all, &samples);
        row->comparisons[i] = all;
    }
}

/* How far dQ, dK and dV of a few more launches are from the first. A variant that is not unordered fails if they are. */
static void measure_spread(Row *row) {
    const Run *run = row->run;
    row->spread = 0;
    row->spread_runs = 4;
    for (int i = 0; i < row->output_count; i++) {
        const Output *output = &row->outputs[i];
        void *again = host_alloc(output->bytes, 1);
        for (int repeat = 1; repeat < row->spread_runs; repeat++) {
            launch_row(row);
            device_synchronize();
            device_read(again, *pointer_to(row, output), output->bytes);
            double difference =
                largest_difference(run->p->dtype, output->host, again, gradient_elements(run->p, (Gradient)i));
            row->spread = difference > row->spread || difference != difference ? difference : row->spread;
            if (!row->variant->unordered) { /* nothing is allowed, then */
                Comparison c = compare_gradient(run->p, (Gradient)i, again, output->host, &(GradientScale){.relative = {0}});
                comparison_merge(&row->comparisons[i], &c);
            }
        }
        free(again);
    }
}

void judge_row(Row *row) {
    if (row->passes == FORWARD_PASS)
        judge_outputs(row);
    else
        judge_gradients(row);
    if (row->passes == BACKWARD_PASS && row->role == ROW_VARIANT)
        measure_spread(row);
}
