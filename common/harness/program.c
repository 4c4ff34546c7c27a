/* program.c - the program every stage is: harness_main of stage.h.
 *
 * In order: options, inputs, 00_naive, the stage's variants, the verdict. Each variant gets fresh outputs and workspace, which
 * hold NaN, runs once, is compared with 00_naive (and that with the fp64 oracle), and only then is timed (variant.c).
 */
#include "../host/errors.h"
#include "run.h"

#include <stdlib.h>
#include <string.h>

const Task *task_of(const Stage *stage) {
    return stage->forward ? &backward_task : stage->bytes ? &decoding_task : &forward_task;
}

/* 0: all agree. 1: one does not. 2: nothing of what was asked for could run, or not all of it could be checked. */
static int exit_code(const Run *run) {
    int ran = 0, unchecked = 0;
    for (int i = 0; i < run->row_total; i++) {
        const Row *row = &run->rows[i];
        if (row_ran(row) && !row_ok(row))
            return 1;
        unchecked += row_unchecked(row) != NULL;
        ran += row_ran(row) && (row->role == ROW_VARIANT || run->only == run->reference);
    }
    return ran && !unchecked ? 0 : 2;
}

static const Variant *find_variant(const Run *run, const char *name) {
    const Stage *stage = run->stage;
    for (int i = 0; name && i < MAX_VARIANTS && stage->variants[i].name; i++)
        if (strcmp(stage->variants[i].name, name) == 0)
            return &stage->variants[i];
    return name ? run->reference : NULL;
}

/* The inputs on the host, and the whole problem. */
static void load_inputs(Run *run) {
    Options *options = &run->options;
    int with_d_o = run->task->with_d_o;
    if (options->save)
        save_check(options->save);
    if (options->load)
        run->inputs = tensors_load(options, with_d_o);
    options_complete(options, run->stage, run->report.device->is_cpu);
    run->only = find_variant(run, options->variant);
    const char *reason = run->only ? variant_refuses(run->only, run->p) : NULL;
    if (reason)
        cannot_run("--variant %s cannot run here: %s", options->variant, reason);
    if (!options->load)
        run->inputs = tensors_random(run->p, options->seed, options->outliers, with_d_o);
}

/* They, and what else the task takes, on the device. */
static void upload_inputs(Run *run) {
    const Problem *p = run->p;
    size_t element = dtype_bytes(p->dtype);
    run->device.q = upload(run->inputs.q, query_elements(p) * element, "Q");
    run->device.k = upload(run->inputs.k, key_elements(p) * element, "K");
    run->device.v = upload(run->inputs.v, key_elements(p) * element, "V");
    if (run->options.key_lengths)
        run->device.key_lengths = upload(run->options.key_lengths, (size_t)p->batch * sizeof(int), "key lengths");
    if (run->task->load)
        run->task->load(run);
}

static void run_variants(Run *run) {
    set_outputs(run, run->task);
    if (run->task->start)
        run->task->start(run);
    if (run->only == run->reference || run->options.validate)
        run_variant(run, run->reference, ROW_REFERENCE);
    for (int i = 0; i < MAX_VARIANTS && run->stage->variants[i].name; i++)
        if (!run->only || run->only == &run->stage->variants[i])
            run_variant(run, &run->stage->variants[i], ROW_VARIANT);
}

static void free_run(Run *run) {
    Tensors *t = &run->device;
    const void *on_device[] = {t->q, t->k, t->v, t->d_o, t->o, t->lse, t->key_lengths};
    for (size_t i = 0; i < sizeof on_device / sizeof *on_device; i++)
        device_free((void *)on_device[i]);
    HostTensors *h = &run->inputs;
    void *on_host[] = {h->q, h->k, h->v, h->d_o, run->o, run->lse, run->options.key_lengths, run->samples.o};
    for (size_t i = 0; i < sizeof on_host / sizeof *on_host; i++)
        free(on_host[i]);
    for (int i = 0; i < run->output_count; i++) {
        free(run->outputs[i].host);
        free(run->outputs[i].reference);
    }
    free_gradient_samples(&run->gradient_samples);
}

int harness_main(const Stage *stage, int argc, char **argv) {
    program_is(stage->name);
    Run run = {.stage = stage, .task = task_of(stage), .options = options_parse(stage, argc, argv)};
    run.p = &run.options.problem;
    run.reference = stage->reference ? stage->reference : &naive_variant;
    run.report =
        (Report){.stage = stage, .task = run.task, .problem = run.p, .options = &run.options, .device = device_properties()};
    load_inputs(&run);
    upload_inputs(&run);
#ifdef TRACE
    if (run.options.trace)
        return trace_variants(&run);
#endif
    if (run.task->columns & SHOW_GBPS)
        run.report.bandwidth = device_bandwidth();
    report_start(&run.report);
    run_variants(&run);
    if (run.options.save && row_ran(&run.rows[run.row_total - 1])) /* the variant named ran last */
        save_outputs(run.options.save, run.p, run.outputs, run.output_count);
    report_end(&run.report, run.rows, run.row_total);
    free_run(&run);
    return exit_code(&run);
}
