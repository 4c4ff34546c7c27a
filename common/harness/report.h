/* report.h - what a run prints: a table for people, CSV or JSON rows for machines.
 *
 *     Report report = {.stage = &stage, .problem = &p, .device = device_properties(), .format = FORMAT_TABLE};
 *     report_start(&report);
 *     report_row(&report, &row);              as soon as a variant is done
 *     report_end(&report, rows, row_count);
 *
 * Rows go to stdout. Details of a failure go under the table, or to stderr for CSV and JSON.
 */
#ifndef FA_REPORT_H
#define FA_REPORT_H

#include "../judge/check.h"
#include "../device/device.h"
#include "options.h"
#include "../judge/samples.h"

/* PREPARE: what a variant does to its inputs first (stage.h); WITH_PREPARE: that and the forward pass. */
typedef enum { FORWARD, BACKWARD, BOTH, PREPARE, WITH_PREPARE } Direction;

/* What is known of one variant after its run. */
typedef struct {
    char name[64]; /* "01_tiled/mma" or "00_naive" */
    Direction direction;
    char note[160]; /* why it did not run; empty: it ran */
    double latency_ms, min_ms;
    double speed_ratio; /* naive's latency / this one's; 0: naive was not timed */
    size_t tensor_bytes, workspace_bytes;
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
    char damaged[64]; /* the purpose of an allocation it wrote past the end of; empty: none */
} Row;

typedef struct {
    const Stage *stage;
    const Problem *problem;
    const int *key_lengths; /* host, or NULL */
    const DeviceProperties *device;
    const char *load; /* the inputs' folder, or NULL */
    Format format;
    int sample_count; /* rows the oracle looked at */
    const Options *options;
    Bandwidth bandwidth; /* a stage with .bytes: what the memory gives */
} Report;

/* FLOPs of the forward pass, 4 * batch * heads * seqlen_q * seqlen_k * head_dim and half of that when causal: what everybody
 * counts, whatever the mask really leaves. The backward pass has five such products to the forward's two: 2.5 times that; both
 * together 3.5 times. Bytes that must move at least: Q, K, V read and O, LSE written once; backward Q, K, V, O, dO, LSE read
 * and dQ, dK, dV written. */
double counted_flops(const Problem *p, Direction direction);
double compulsory_bytes(const Problem *p, Direction direction);

const char *direction_name(Direction direction);
int is_variant_row(const Row *row, const Stage *stage); /* not the reference's, nor a backward stage's forward pass */
int row_ran(const Row *row);
int row_ok(const Row *row);                      /* it ran, and nothing is known to be wrong with it */
const Comparison *row_unchecked(const Row *row); /* one whose bound is too wide to check anything; NULL: none */

void report_start(const Report *report);
void report_row(const Report *report, const Row *row);

/* The workspace by purpose, what failed or was not checked, and the verdict. */
void report_end(const Report *report, const Row *rows, int count);

#endif
