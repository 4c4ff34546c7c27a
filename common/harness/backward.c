/* backward.c - what a backward stage does beyond a forward one: the forward pass comes first, and gradients are
 * validated in place of outputs. See run.h.
 */
#include "../device/device.h"
#include "../host/allocation.h"
#include "../host/errors.h"
#include "run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void prepare_backward(Run *run) {
    const Problem *p = run->p;
    run->device.d_o = upload(run->inputs.d_o, query_elements(p) * dtype_bytes(p->dtype), "dO");
}

void run_forward(Run *run) {
    run_variant(run, run->stage->forward, FORWARD);
    if (!row_ran(&run->rows[0]))
        cannot_run("the forward pass: %s", run->rows[0].note);
    gradients_are_outputs(run);
}

void gradients_are_outputs(Run *run) {
    const Problem *p = run->p;
    size_t query_bytes = query_elements(p) * dtype_bytes(p->dtype), key_bytes = key_elements(p) * dtype_bytes(p->dtype);
    run->o = run->outputs[0].host;
    run->lse = run->outputs[1].host;
    run->output_count = 0;
    add_output(run, gradient_name(GRADIENT_Q), query_bytes, &run->device.dq);
    add_output(run, gradient_name(GRADIENT_K), key_bytes, &run->device.dk);
    add_output(run, gradient_name(GRADIENT_V), key_bytes, &run->device.dv);
}

void validate_gradients(Run *run, Row *row) {
    const Problem *p = run->p;
    const HostTensors *in = &run->inputs;
    if (!run->gradient_samples.p) {
        run->gradient_scale = gradient_scale(p, in->q, in->k, in->v, in->d_o);
        run->gradient_samples =
            gradient_samples_compute(p, run->options.key_lengths, in, run->o, run->lse, &run->gradient_scale);
    }
    row->against_oracle = !run->outputs[0].reference;
    if (row->against_oracle)
        run->report.sample_count = run->gradient_samples.query_count;
    for (int i = 0; i < GRADIENT_COUNT; i++)
        row->comparisons[i] =
            row->against_oracle
                ? gradient_samples_compare(&run->gradient_samples, (Gradient)i, run->outputs[i].host, &run->gradient_scale)
                : compare_gradient(p, (Gradient)i, run->outputs[i].host, run->outputs[i].reference, &run->gradient_scale);
}

void measure_spread(Run *run, Launch *launch, Row *row) {
    row->spread = 0;
    row->spread_runs = 4;
    for (int i = 0; i < run->output_count; i++) {
        const Output *output = &run->outputs[i];
        void *again = host_alloc(output->bytes, 1);
        for (int repeat = 1; repeat < row->spread_runs; repeat++) {
            launch_once(launch);
            device_synchronize();
            device_read(again, *output->device, output->bytes);
            double difference =
                largest_difference(run->p->dtype, output->host, again, gradient_elements(run->p, (Gradient)i));
            row->spread = difference > row->spread || difference != difference ? difference : row->spread;
            if (launch->variant->same_bits) { /* nothing is allowed, then */
                Comparison c = compare_gradient(run->p, (Gradient)i, again, output->host, &(GradientScale){.relative = {0}});
                comparison_merge(&row->comparisons[i], &c);
            }
        }
        free(again);
    }
}

void run_both(Run *run, const Launch *backward, const Row *row) {
    Row *both = &run->rows[run->row_total++];
    Launch launch = *backward;
    launch.direction = BOTH;
    *both = *row;
    both->direction = BOTH;
    both->comparison_count = both->validated = both->spread_runs = 0; /* the row before says that */
    both->speed_ratio = 0;
    progress(run, row->name, "timing, with the forward pass");
    time_launch(&launch, both);
    finish_row(run, both);
}

void free_backward(Run *run) {
    device_free((void *)run->device.d_o);
    device_free(run->device.o);
    device_free(run->device.lse);
    free(run->inputs.d_o);
    free(run->o);
    free(run->lse);
    free_gradient_samples(&run->gradient_samples);
}
