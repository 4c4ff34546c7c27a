/* program.c - the program every stage is: harness_main of stage.h.
 *
 * From main to the launch, the judge and the printed row there are five files, to be read in this order:
 *
 *     program.c    the options' problems one by one, each with 00_naive and the variants: run, judged, timed
 *     run.h        what a run knows, and a row
 *     launch.c     a row's outputs and workspace, and its launch
 *     judge_row.c  what it wrote is compared with 00_naive's, and that with the fp64 oracle
 *     report.c     its row is printed
 *
 * Off this way: options.c and help.c (the command line); problems.c (the problems it asks for, one by one); variant.c (what cannot
 * run, and why); memory_need.c; tensors.c (inputs, files); judge_prepared.c (variants that change their inputs first); timing.c; row.c
 * (figures of a row); heading.c, table.c, details.c and verdict.c (what stands above the rows, in them and below); records.c (CSV,
 * JSON); tracing.c.
 */
#define _POSIX_C_SOURCE 200809L /* SIGXFSZ */
#include "../host/errors.h"
#include "../host/memory.h"
#include "../host/text.h"
#include "judge_row.h"
#include "launch.h"
#include "options.h"
#include "problems.h"
#include "report.h"
#include "row.h"
#include "tensors.h"
#include "timing.h"
#include "tracing.h"
#include "variant.h"

#include <signal.h>
#include <stdio.h>

/* Launches the variant once and looks at all it left behind. */
static void run_once(Row *row) {
    Run *run = row->run;
    show_progress("%s: running ...", row->name);
    if (variant_prepares(row->variant, run->p)) /* once: the row is timed without */
        row->variant->preparation->launch(run->p, &row->tensors, row->workspace);
    launch_whole_row(row);
    if (!run->options->validate && !run->options->save)
        return;

    for (int i = 0; i < row->output_count; i++) {
        Tensor *output = &row->outputs[i];
        output->host = output->host ? output->host : host_alloc(output->bytes, 1);
        device_read(output->host, *pointer_to(&row->tensors, output), output->bytes);
    }
    if (!run->options->validate)
        return;
    show_progress("%s: checking ...", row->name);
    judge_row(row);
    if (row->role == ROW_REFERENCE && run->only != run->reference)
        for (int i = 0; i < row->output_count; i++) { /* for the variants to come */
            row->outputs[i].reference = row->outputs[i].host;
            row->outputs[i].host = NULL;
        }
}

/* Runs, judges and times a variant, and prints its rows. The forward pass keeps its outputs and workspace. */
static Row *run_variant(Run *run, const Variant *variant, Role role) {
    Row *row = new_row(run, variant, role);
    const char *reason = variant_refuses(variant, run->p);
    if (reason) {
        snprintf(row->note, sizeof row->note, "not run: %s", reason);
    } else if (alloc_row(row)) {
        run_once(row);
        time_row(row);
    } else {
        Cell bytes;
        print_bytes(bytes, (double)(row->tensor_bytes + row->workspace_bytes));
        snprintf(row->note, sizeof row->note, "out of memory: needs %s", bytes);
    }
    finish_row(row);
    if (role == ROW_VARIANT && row_ran(row))
        time_parts(row);
    if (role != ROW_FORWARD)
        free_row(row);
    return row;
}

/* Returns the last row: that of the one variant named, if one is. */
static const Row *run_variants(Run *run) {
    const Row *last = NULL;
    if (run->forward) {
        const Row *row = run_variant(run, run->forward, ROW_FORWARD);
        if (!row_ran(row))
            cannot_run("the forward pass: %s", row->note);
        run->tensors = row->tensors; /* with O and LSE, which the backward pass starts from */
    }
    if (run->only == run->reference || run->options->validate)
        last = run_variant(run, run->reference, ROW_REFERENCE);
    for (const Variant *v = run->stage->variants; v->name; v++)
        if (!run->only || run->only == v)
            last = run_variant(run, v, ROW_VARIANT);
    return last;
}

/* The selected problem, from its inputs to its verdict. Returns the exit code. */
static int run_problem(const Options *o) {
    Run run = {.stage = o->stage,
               .options = o,
               .p = &o->problem,
               .device = device_properties(),
               .only = named_variant(o),
               .reference = reference_of(o->stage),
               .forward = forward_of(o->stage, &o->problem)};
    load_inputs(&run);
    int code;
    if (o->trace) {
        code = trace_variants(&run);
    } else {
        if (run.stage->kind == DECODING)
            run.bandwidth = device_bandwidth();
        report_start(&run);
        const Row *last = run_variants(&run);
        if (o->save && row_ran(last))
            save_tensors("save", o->save, run.p, run.outputs, run.output_count);
        code = report_end(&run);
    }
    if (run.forward)
        free_row(&run.rows[0]); /* which all of them used */
    free_run(&run);
    return code;
}

int harness_main(const Stage *stage, int argc, char **argv) {
    program_is(stage->name);
    signal(SIGXFSZ, SIG_IGN); /* a file longer than `ulimit -f` allows: the write fails, and the message says so */
    if (stage->variants[MAX_VARIANTS].name)
        cannot_run("main.c has more than %d variants: raise MAX_VARIANTS in common/stage.h", MAX_VARIANTS);
    Options options = options_parse(stage, argc, argv);
    int count = options.problem_count, codes[3] = {0};
    check_options(&options);
    for (int i = 0; i < count; i++) {
        select_problem(&options, i);
        codes[run_problem(&options)]++;
    }
    if (count > 1 && options.format == FORMAT_TABLE)
        printf("\n%d problems: %d good, %d bad, %d not run or not checked\n", count, codes[0], codes[1], codes[2]);
    flush_output();
    options_free(&options);
    return options.rank > 0 ? 0 : codes[1] ? 1 : codes[2] ? 2 : 0;
}
