/* forward.c - a forward stage: what its variants write, and how that is judged. See task.h. */
#include "run.h"

/* Fills in the row's errors against fp64, in sampled rows. */
static void sample_errors(Run *run, Row *row) {
    if (!run->samples.count)
        run->samples = samples_compute(run->p, run->options.key_lengths, &run->inputs);
    run->report.sample_count = run->samples.count;
    row->errors = samples_errors(&run->samples, run->outputs[0].host);
    row->errors_known = 1;
}

void judge_outputs(Run *run, Launch *launch, Row *row) {
    const Output *o = &run->outputs[0], *lse = &run->outputs[1];
    sample_errors(run, row);
    if (directions[launch->direction].prepares) {
        judge_prepared(run, launch, row);
        return;
    }
    row->against_oracle = !o->reference;
    if (row->against_oracle) {
        row->comparisons[0] = samples_compare_output(&run->samples, o->host);
        row->comparisons[1] = samples_compare_lse(&run->samples, lse->host);
    } else {
        row->comparisons[0] = compare_output(run->p, o->host, o->reference, lse->reference, run->samples.score_size);
        row->comparisons[1] = compare_lse(run->p, lse->host, lse->reference, run->samples.score_size);
    }
}

const Task forward_task = {
    .title = "forward",
    .direction = FORWARD_PASS,
    .columns = SHOW_TFLOPS,
    .outputs = {FORWARD_OUTPUTS},
    .output_count = 2,
    .judge = judge_outputs,
    .time = time_launch,
    .parts = run_preparation,
};
