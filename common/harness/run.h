/* run.h - the state of one run of a stage's program, and the steps that it is made of, in the order they are taken.
 */
#ifndef FA_RUN_H
#define FA_RUN_H

#include "../device/device.h"
#include "../judge/gradient.h"
#include "../judge/samples.h"
#include "../stage.h"
#include "options.h"
#include "refuse.h"
#include "report.h"
#include "task.h"
#include "tensors.h"

typedef struct Run {
    const Stage *stage;
    const Task *task; /* the table of the stage's kind */
    Options options;
    const Problem *p;
    const Variant *only;      /* the one that --variant named, or NULL */
    const Variant *reference; /* 00_naive, of the stage's direction */
    const Variant *forward;   /* a backward stage's, for this problem; else NULL */
    HostTensors inputs;
    Tensors device; /* the inputs; the outputs of the variant that is running */
    Output outputs[MAX_OUTPUTS];
    int output_count;
    Samples samples; /* computed when first needed */
    Report report;
    Row rows[3 * MAX_VARIANTS + 2]; /* up to three a variant; the first is a backward stage's forward pass, with its workspace */
    int row_total;
    double reference_ms;

    /* a backward stage */
    void *o; /* on the host: what the forward pass wrote */
    float *lse;
    GradientScale gradient_scale; /* and samples: computed when first needed */
    GradientSamples gradient_samples;
} Run;

/* One launch of a variant, with what its direction says comes before it or instead of it; `context` for device_time_ms. */
typedef struct Launch {
    const Run *run;
    const Variant *variant;
    const Tensors *tensors;
    const Buffer *workspace;
    Direction direction;
} Launch;

/* ---- variant.c: a variant from its allocation to its row ---- */

/* Runs, judges and times a variant as run->task says, and prints its row. */
void run_variant(Run *run, const Variant *variant, Role role);
/* Times what the launch does in another direction, and prints that as a row, "<stage>/<name>". */
void run_part(Run *run, const Launch *launch, const Row *row, Direction direction, const char *name);
/* "01_tiled/mma", "00_naive"; a backward stage's forward pass brings its own stage's name. */
void name_row(const Run *run, const Variant *variant, Row *row);
/* A copy of a host array on the device; ends the program if it does not fit. */
void *upload(const void *host, size_t bytes, const char *purpose);
/* The task's outputs take the place of those there are. */
void set_outputs(Run *run, const Task *task);
/* Fills in the row's workspace, not yet allocated. */
void plan_workspace(const Run *run, const Variant *variant, Row *row);
/* Allocates outputs and workspace, filled with NaN. Returns 0 if they do not fit; free_outputs frees what did. */
int alloc_outputs(Run *run, Row *row);
void free_outputs(Run *run, Row *row);
void free_workspace(Row *row);
/* Allocates one piece of workspace, filled with zeros or NaN as it asks. Returns 0 if it does not fit. */
int alloc_buffer(Buffer *buffer);

/* ---- timing.c ---- */

void launch_once(void *launch);
/* Fills in the row's latency: launches one by one. */
void time_launch(Launch *launch, Row *row);
/* Calls `sample(context)`, which returns ms, for 15 ms and then as often as --iters or a budget of time
 * says. Fills in the row's sample: how many, median, least and interquartile range. */
void take_median(const Run *run, double (*sample)(void *), void *context, Row *row);

/* ---- forward.c ---- */

/* Fills in the row's comparisons, O and LSE against 00_naive, or against fp64 where it did not run; and its errors against fp64,
 * in sampled rows. */
void judge_outputs(Run *run, Launch *launch, Row *row);

/* ---- prepare.c: variants that prepare their inputs ---- */

/* The comparisons of such a variant, against attention of the prepared inputs. */
void judge_prepared(Run *run, const Launch *launch, Row *row);
/* Times the preparation, and it and the variant together, and prints a row for each. */
void run_preparation(Run *run, const Launch *launch, const Row *row);

/* ---- tracing.c: --trace ---- */

/* Counts what the variant that --variant names, or each of the stage, does to memory. Returns the exit code: 1 if there is a
 * race, 2 if none can run. */
int trace_variants(Run *run);

#endif
