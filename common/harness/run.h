/* run.h - one run of a stage's program: what it knows, and the rows that come of it. */
#ifndef FA_RUN_H
#define FA_RUN_H

#include "../device/device.h"
#include "../judge/gradient.h"
#include "options.h"

typedef struct Run Run;

/* A tensor that variants read or write. */
typedef enum { LIKE_Q, LIKE_K, LIKE_LSE, LIKE_SINKS } TensorShape;
typedef struct {
    const char *name, *file; /* "dQ"; the file of --save or --load */
    TensorShape shape;
    size_t place; /* offsetof its pointer in Tensors */
    size_t bytes;
    void *host;      /* an input; or what the variant that ran last wrote, NULL: not read back yet */
    void *reference; /* what 00_naive wrote; NULL: it did not run, or is judged itself */
} Tensor;
static inline void **pointer_to(Tensors *all, const Tensor *tensor) { return (void **)((char *)all + tensor->place); }

enum { FORWARD_OUTPUTS = 2, MAX_OUTPUTS = FORWARD_OUTPUTS + GRADIENT_COUNT };

/* What a row measures: passes of attention, and what a variant does to its inputs first (stage.h: Preparation). */
typedef enum {
    PREPARE = 1,
    FORWARD_PASS = 2,
    BACKWARD_PASS = 4,
    WITH_PREPARE = PREPARE | FORWARD_PASS,
    BOTH = FORWARD_PASS | BACKWARD_PASS
} Passes;

/* Whose row it is: a variant's; 00_naive's; the forward pass that a backward stage starts from; or a part of what a variant
 * does, timed alone. Only the first says whether a variant is right. */
typedef enum { ROW_VARIANT, ROW_REFERENCE, ROW_FORWARD, ROW_PART } Role;

typedef struct {
    /* whose it is: from new_row on (launch.h) */
    Run *run;
    const Variant *variant;
    Role role;
    Passes passes;
    char name[64]; /* "01_tiled/mma" or "00_naive" */

    /* what it launches: from alloc_row on; free_row frees it */
    Tensors tensors;
    Tensor *outputs; /* those of the run that it writes */
    int output_count;
    Buffer workspace[MAX_WORKSPACE_BUFFERS];
    int workspace_count;
    size_t tensor_bytes, workspace_bytes;

    /* whether it ran: from its launch on */
    char note[160];   /* why it did not; empty: it did */
    char damaged[64]; /* the purpose of an allocation it wrote outside (finish_row); empty: none */

    /* whether it is right: from judge_row on */
    Comparison comparisons[5]; /* of O, LSE; of dQ, dK, dV, dsinks; of O, LSE and the prepared Q, K, V */
    int comparison_count;      /* 0: not validated */
    int against_oracle;        /* compared with sampled rows of the fp64 oracle rather than with 00_naive */
    SampleErrors errors;       /* of O in sampled rows, against fp64 of the inputs as they were given */
    char cause[300];           /* where a wrong gradient may come from; empty: nobody knows */
    double spread;             /* a backward variant: the largest difference between the gradients of several runs */
    int spread_runs;           /* how many; 0: not measured */

    /* how fast it is: from time_row on */
    int runs;                          /* timed; their median, least, and */
    double latency_ms, min_ms, iqr_ms; /* interquartile range: what the middle half of them spans */
    double speed_ratio;                /* naive's latency / this one's; 0: naive was not timed */
    double busy_ms[MAX_DEVICES];       /* of a variant on several devices, in its last run; and */
    double pulled[MAX_DEVICES];        /* the bytes that each copied from others */

    /* what it is measured by: the chip's peak for what the variant multiplies (row.h), 0 or NAN: unknown; from time_row on what its
     * kernels ask of device memory, by the stage's formula, NAN: unknown */
    double peak_tflops, gpu_bytes;
} Row;
static inline int row_ran(const Row *row) { return !*row->note; }
static inline int row_agrees(const Row *row) { /* with all that it was compared with */
    int agrees = 1;
    for (int i = 0; i < row->comparison_count; i++)
        agrees &= row->comparisons[i].ok;
    return agrees;
}
static inline int row_ok(const Row *row) { return row_ran(row) && !*row->damaged && row_agrees(row); }

/* The forward pass, 00_naive, and of each variant its own row, its preparation's, and that of the two together. */
enum { MAX_ROWS = 2 + 3 * MAX_VARIANTS };

struct Run {
    const Stage *stage;
    const Options *options;
    const Problem *p;
    const DeviceProperties *device;
    const Variant *only;      /* the one that --variant named, or NULL */
    const Variant *reference; /* 00_naive, of the stage's kind */
    const Variant *forward;   /* a backward stage's, for this problem; else NULL */
    HostTensors inputs;
    size_t input_bytes; /* on the device */
    Tensors tensors;    /* on the device: the inputs, and in a backward stage O and LSE */
    Tensor outputs[MAX_OUTPUTS];
    int output_count;
    Row rows[MAX_ROWS]; /* a backward stage's first is the forward pass, and keeps its workspace */
    int row_count;
    double reference_ms;
    Bandwidth bandwidth; /* what the memory gives, in a decoding stage */

    /* what the judge compares with, computed when first needed */
    Samples samples;
    Gradients gradients;
};

#endif
