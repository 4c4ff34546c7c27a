/* backward.c - a backward stage: the forward pass comes first, and gradients are judged in place of outputs. See task.h. */
#include "../device/device.h"
#include "../host/memory.h"
#include "../host/errors.h"
#include "run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A kernel computes S again and takes LSE from another that computed S: each has its own rounding errors, and P = e^(S - LSE),
 * at most 1, turns their difference x into a factor e^x. The end is where a row's sum is no longer checked (LSE_FLOOR). */
static void check_scores(const Problem *p, const HostTensors *in) {
    double size = score_size(p, in->q, in->k), off = score_error(p->head_dim, size);
    if (!(off <= LSE_FLOOR))
        cannot_run(
            "--scale %g: scores of up to %.2g, off by up to %.2g in fp32, too far for e^S: choose a scale below %.2g here",
            p->scale, size, off, p->scale * LSE_FLOOR / off);
}

static void load(Run *run) {
    const Problem *p = run->p;
    check_scores(p, &run->inputs);
    run->device.d_o = upload(run->inputs.d_o, query_elements(p) * dtype_bytes(p->dtype), "dO");
}

/* The forward pass has left O and LSE; what variants write from now on are gradients. */
static void gradients_are_outputs(Run *run) {
    run->o = run->outputs[0].host;
    run->lse = run->outputs[1].host;
    set_outputs(run, run->task);
}

/* The forward pass has a row of its own, as in a forward stage. */
static void start(Run *run) {
    run->task = &forward_task;
    set_outputs(run, run->task);
    run_variant(run, run->forward, ROW_FORWARD);
    if (!row_ran(&run->rows[0]))
        cannot_run("the forward pass: %s", run->rows[0].note);
    run->task = &backward_task;
    gradients_are_outputs(run);
}

static void start_untimed(Run *run) {
    set_outputs(run, &forward_task);
    plan_workspace(run, run->forward, &run->rows[0]);
    if (!alloc_outputs(run, &run->rows[0]))
        cannot_run("out of memory");
    run->forward->launch(run->p, &run->device, run->rows[0].workspace);
    gradients_are_outputs(run);
}

/* Against 00_naive's gradients, or for 00_naive itself against fp64 samples. */
static void compare_gradients(Run *run, Row *row) {
    const Problem *p = run->p;
    const HostTensors *in = &run->inputs;
    if (!run->gradient_samples.p) {
        run->gradient_scale = gradient_scale(p, in, run->lse);
        run->gradient_samples =
            gradient_samples_compute(p, run->options.key_lengths, in, run->o, run->lse, &run->gradient_scale);
    }
    row->against_oracle = !run->outputs[0].reference;
    if (row->against_oracle)
        run->report.sample_count = run->gradient_samples.query_count;
    for (int i = 0; i < GRADIENT_COUNT; i++) {
        const Output *o = &run->outputs[i];
        Comparison samples = gradient_samples_compare(&run->gradient_samples, (Gradient)i, o->host, o->reference,
                                                      &run->gradient_scale),
                   all = samples;
        if (o->reference)
            all = compare_gradient(p, (Gradient)i, o->host, o->reference, &run->gradient_scale);
        if (all.ok) /* sampled rows have narrower bounds of their own */
            comparison_merge(&all, &samples);
        row->comparisons[i] = all;
    }
}

/* How far dQ, dK and dV of a few more launches are from the first: fills in row->spread, and fails a variant that claims that
 * they are not. */
static void measure_spread(Run *run, Launch *launch, Row *row) {
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
            if (!launch->variant->unordered) { /* nothing is allowed, then */
                Comparison c = compare_gradient(run->p, (Gradient)i, again, output->host, &(GradientScale){.relative = {0}});
                comparison_merge(&row->comparisons[i], &c);
            }
        }
        free(again);
    }
}

static void judge(Run *run, Launch *launch, Row *row) {
    compare_gradients(run, row);
    if (row->role == ROW_VARIANT)
        measure_spread(run, launch, row);
}

static void run_both(Run *run, const Launch *launch, const Row *row) {
    run_part(run, launch, row, BOTH, launch->variant->name);
}

const Task backward_task = {
    .title = "forward and backward",
    .direction = BACKWARD_PASS,
    .columns = SHOW_DIRECTION | SHOW_TFLOPS,
    .with_d_o = 1,
    .outputs = {{"dQ", "dq.npy", LIKE_Q, offsetof(Tensors, dq)},
                {"dK", "dk.npy", LIKE_K, offsetof(Tensors, dk)},
                {"dV", "dv.npy", LIKE_K, offsetof(Tensors, dv)}},
    .output_count = GRADIENT_COUNT,
    .load = load,
    .start = start,
    .start_untimed = start_untimed,
    .judge = judge,
    .time = time_launch,
    .parts = run_both,
};
