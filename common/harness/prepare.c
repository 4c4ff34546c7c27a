/* prepare.c - what the program does beyond the usual for a variant that prepares its inputs (stage.h): another
 * reference, and two more rows. See run.h.
 */
#include "../judge/prepared.h"
#include "run.h"

#include <stdio.h>

void validate_prepared(Run *run, const Launch *launch, Row *row) {
    const int *lengths = run->options.key_lengths;
    const void *o = run->outputs[0].host;
    const float *lse = run->outputs[1].host;
    sample_errors(run, row);
    row->comparison_count = PREPARED_COMPARISONS;
    row->against_oracle = !compare_prepared(run->p, launch->variant, lengths, run->device.key_lengths, &run->inputs,
                                            launch->workspace, o, lse, REFERENCE_NAIVE, row->comparisons);
    if (!row->against_oracle)
        return;
    run->report.sample_count = run->samples.count;
    compare_prepared(run->p, launch->variant, lengths, run->device.key_lengths, &run->inputs, launch->workspace, o, lse,
                     REFERENCE_SAMPLES, row->comparisons);
}

/* Times the launch in another direction and prints that as a row of its own. */
static void time_part(Run *run, const Launch *launch, const Row *row, Direction direction, const char *before,
                      const char *name) {
    Row *part = &run->rows[run->row_total++];
    Launch timed = *launch;
    timed.direction = direction;
    *part = *row;
    part->direction = direction;
    part->comparison_count = part->validated = part->errors_known = 0; /* the variant's own row says that */
    part->speed_ratio = 0;
    snprintf(part->name, sizeof part->name, "%s/%s%s%s", run->stage->name, before, *name ? "+" : "", name);
    progress(run, part->name, "timing");
    time_launch(&timed, part);
    finish_row(run, part);
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
    if (!is_timed(run, v))
        time_part(run, launch, row, PREPARE, v->prepare_name, "");
    time_part(run, launch, row, WITH_PREPARE, v->prepare_name, v->name);
}
