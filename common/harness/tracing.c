/* tracing.c - the program with --trace: one launch of each variant, and what it did to memory. See ../trace/trace.h. */
#ifdef TRACE
#include "../host/errors.h"
#include "../trace/trace.h"
#include "prepare.h"
#include "run.h"

#include <stdio.h>

/* Records one launch of the variant and prints what it did to memory. Returns how many races and wrong formulas there are;
 * -1: it cannot run. */
static int trace_variant(Run *run, const Variant *v) {
    Row *row = &run->rows[1]; /* the first is the forward pass's */
    const Options *o = &run->options;
    const char *reason = variant_refuses(v, run->p);
    Traffic predicted[MAX_TRAFFIC];
    name_row(run, v, row);
    if (reason) {
        fprintf(stderr, "%s: not traced: %s\n", row->name, reason);
        return -1;
    }
    plan_workspace(run, v, row);
    if (!alloc_outputs(run, row))
        cannot_run("%s: out of memory", row->name);
    trace_begin(o->roofline);
    if (variant_prepares(v, run->p))
        v->preparation->launch(run->p, &run->device, row->workspace);
    v->launch(run->p, &run->device, row->workspace);
    const Trace *trace = trace_end();
    int count = v->predict ? v->predict(run->p, o->key_lengths, predicted) : 0;
    if (variant_prepares(v, run->p))
        count += v->preparation->predict(run->p, o->key_lengths, predicted + count);
    double flops = counted_flops(run->p, o->key_lengths, run->task->direction);
    int wrong = trace_print(trace, row->name, run->p, flops, predicted, count, o->format == FORMAT_JSON);
    flush_output();
    if (o->watch)
        trace_page_variant(row->name, v->idea);
    free_outputs(run, row);
    return trace->race_count + wrong;
}

int trace_variants(Run *run) {
    const Options *o = &run->options;
    int traced = 0, wrong = 0;
    set_outputs(run, run->task);
    if (run->task->start_untimed)
        run->task->start_untimed(run);
    if (o->watch)
        trace_page_begin(o->watch, run->stage->name, run->p, o->key_lengths, o->roofline);
    for (int i = 0; i < MAX_VARIANTS && (run->only ? i < 1 : run->stage->variants[i].name != NULL); i++) {
        int found = trace_variant(run, run->only ? run->only : &run->stage->variants[i]);
        traced += found >= 0;
        wrong += found > 0;
    }
    if (o->watch)
        trace_page_end();
    if (!traced)
        fprintf(stderr, "%s: --trace: no variant can run this problem here\n", run->stage->name);
    return wrong ? 1 : traced ? 0 : 2;
}
#else
typedef int not_an_empty_file;
#endif
