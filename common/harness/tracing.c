/* tracing.c - see tracing.h. */
#include "tracing.h"

#include "../host/errors.h"
#include "../trace/trace.h"
#include "launch.h"
#include "row.h"
#include "variant.h"

#ifdef TRACE

#include <stdio.h>

static Row *alloc_or_end(Run *run, const Variant *v, Role role) {
    Row *row = new_row(run, v, role);
    if (!alloc_row(row))
        cannot_run("%s: out of memory", row->name);
    return row;
}

/* Records one launch of the variant and prints what it did to memory. Returns how many races and wrong formulas there are;
 * -1: it cannot run. */
static int trace_variant(Run *run, const Variant *v) {
    const Options *o = run->options;
    const char *reason = variant_refuses(v, run->p);
    Traffic predicted[MAX_TRAFFIC];
    if (reason) {
        fprintf(stderr, "%s/%s: not traced: %s\n", run->stage->name, v->name, reason);
        return -1;
    }
    Row *row = alloc_or_end(run, v, v == run->reference ? ROW_REFERENCE : ROW_VARIANT);
    if (variant_prepares(v, run->p))
        row->passes |= PREPARE;
    trace_begin(o->roofline);
    if (v->scatter) /* while the trace looks, for it follows copies */
        v->scatter(run->p, &row->tensors, row->workspace);
    trace_announce(1);
    if (v->collect)
        v->collect(run->p, &row->tensors, row->workspace);
    trace_announce(0);
    int count = row_traffic(row, predicted); /* while the chip is simulated, for formulas that ask how large it is */
    launch_row(row);
    const Trace *trace = trace_end();
    double flops = counted_flops(run->p, o->key_lengths, row->passes);
    int wrong = trace_print(trace, row->name, run->p, flops, predicted, count, o->format == FORMAT_JSON);
    flush_output();
    if (o->watch)
        trace_page_variant(row->name, v->idea);
    free_row(row);
    return trace->race_count + wrong;
}

int trace_variants(Run *run) {
    const Options *o = run->options;
    int traced = 0, wrong = 0;
    if (run->forward) {
        Row *row = alloc_or_end(run, run->forward, ROW_FORWARD);
        launch_row(row);
        run->tensors = row->tensors;
    }
    if (o->watch)
        trace_page_begin(o->watch, run->stage->name, run->p, o->key_lengths, o->roofline);
    for (int i = 0; run->only ? i < 1 : run->stage->variants[i].name != NULL; i++) {
        int found = trace_variant(run, run->only ? run->only : &run->stage->variants[i]);
        traced += found >= 0;
        wrong += found > 0;
    }
    if (o->watch)
        trace_page_end();
    if (!traced)
        fprintf(stderr, "%s: no variant can run this problem here\n", run->stage->name);
    return wrong ? 1 : traced ? 0 : 2;
}
#else
int trace_variants(Run *run) {
    cannot_run("--trace: this program was built without the trace; make trace-%s builds and runs one that has it",
               run->stage->name);
}
#endif
