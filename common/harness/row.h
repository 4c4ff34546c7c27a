/* row.h - what is known of a variant after its run, one row of the table. */
#ifndef FA_ROW_H
#define FA_ROW_H

#include "../device/device.h"
#include "../judge/check.h"
#include "../judge/samples.h"
#include "direction.h"
#include "options.h"
#include "task.h"

/* Whose row it is: a variant's; 00_naive's; the forward pass that a backward stage starts from; or a part of what a variant does,
 * timed alone. Only the first says whether a variant is right. */
typedef enum { ROW_VARIANT, ROW_REFERENCE, ROW_FORWARD, ROW_PART } Role;

/* What is known of one variant after its run. */
typedef struct Row {
    char name[64]; /* "01_tiled/mma" or "00_naive" */
    Role role;
    Direction direction;
    char note[160];                    /* why it did not run; empty: it ran */
    int runs;                          /* timed; their median, least, and */
    double latency_ms, min_ms, iqr_ms; /* interquartile range: what the middle half of them spans */
    double peak_tflops;                /* of the chip, for what the variant multiplies (peak.h); 0 or NAN: unknown */
    double speed_ratio;                /* naive's latency / this one's; 0: naive was not timed */
    size_t tensor_bytes, workspace_bytes;
    double gpu_bytes; /* what its kernels ask of device memory, by the stage's formula; NAN: unknown */
    Buffer workspace[MAX_WORKSPACE_BUFFERS]; /* purposes and bytes */
    int workspace_count;
    int validated;             /* its results were compared */
    int against_oracle;        /* compared with sampled rows of the fp64 oracle rather than with 00_naive */
    Comparison comparisons[5]; /* if validated: of O, LSE; of dQ, dK, dV; of O, LSE and the prepared Q, K, V */
    int comparison_count;
    double spread;       /* a backward variant: the largest difference between the gradients of several runs */
    int spread_runs;     /* how many; 0: not measured */
    SampleErrors errors; /* of O in sampled rows, against fp64 of the inputs as they were given */
    int errors_known;
    char damaged[64]; /* the purpose of an allocation it wrote outside; empty: none */
} Row;

/* What all rows of a problem have in common. */
typedef struct {
    const Stage *stage;
    const Task *task;
    const Problem *problem;
    const Options *options;
    const DeviceProperties *device;
    int sample_count;    /* rows the oracle looked at */
    Bandwidth bandwidth; /* what the memory gives, if the task shows it */
} Report;

int row_ran(const Row *row);
int row_ok(const Row *row);                      /* it ran, and nothing is known to be wrong with it */
const Comparison *row_unchecked(const Row *row); /* one whose bound is too wide to check anything; NULL: none */
const Comparison *row_worst(const Row *row);     /* the first, unless only a later one is bad; of gradients the worst */
/* Why the variant did not run, or was not checked. Empty: it ran, and was checked or nobody asked for a check. */
void row_note(const Row *row, char *text, size_t size);
/* NaN of a row that times a preparation alone: FLOPs and bytes are counted for attention only. */
double row_tflops(const Report *report, const Row *row);
double row_gbps(const Report *report, const Row *row);
/* TFLOP/s as a percentage of the chip's peak; NAN: unknown. */
double row_of_peak(const Report *report, const Row *row);
/* FLOPs for each of the gpu_bytes; NAN: unknown. */
double row_intensity(const Report *report, const Row *row);
/* The interquartile range over the median; NAN: fewer runs than four, which have no quartiles. More than NOISY is worth a remark. */
double row_noise(const Row *row);
#define NOISY 0.05
/* A setting's value as the command line says it. */
void setting_text(const Setting *setting, int value, char *text, size_t size);

#endif
