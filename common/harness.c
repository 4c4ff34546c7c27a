/* harness.c - the program every stage is: harness_main of stage.h.
 *
 * In order: options, inputs, 00_naive, the stage's variants. Each variant gets fresh output and workspace, which hold NaN,
 * runs once, is compared with 00_naive (and that with the fp64 oracle), and only then is timed.
 */
#define _GNU_SOURCE /* isatty */
#include "check.h"
#include "device.h"
#include "options.h"
#include "parallel.h"
#include "report.h"
#include "samples.h"
#include "stage.h"
#include "tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- one run of the program ---- */

typedef struct {
    const Stage *stage;
    Options options;
    const Problem *p;
    const Variant *only; /* the one that --variant named, or NULL */
    HostTensors inputs;
    Tensors device;        /* the inputs; O and LSE of the variant that is running */
    void *o, *reference_o; /* on the host: of the variant that ran last; of 00_naive, NULL if it did not run */
    float *lse, *reference_lse;
    Samples samples; /* computed when first needed */
    Report report;
    Row rows[MAX_VARIANTS + 1];
    int row_total;
    double naive_ms;
} Run;

/* One line on a terminal, overwritten by the next and gone at the end (text NULL). */
static void progress(const Run *run, const char *name, const char *text) {
    if (run->options.format != FORMAT_TABLE || !isatty(STDERR_FILENO))
        return;
    fprintf(stderr, "\r\033[K");
    if (text)
        fprintf(stderr, "%s: %s ...", name, text);
    fflush(stderr);
}

static size_t output_bytes(const Problem *p) { return query_elements(p) * dtype_bytes(p->dtype); }
static size_t lse_bytes(const Problem *p) { return row_count(p) * sizeof(float); }

/* A copy of a host array on the device. */
static void *upload(const Run *run, const void *host, size_t bytes, const char *purpose) {
    void *device = device_alloc(bytes, purpose);
    if (!device)
        cannot_run(run->stage, "out of device memory: %s needs %.2f GiB, beside %.2f GiB in use", purpose,
                   (double)bytes / 0x1p30, (double)device_allocated() / 0x1p30);
    device_write(device, host, bytes);
    return device;
}

/* ---- timing ---- */

typedef struct {
    const Variant *variant;
    const Problem *p;
    const Tensors *tensors;
    const Buffer *workspace;
} Launch;

static void launch_once(void *context) {
    const Launch *l = context;
    l->variant->launch(l->p, l->tensors, l->workspace);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Runs until the clocks have settled, then `iters` times; 0: for about 100 ms, at least 5 and at most 100 times. The CPU
 * device needs no warming up and is slow: half a second, and one run may have to do. */
static void time_variant(Launch *launch, int iters, int is_cpu, Row *row) {
    double times[100], *all = iters > 100 ? host_alloc((size_t)iters, sizeof *all) : times;
    double warm_up = is_cpu ? 0 : 15, budget = is_cpu ? 500 : 100;
    int least = is_cpu ? 1 : 5, count = 0;
    for (double spent = 0; spent < warm_up;)
        spent += device_time_ms(launch_once, launch) + 1e-3; /* a clock that stands still must not keep us here */
    for (double spent = 0; iters ? count < iters : count < 100 && (count < least || spent < budget); count++)
        spent += all[count] = device_time_ms(launch_once, launch);
    qsort(all, (size_t)count, sizeof *all, ascending);
    row->latency_ms = (all[(count - 1) / 2] + all[count / 2]) / 2;
    row->min_ms = all[0];
    if (all != times)
        free(all);
}

/* ---- one variant ---- */

/* O, LSE and the workspace, all NaN. Returns 0 if they do not fit; what did is then freed by free_outputs all the same. */
static int alloc_outputs(Run *run, Row *row) {
    run->device.o = device_alloc(output_bytes(run->p), "O");
    run->device.lse = device_alloc(lse_bytes(run->p), "LSE");
    int fits = run->device.o && run->device.lse;
    for (int i = 0; fits && i < row->workspace_count; i++) {
        row->workspace[i].pointer = device_alloc(row->workspace[i].bytes, row->workspace[i].purpose);
        fits = row->workspace[i].pointer != NULL;
    }
    return fits;
}

static void free_outputs(Run *run, Row *row) {
    device_free(run->device.o);
    device_free(run->device.lse);
    for (int i = 0; i < row->workspace_count; i++)
        device_free(row->workspace[i].pointer);
}

/* What the first run left in run->o and run->lse against the best reference there is. */
static void validate(Run *run, int is_naive, Row *row) {
    row->validated = 1;
    if (!run->samples.count)
        run->samples = samples_compute(run->p, run->options.key_lengths, &run->inputs);
    row->against_oracle = is_naive || !run->reference_o;
    if (row->against_oracle) {
        run->report.sample_count = run->samples.count;
        row->o = samples_compare_output(&run->samples, run->o);
        row->lse = samples_compare_lse(&run->samples, run->lse);
    } else {
        row->o = compare_output(run->p, run->o, run->reference_o, run->reference_lse, run->samples.score_size);
        row->lse = compare_lse(run->p, run->lse, run->reference_lse);
    }
}

/* Launches the variant once and looks at all it left behind. */
static void run_once(Run *run, Launch *launch, Row *row) {
    int is_naive = launch->variant == &naive_variant;
    progress(run, row->name, "running");
    launch_once(launch);
    device_synchronize();
    const char *damaged = device_damaged();
    if (damaged)
        snprintf(row->damaged, sizeof row->damaged, "%s", damaged);
    if (!run->options.validate && !run->options.save)
        return;

    run->o = run->o ? run->o : host_alloc(output_bytes(run->p), 1);
    run->lse = run->lse ? run->lse : host_alloc(lse_bytes(run->p), 1);
    device_read(run->o, run->device.o, output_bytes(run->p));
    device_read(run->lse, run->device.lse, lse_bytes(run->p));
    if (!run->options.validate)
        return;
    progress(run, row->name, "comparing");
    validate(run, is_naive, row);
    if (is_naive && run->only != &naive_variant) { /* keep what it computed for the variants to come */
        run->reference_o = run->o;
        run->reference_lse = run->lse;
        run->o = NULL;
        run->lse = NULL;
    }
}

static void run_variant(Run *run, const Variant *variant) {
    const Problem *p = run->p;
    Row *row = &run->rows[run->row_total++];
    int is_naive = variant == &naive_variant;
    snprintf(row->name, sizeof row->name, "%s%s%s", is_naive ? "" : run->stage->name, is_naive ? "" : "/", variant->name);
    row->tensor_bytes = device_allocated() + output_bytes(p) + lse_bytes(p);
    const char *reason = variant_refuses(variant, p);
    if (reason) {
        snprintf(row->note, sizeof row->note, "not run: %s", reason);
        report_row(&run->report, row);
        return;
    }

    row->workspace_count = variant->plan ? variant->plan(p, row->workspace) : 0;
    for (int i = 0; i < row->workspace_count; i++) {
        row->workspace[i].pointer = NULL;
        row->workspace_bytes += row->workspace[i].bytes;
    }
    if (alloc_outputs(run, row)) {
        Launch launch = {variant, p, &run->device, row->workspace};
        run_once(run, &launch, row);
        progress(run, row->name, "timing");
        time_variant(&launch, run->options.iters, run->report.device->is_cpu, row);
        if (is_naive)
            run->naive_ms = row->latency_ms;
        row->speed_ratio = run->naive_ms / row->latency_ms;
    } else {
        snprintf(row->note, sizeof row->note, "out of memory: needs %.2f GiB",
                 (double)(row->tensor_bytes + row->workspace_bytes) / 0x1p30);
    }
    free_outputs(run, row);
    progress(run, row->name, NULL);
    report_row(&run->report, row);
}

/* ---- the program ---- */

/* 0: all agree. 1: one does not. 2: nothing of what was asked for could run. */
static int exit_code(const Run *run) {
    int ran = 0;
    for (int i = 0; i < run->row_total; i++) {
        const Row *row = &run->rows[i];
        if (row_ran(row) && !row_ok(row))
            return 1;
        ran += row_ran(row) && (run->row_total == 1 || strcmp(row->name, NAIVE) != 0);
    }
    return ran ? 0 : 2;
}

static void free_run(Run *run) {
    const void *on_device[] = {run->device.q, run->device.k, run->device.v, run->device.key_lengths};
    for (int i = 0; i < 4; i++)
        device_free((void *)on_device[i]);
    void *on_host[] = {run->inputs.q,    run->inputs.k,      run->inputs.v, run->options.key_lengths, run->o, run->lse,
                       run->reference_o, run->reference_lse, run->samples.o};
    for (int i = 0; i < 9; i++)
        free(on_host[i]);
}

static const Variant *find_variant(const Stage *stage, const char *name) {
    for (int i = 0; i < MAX_VARIANTS && stage->variants[i].name; i++)
        if (strcmp(stage->variants[i].name, name) == 0)
            return &stage->variants[i];
    return &naive_variant;
}

int harness_main(const Stage *stage, int argc, char **argv) {
    Run run = {.stage = stage, .options = options_parse(stage, argc, argv)};
    Options *options = &run.options;
    const Problem *p = run.p = &options->problem;
    if (options->save)
        save_check(stage, options->save);
    if (options->load)
        run.inputs = tensors_load(stage, options);
    const DeviceProperties *device = device_properties();
    options_complete(options, stage, device->is_cpu);
    const Variant *only = run.only = options->variant ? find_variant(stage, options->variant) : NULL;
    const char *reason = only ? variant_refuses(only, p) : NULL;
    if (reason)
        cannot_run(stage, "--variant %s cannot run here: %s", options->variant, reason);

    if (!options->load)
        run.inputs = tensors_random(stage, p, options->seed);
    run.device.q = upload(&run, run.inputs.q, query_elements(p) * dtype_bytes(p->dtype), "Q");
    run.device.k = upload(&run, run.inputs.k, key_elements(p) * dtype_bytes(p->dtype), "K");
    run.device.v = upload(&run, run.inputs.v, key_elements(p) * dtype_bytes(p->dtype), "V");
    if (options->key_lengths)
        run.device.key_lengths = upload(&run, options->key_lengths, (size_t)p->batch * sizeof(int), "key lengths");

    run.report = (Report){.stage = stage,
                          .problem = p,
                          .key_lengths = options->key_lengths,
                          .device = device,
                          .load = options->load,
                          .format = options->format};
    report_start(&run.report);
    if (!only || only == &naive_variant || options->validate)
        run_variant(&run, &naive_variant);
    if (only && only != &naive_variant)
        run_variant(&run, only);
    for (int i = 0; !only && i < MAX_VARIANTS && stage->variants[i].name; i++)
        run_variant(&run, &stage->variants[i]);
    report_end(&run.report, run.rows, run.row_total);

    if (options->save && row_ran(&run.rows[run.row_total - 1])) /* the variant named ran last */
        save_outputs(stage, options->save, p, run.o, run.lse);
    free_run(&run);
    return exit_code(&run);
}
