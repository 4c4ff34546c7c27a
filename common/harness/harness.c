/* harness.c - the program every stage is: harness_main of stage.h.
 *
 * In order: options, inputs, 00_naive, the stage's variants. Each variant gets fresh output and workspace, which hold NaN,
 * runs once, is compared with 00_naive (and that with the fp64 oracle), and only then is timed.
 */
#define _GNU_SOURCE /* isatty */
#include "../host/allocation.h"
#include "../host/errors.h"
#include "../judge/prepared.h"
#include "budget.h"
#include "run.h"
#include "../trace/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- one run of the program ---- */

void progress(const Run *run, const char *name, const char *text) {
    if (run->options.format != FORMAT_TABLE || !isatty(STDERR_FILENO))
        return;
    fprintf(stderr, "\r\033[K");
    if (text)
        fprintf(stderr, "%s: %s ...", name, text);
    fflush(stderr);
}

void *upload(const void *host, size_t bytes, const char *purpose) {
    void *device = device_alloc(bytes, purpose);
    if (!device)
        cannot_run("out of device memory: %s needs %.2f GiB, beside %.2f GiB in use", purpose, (double)bytes / 0x1p30,
                   (double)device_allocated() / 0x1p30);
    device_write(device, host, bytes);
    return device;
}

int alloc_buffer(Buffer *buffer) {
    buffer->pointer = device_alloc(buffer->bytes, buffer->purpose);
    if (buffer->pointer && buffer->zeroed) {
        void *zeros = host_alloc(buffer->bytes, 1); /* calloc */
        device_write(buffer->pointer, zeros, buffer->bytes);
        free(zeros);
    }
    return buffer->pointer != NULL;
}

void add_output(Run *run, const char *name, size_t bytes, void **device) {
    run->outputs[run->output_count++] = (Output){name, bytes, device, NULL, NULL};
}

/* ---- timing ---- */

void launch_once(void *context) {
    const Launch *l = context;
    const Problem *p = l->run->p;
    if (l->direction == BOTH)
        l->run->stage->forward->launch(p, l->tensors, NULL);
    if (l->direction == PREPARE || l->direction == WITH_PREPARE)
        l->variant->prepare(p, l->tensors, l->workspace);
    if (l->direction != PREPARE)
        l->variant->launch(p, l->tensors, l->workspace);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Warms up until the clocks have settled, then takes --iters samples; 0: for about 100 ms, at least 5 and at most 100. The CPU
 * device needs no warming up and is slow: half a second, and one sample may have to do. */
void take_median(const Run *run, double (*sample)(void *), void *context, Row *row) {
    int iters = run->options.iters, is_cpu = run->report.device->is_cpu;
    double times[100], *all = iters > 100 ? host_alloc((size_t)iters, sizeof *all) : times;
    double warm_up = is_cpu ? 0 : 15, budget = is_cpu ? 500 : 100;
    int least = is_cpu ? 1 : 5, count = 0;
    for (double spent = 0; spent < warm_up;)
        spent += sample(context) + 1e-3; /* a clock that stands still must not keep us here */
    for (double spent = 0; iters ? count < iters : count < 100 && (count < least || spent < budget); count++)
        spent += all[count] = sample(context);
    qsort(all, (size_t)count, sizeof *all, ascending);
    row->latency_ms = (all[(count - 1) / 2] + all[count / 2]) / 2;
    row->min_ms = all[0];
    if (all != times)
        free(all);
}

static double time_once(void *context) {
    const Launch *l = context;
    return device_time_ms(launch_once, context, l->run->options.warm);
}

void time_launch(Launch *launch, Row *row) { take_median(launch->run, time_once, launch, row); }

/* ---- one variant ---- */

/* The outputs and the workspace, all NaN. Returns 0 if they do not fit; what did is then freed by free_outputs all the same. */
static int alloc_outputs(Run *run, Row *row) {
    int fits = 1;
    for (int i = 0; i < run->output_count; i++) {
        *run->outputs[i].device = device_alloc(run->outputs[i].bytes, run->outputs[i].name);
        fits = fits && *run->outputs[i].device;
    }
    for (int i = 0; fits && i < row->workspace_count; i++)
        fits = alloc_buffer(&row->workspace[i]);
    return fits;
}

static void free_outputs(Run *run, Row *row) {
    for (int i = 0; i < run->output_count; i++)
        device_free(*run->outputs[i].device);
    for (int i = 0; i < row->workspace_count; i++)
        device_free(row->workspace[i].pointer);
}

void sample_errors(Run *run, Row *row) {
    if (!run->samples.count)
        run->samples = samples_compute(run->p, run->options.key_lengths, &run->inputs);
    run->report.sample_count = run->samples.count;
    row->errors = samples_errors(&run->samples, run->outputs[0].host);
    row->errors_known = 1;
}

/* What the first run left in O and LSE against the best reference there is. */
static void validate_outputs(Run *run, Row *row) {
    const Output *o = &run->outputs[0], *lse = &run->outputs[1];
    sample_errors(run, row);
    row->against_oracle = !o->reference;
    if (row->against_oracle) {
        run->report.sample_count = run->samples.count;
        row->comparisons[0] = samples_compare_output(&run->samples, o->host);
        row->comparisons[1] = samples_compare_lse(&run->samples, lse->host);
    } else {
        row->comparisons[0] = compare_output(run->p, o->host, o->reference, lse->reference, run->samples.score_size);
        row->comparisons[1] = compare_lse(run->p, lse->host, lse->reference, run->samples.score_size);
    }
}

/* Launches the variant once and looks at all it left behind. */
static void run_once(Run *run, Launch *launch, Row *row) {
    progress(run, row->name, "running");
    launch_once(launch);
    device_synchronize();
    if (!run->options.validate && !run->options.save)
        return;

    for (int i = 0; i < run->output_count; i++) {
        Output *output = &run->outputs[i];
        output->host = output->host ? output->host : host_alloc(output->bytes, 1);
        device_read(output->host, *output->device, output->bytes);
    }
    if (!run->options.validate)
        return;
    progress(run, row->name, "comparing");
    row->validated = 1;
    row->comparison_count = run->output_count;
    if (launch->direction == WITH_PREPARE)
        validate_prepared(run, launch, row);
    else if (row->direction == BACKWARD)
        validate_gradients(run, row);
    else
        validate_outputs(run, row);
    if (row->direction == BACKWARD && launch->variant != run->reference)
        measure_spread(run, launch, row);
    if (launch->variant == run->reference && run->only != run->reference)
        for (int i = 0; i < run->output_count; i++) { /* keep what it computed for the variants to come */
            run->outputs[i].reference = run->outputs[i].host;
            run->outputs[i].host = NULL;
        }
}

void finish_row(Run *run, Row *row) {
    for (const char *damaged; (damaged = device_damaged());)
        snprintf(row->damaged, sizeof row->damaged, "%s", damaged);
    progress(run, row->name, NULL);
    report_row(&run->report, row);
}

/* "01_tiled/mma", "00_naive"; a backward stage's forward pass brings its own stage's name. */
static void name_row(const Run *run, const Variant *v, Row *row) {
    int is_whole = v == run->reference || v == run->stage->forward;
    snprintf(row->name, sizeof row->name, "%s%s%s", is_whole ? "" : run->stage->name, is_whole ? "" : "/", v->name);
}

void run_variant(Run *run, const Variant *variant, Direction direction) {
    const Problem *p = run->p;
    Row *row = &run->rows[run->row_total++];
    name_row(run, variant, row);
    row->direction = direction;
    row->tensor_bytes = device_allocated();
    for (int i = 0; i < run->output_count; i++)
        row->tensor_bytes += run->outputs[i].bytes;
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
    int prepares = direction == FORWARD && variant_prepares(variant, p);
    Launch launch = {run, variant, &run->device, row->workspace, prepares ? WITH_PREPARE : direction};
    if (alloc_outputs(run, row)) {
        run_once(run, &launch, row);
        progress(run, row->name, "timing");
        launch.direction = direction;
        (run->stage->bytes ? time_replay : time_launch)(&launch, row);
        if (variant == run->reference)
            run->reference_ms = row->latency_ms;
        row->speed_ratio = run->reference_ms / row->latency_ms;
    } else {
        snprintf(row->note, sizeof row->note, "out of memory: needs %.2f GiB",
                 (double)(row->tensor_bytes + row->workspace_bytes) / 0x1p30);
    }
    finish_row(run, row);
    if (variant == run->stage->forward && row_ran(row))
        return; /* its O and LSE are what the backward pass starts from */
    if (direction == BACKWARD && variant != run->reference && row_ran(row))
        run_both(run, &launch, row);
    if (prepares && row_ran(row))
        run_preparation(run, &launch, row);
    free_outputs(run, row);
}

/* ---- --trace ---- */

#ifdef TRACE
/* Records one launch of the variant and prints what it did to memory. Returns how many races there are; -1: it cannot run. */
static int trace_variant(Run *run, const Variant *v) {
    Row *row = &run->rows[0];
    const Options *o = &run->options;
    const char *reason = variant_refuses(v, run->p);
    Traffic predicted[MAX_TRAFFIC];
    if (reason) {
        fprintf(stderr, "%s: not traced: %s\n", v->name, reason);
        return -1;
    }
    name_row(run, v, row);
    row->workspace_count = v->plan ? v->plan(run->p, row->workspace) : 0;
    if (!alloc_outputs(run, row))
        cannot_run("%s: out of memory", row->name);
    trace_begin();
    if (variant_prepares(v, run->p))
        v->prepare(run->p, &run->device, row->workspace);
    v->launch(run->p, &run->device, row->workspace);
    const Trace *trace = trace_end();
    int count = v->predict ? v->predict(run->p, o->key_lengths, predicted) : 0;
    double flops = counted_flops(run->p, run->stage->forward ? BACKWARD : FORWARD);
    trace_print(trace, row->name, run->p, flops, predicted, count, o->roofline, o->format == FORMAT_JSON);
    flush_output();
    free_outputs(run, row);
    return trace->race_count;
}

/* The variant that --variant names, or all of the stage. The exit code: 1 if there is a race. */
static int trace_variants(Run *run) {
    if (run->stage->forward) {
        if (!alloc_outputs(run, &run->rows[0]))
            cannot_run("out of memory");
        run->stage->forward->launch(run->p, &run->device, NULL);
        gradients_are_outputs(run);
    }
    if (run->only)
        return trace_variant(run, run->only) > 0;
    int traced = 0, races = 0;
    for (int i = 0; i < MAX_VARIANTS && run->stage->variants[i].name; i++) {
        int found = trace_variant(run, &run->stage->variants[i]);
        traced += found >= 0;
        races += found > 0;
    }
    if (!traced)
        fprintf(stderr, "%s: --trace: no variant can run this problem here\n", run->stage->name);
    return races ? 1 : traced ? 0 : 2;
}
#endif

/* ---- the program ---- */

/* 0: all agree. 1: one does not. 2: nothing of what was asked for could run, or not all of it could be checked. */
static int exit_code(const Run *run) {
    int ran = 0, unchecked = 0;
    for (int i = 0; i < run->row_total; i++) {
        const Row *row = &run->rows[i];
        if (row_ran(row) && !row_ok(row))
            return 1;
        unchecked += row_unchecked(row) != NULL;
        ran += row_ran(row) && (is_variant_row(row, run->stage) || run->only == run->reference);
    }
    return ran && !unchecked ? 0 : 2;
}

static void free_run(Run *run) {
    const void *on_device[] = {run->device.q, run->device.k, run->device.v, run->device.key_lengths};
    for (int i = 0; i < 4; i++)
        device_free((void *)on_device[i]);
    void *on_host[] = {run->inputs.q, run->inputs.k, run->inputs.v, run->samples.o};
    for (int i = 0; i < 4; i++)
        free(on_host[i]);
    for (int i = 0; i < run->output_count; i++) {
        free(run->outputs[i].host);
        free(run->outputs[i].reference);
    }
    if (run->stage->forward)
        free_backward(run);
}

static const Variant *reference_of(const Stage *stage) { return stage->reference ? stage->reference : &naive_variant; }

/* The one that --variant names; NULL: all. */
static const Variant *named_variant(const Options *o) {
    const Stage *stage = o->stage;
    for (int i = 0; o->variant && i < MAX_VARIANTS && stage->variants[i].name; i++)
        if (strcmp(stage->variants[i].name, o->variant) == 0)
            return &stage->variants[i];
    return o->variant ? reference_of(stage) : NULL;
}

/* The selected problem, from its inputs to its verdict. Returns the exit code. */
static int run_problem(const Options *options) {
    const Stage *stage = options->stage;
    const Problem *p = &options->problem;
    Run run = {.stage = stage, .options = *options, .p = p};
    run.reference = reference_of(stage);
    const Variant *only = run.only = named_variant(options);
    run.inputs = options->load ? tensors_load(options->load, p, stage->forward != NULL)
                               : tensors_random(p, options->seed, options->outliers, stage->forward != NULL);
    run.device.q = upload(run.inputs.q, query_elements(p) * dtype_bytes(p->dtype), "Q");
    run.device.k = upload(run.inputs.k, key_elements(p) * dtype_bytes(p->dtype), "K");
    run.device.v = upload(run.inputs.v, key_elements(p) * dtype_bytes(p->dtype), "V");
    if (options->key_lengths)
        run.device.key_lengths = upload(options->key_lengths, (size_t)p->batch * sizeof(int), "key lengths");
    if (stage->forward)
        prepare_backward(&run);
    add_output(&run, "O", query_elements(p) * dtype_bytes(p->dtype), &run.device.o);
    add_output(&run, "LSE", row_count(p) * sizeof(float), (void **)&run.device.lse);

#ifdef TRACE
    if (options->trace) {
        int code = trace_variants(&run);
        free_run(&run);
        return code;
    }
#endif
    run.report = (Report){.stage = stage,
                          .problem = p,
                          .key_lengths = options->key_lengths,
                          .device = device_properties(),
                          .load = options->load,
                          .options = options,
                          .format = options->format};
    if (stage->bytes)
        run.report.bandwidth = device_bandwidth();
    report_start(&run.report);
    Direction direction = stage->forward ? BACKWARD : FORWARD;
    if (stage->forward)
        run_forward(&run);
    if (only == run.reference || options->validate)
        run_variant(&run, run.reference, direction);
    if (only && only != run.reference)
        run_variant(&run, only, direction);
    for (int i = 0; !only && i < MAX_VARIANTS && stage->variants[i].name; i++)
        run_variant(&run, &stage->variants[i], direction);
    if (options->save && row_ran(&run.rows[run.row_total - 1])) { /* the variant named ran last */
        if (stage->forward)
            save_gradients(options->save, p, run.outputs[0].host, run.outputs[1].host, run.outputs[2].host);
        else
            save_outputs(options->save, p, run.outputs[0].host, run.outputs[1].host);
    }
    report_end(&run.report, run.rows, run.row_total);
    free_run(&run);
    return exit_code(&run);
}

/* The problem is known from here on, and that it can run: no mistake is left but those in the numbers of --load. */
static void select_problem(Options *options, int index) {
    options_select(options, index, device_properties()->is_cpu);
    const Variant *only = named_variant(options), *forward = options->stage->forward;
    const char *reason;
    if (only && (reason = variant_refuses(only, &options->problem)))
        cannot_run("--variant %s cannot run here: %s", options->variant, reason);
    if (forward && (reason = variant_refuses(forward, &options->problem)))
        cannot_run("the forward pass cannot run here: %s %s", forward->name, reason);
    budget_check(options);
}

int harness_main(const Stage *stage, int argc, char **argv) {
    program_is(stage->name);
    Options options = options_parse(stage, argc, argv);
    int count = options.problem_count, codes[3] = {0};
    if (options.save)
        save_check(options.save);
    if (options.load)
        tensors_read_headers(&options, stage->forward != NULL);
    for (int i = 0; i < count; i++)
        select_problem(&options, i);
    for (int i = 0; i < count; i++) {
        select_problem(&options, i);
        codes[run_problem(&options)]++;
    }
    if (count > 1 && options.format == FORMAT_TABLE)
        printf("\n%d problems: %d good, %d bad, %d not run or not checked\n", count, codes[0], codes[1], codes[2]);
    flush_output();
    options_free(&options);
    return codes[1] ? 1 : codes[2] ? 2 : 0;
}
