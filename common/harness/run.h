/* run.h - one run of a stage's program: what it knows, the rows that come of it, and its steps. */
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
    /* what it launches */
    Run *run;
    const Variant *variant;
    Role role;
    Passes passes;
    Tensors tensors;
    Tensor *outputs; /* those of the run that it writes */
    int output_count;
    Buffer workspace[MAX_WORKSPACE_BUFFERS];
    int workspace_count;

    /* what came of it */
    char name[64];                     /* "01_tiled/mma" or "00_naive" */
    char note[160];                    /* why it did not run; empty: it ran */
    char cause[300];                   /* where a wrong gradient may come from; empty: nobody knows */
    int runs;                          /* timed; their median, least, and */
    double latency_ms, min_ms, iqr_ms; /* interquartile range: what the middle half of them spans */
    double peak_tflops;                /* of the chip, for what the variant multiplies (row.h); 0 or NAN: unknown */
    double speed_ratio;                /* naive's latency / this one's; 0: naive was not timed */
    double gpu_bytes;                  /* what its kernels ask of device memory, by the stage's formula; NAN: unknown */
    size_t tensor_bytes, workspace_bytes;
    Comparison comparisons[5]; /* of O, LSE; of dQ, dK, dV, dsinks; of O, LSE and the prepared Q, K, V */
    int comparison_count;      /* 0: not validated */
    int against_oracle;        /* compared with sampled rows of the fp64 oracle rather than with 00_naive */
    SampleErrors errors;       /* of O in sampled rows, against fp64 of the inputs as they were given; if validated */
    double spread;             /* a backward variant: the largest difference between the gradients of several runs */
    int spread_runs;           /* how many; 0: not measured */
    char damaged[64];          /* the purpose of an allocation it wrote outside; empty: none */
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
    Tensors tensors; /* on the device: the inputs, and in a backward stage O and LSE */
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

/* ---- tensors.c ---- */

/* The inputs, drawn or read, on host and device; and what variants are to write. */
void load_inputs(Run *run);
void free_run(Run *run);
/* Q, K, V or dO, by its number from 0 on: N(0,1), the same numbers for the same seed on every device; with outliers a
 * thousandth of Q, K and V have N(0,100) added. */
void *random_input(const Problem *p, int number, uint64_t seed, int outliers);
/* Writes tensors into their files in the folder that --`option` names, all or none. */
void save_tensors(const char *option, const char *folder, const Problem *p, const Tensor *tensors, int count);

/* ---- launch.c ---- */

/* A row with a name. */
Row *new_row(Run *run, const Variant *variant, Role role);
/* Its outputs, filled with NaN, and its workspace. Returns 0 if they do not fit; free_row frees what did. */
int alloc_row(Row *row);
void free_row(Row *row);
/* Workspace, filled with zeros or NaN as each piece asks. Returns 0 if not all fits; free_buffers frees what did. */
int alloc_buffers(Buffer *buffers, int count);
void free_buffers(const Buffer *buffers, int count);
/* Enqueues what the row measures, on its tensors and workspace. */
void launch_row(void *row);
/* The row's end: what it wrote outside of its memory, and it is printed. */
void finish_row(Row *row);

/* ---- judge_row.c: fills in the row's comparisons and errors ---- */
void judge_row(Row *row);
void judge_prepared(Row *row); /* judge_prepared.c: of a variant that prepares its inputs, against attention of these */
/* judge_prepared.c: as samples_compute, but by 00_naive on the device and in all rows; in none if it does not fit there. */
Samples naive_samples(const Problem *p, const int *key_lengths, const HostTensors *inputs, size_t limit);

/* ---- timing.c: fills in its latency; times parts of what a variant does, in rows of their own ---- */
void time_row(Row *row);
void time_parts(const Row *row);
/* Calls `sample(context)`, which returns ms, until it is warm, and then as often as --iters or a budget of time says. Fills in the
 * row's sample: how many, median, least and interquartile range. */
void take_median(Row *row, double (*sample)(void *), void *context);

/* ---- report.c: a table for people, CSV or JSON rows for machines ---- */
void report_start(const Run *run);
void report_row(const Row *row); /* as soon as it is done */

/* ---- records.c: the line of field names that CSV begins with, and rows ---- */
void csv_start(const Run *run);
void record_row(const Row *row);

/* ---- verdict.c: above the rows device and problem, below the rows the workspace by purpose, what failed or was not checked, and the verdict ---- */
void print_head(const Run *run);
int report_end(const Run *run); /* returns the exit code (stage.h) */

/* ---- tracing.c: --trace, in place of all of these. Returns the exit code: 1 if there is a race, 2 if none can run ---- */
int trace_variants(Run *run);

#endif
