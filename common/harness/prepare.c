/* prepare.c - what the program does beyond the usual for a variant that prepares its inputs (stage.h): another
 * reference, and two more rows. See run.h.
 */
#include "../judge/prepared.h"
#include "run.h"

#include <stdio.h>

void judge_prepared(Run *run, const Launch *launch, Row *row) {
    const int *lengths = run->options.key_lengths;
    const void *o = run->outputs[0].host;
    const float *lse = run->outputs[1].host;
    row->comparison_count = PREPARED_COMPARISONS;
    row->against_oracle = !compare_prepared(run->p, launch->variant, lengths, run->device.key_lengths, &run->inputs,
                                            launch->workspace, o, lse, REFERENCE_NAIVE, row->comparisons);
    if (row->against_oracle)
        compare_prepared(run->p, launch->variant, lengths, run->device.key_lengths, &run->inputs, launch->workspace, o, lse,
                         REFERENCE_SAMPLES, row->comparisons);
}

/* Whether another variant of the stage has prepared its inputs in the same way. */
static int is_timed(const Run *run, const Variant *variant) {
    const Variant *first = run->only ? run->only : run->stage->variants;
    for (; first != variant; first++)
        if (first->prepare == variant->prepare && variant_prepares(first, run->p) && !variant_refuses(first, run->p))
            return 1;
    return 0;
}

void run_preparation(Run *run, const Launch *launch, const Row *row) {
    const Variant *v = launch->variant;
    char both[sizeof row->name];
    if (!variant_prepares(v, run->p))
        return;
    if (!is_timed(run, v))
        run_part(run, launch, row, PREPARE, v->prepare_name);
    snprintf(both, sizeof both, "%s+%s", v->prepare_name, v->name);
    run_part(run, launch, row, WITH_PREPARE, both);
}
