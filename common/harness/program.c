/* program.c - the program every stage is: harness_main of stage.h.
 *
 * In order: options, inputs, 00_naive, the stage's variants, the verdict. Each variant gets fresh outputs and workspace, which
 * hold NaN, runs once, is compared with 00_naive (and that with the fp64 oracle), and only then is timed (variant.c).
 */
#include "../host/errors.h"
#include "budget.h"
#include "run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static const Variant *reference_of(const Stage *stage) { return stage->reference ? stage->reference : &naive_variant; }

/* The one that --variant names; NULL: all. */
static const Variant *named_variant(const Options *o) {
    const Stage *stage = o->stage;
    for (int i = 0; o->variant && i < MAX_VARIANTS && stage->variants[i].name; i++)
        if (strcmp(stage->variants[i].name, o->variant) == 0)
            return &stage->variants[i];
    return o->variant ? reference_of(stage) : NULL;
}

/* The inputs, and what else the task takes, on the device. */
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
    void *on_host[] = {h->q, h->k, h->v, h->d_o, run->o, run->lse, run->samples.o};
    for (size_t i = 0; i < sizeof on_host / sizeof *on_host; i++)
        free(on_host[i]);
    for (int i = 0; i < run->output_count; i++) {
        free(run->outputs[i].host);
        free(run->outputs[i].reference);
    }
    if (run->forward)
        free_workspace(&run->rows[0]);
    free_gradient_samples(&run->gradient_samples);
}

/* The selected problem, from its inputs to its verdict. Returns the exit code. */
static int run_problem(const Options *options) {
    const Stage *stage = options->stage;
    const Task *task = task_of(stage);
    const Problem *p = &options->problem;
    Run run = {.stage = stage,
               .task = task,
               .options = *options,
               .p = p,
               .only = named_variant(options),
               .reference = reference_of(stage),
               .forward = forward_of(stage, p)};
    run.report = (Report){.stage = stage, .task = task, .problem = p, .options = options, .device = device_properties()};
    run.inputs = options->load ? tensors_load(options, task->with_d_o)
                               : tensors_random(p, options->seed, options->outliers, task->with_d_o);
    if (options->save_inputs)
        save_inputs(options->save_inputs, p, &run.inputs);
    upload_inputs(&run);
#ifdef TRACE
    if (options->trace) {
        int code = trace_variants(&run);
        free_run(&run);
        return code;
    }
#endif
    if (task->columns & SHOW_GBPS)
        run.report.bandwidth = device_bandwidth();
    report_start(&run.report);
    run_variants(&run);
    if (options->save && row_ran(&run.rows[run.row_total - 1])) /* the variant named ran last */
        save_outputs(options->save, p, run.outputs, run.output_count, run.o, run.lse);
    report_end(&run.report, run.rows, run.row_total);
    free_run(&run);
    return exit_code(&run);
}

/* The problem is known from here on, and that it can run: no mistake is left but those in the numbers of --load. */
static void select_problem(Options *options, int index) {
    options_select(options, index, device_properties()->is_cpu);
    const Variant *only = named_variant(options), *forward = forward_of(options->stage, &options->problem);
    const char *reason;
    if (only && (reason = variant_refuses(only, &options->problem)))
        cannot_run("--variant %s cannot run here: %s", options->variant, reason);
    if (forward && (reason = variant_refuses(forward, &options->problem)))
        cannot_run("the forward pass cannot run here: %s %s", forward->name, reason);
    budget_check(options);
}

static void choose_device(int number) {
    int count = device_count();
    if (number >= count)
        cannot_run(count == 1 ? "--device %d: choose 0, there is one device" : "--device %d: choose from 0 to %d", number,
                   count - 1);
    device_choose(number);
}

int harness_main(const Stage *stage, int argc, char **argv) {
    program_is(stage->name);
    for (const Variant *v = stage->variants; v < stage->variants + MAX_VARIANTS && v->name; v++)
        if (!v->launch || !v->dtypes)
            cannot_run("the row of %s in main.c needs .launch and .dtypes", v->name);
    Options options = options_parse(stage, argc, argv);
    int count = options.problem_count, codes[3] = {0};
    if (options.save)
        save_check("save", options.save);
    if (options.save_inputs)
        save_inputs_check(options.save_inputs, options.load);
    if (options.device >= 0)
        choose_device(options.device);
    if (options.load)
        tensors_read_headers(&options, task_of(stage)->with_d_o);
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
