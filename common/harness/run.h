/* run.h - the state of one run of a stage's program, which harness.c and backward.c share.
 */
#ifndef FA_RUN_H
#define FA_RUN_H

#include "../device/device.h"
#include "../judge/gradient.h"
#include "options.h"
#include "report.h"
#include "../judge/samples.h"
#include "../stage.h"
#include "tensors.h"

/* One tensor that variants write: O, LSE; or dQ, dK, dV. */
typedef struct {
    const char *name;
    size_t bytes;
    void **device;   /* its place in Run.device */
    void *host;      /* what the variant that ran last wrote; NULL: not read back yet */
    void *reference; /* what 00_naive wrote; NULL: it did not run */
} Output;

typedef struct {
    const Stage *stage;
    Options options;
    const Problem *p;
    const Variant *only;      /* the one that --variant named, or NULL */
    const Variant *reference; /* 00_naive, of the stage's direction */
    HostTensors inputs;
    Tensors device; /* the inputs; the outputs of the variant that is running */
    Output outputs[3];
    int output_count;
    Samples samples; /* computed when first needed */
    Report report;
    Row rows[3 * MAX_VARIANTS + 2]; /* a backward stage has the forward pass, and up to three rows a variant */
    int row_total;
    double reference_ms;

    /* a backward stage */
    void *o; /* on the host: what the forward pass wrote */
    float *lse;
    GradientScale gradient_scale; /* and samples: computed when first needed */
    GradientSamples gradient_samples;
} Run;

/* One launch of a variant, with what its direction says comes before it or instead of it; `context` for device_time_ms. */
typedef struct {
    const Run *run;
    const Variant *variant;
    const Tensors *tensors;
    const Buffer *workspace;
    Direction direction;
} Launch;
void launch_once(void *launch);

/* ---- harness.c ---- */

/* One line on a terminal, overwritten by the next and gone at the end (text NULL). */
void progress(const Run *run, const char *name, const char *text);
/* A copy of a host array on the device; ends the program if it does not fit. */
void *upload(const void *host, size_t bytes, const char *purpose);
/* Allocates one piece of workspace, filled with zeros or NaN as it asks. Returns 0 if it does not fit. */
int alloc_buffer(Buffer *buffer);
/* Fills in the row's errors against fp64, in sampled rows. */
void sample_errors(Run *run, Row *row);
void add_output(Run *run, const char *name, size_t bytes, void **device);
/* Fills in the row's latency. */
void time_launch(Launch *launch, Row *row);
/* Calls `sample(context)`, which returns ms, until the clocks have settled and then as often as --iters or a budget of time
 * says. Fills in the row's latency: median and least. */
void take_median(const Run *run, double (*sample)(void *), void *context, Row *row);
/* Prints the row, with what its launches wrote past the end of. */
void finish_row(Run *run, Row *row);
/* Runs, validates and times a variant, and prints its row. */
void run_variant(Run *run, const Variant *variant, Direction direction);

/* ---- prepare.c ---- */

/* Of a variant that prepares its inputs: validates O and LSE against attention of the prepared inputs. */
void validate_prepared(Run *run, const Launch *launch, Row *row);
/* Times the preparation, and it and the variant together, and prints a row for each. */
void run_preparation(Run *run, const Launch *launch, const Row *row);

/* ---- replay.c ---- */

/* As time_launch, for short kernels: a graph of launches over rotating copies of K and V, replayed. */
void time_replay(Launch *launch, Row *row);

/* ---- backward.c ---- */

/* Puts dO on the device. */
void prepare_backward(Run *run);
/* Runs the forward pass, which leaves O and LSE on the device, and prints its row; then gradients_are_outputs. */
void run_forward(Run *run);
void gradients_are_outputs(Run *run);
/* Compares what run->outputs hold on the host with 00_naive's gradients, or for 00_naive itself with fp64 samples. */
void validate_gradients(Run *run, Row *row);
/* How far dQ, dK and dV of a few more launches are from the first: fills in row->spread, and fails a variant that claims that
 * they are not. */
void measure_spread(Run *run, Launch *launch, Row *row);
/* Times the forward pass and the variant together, and prints a row for that. */
void run_both(Run *run, const Launch *backward, const Row *row);
void free_backward(Run *run);

#endif
