/* task.h - what a stage's kind decides: forward, backward or decoding. The harness asks these tables and not the stage.
 */
#ifndef FA_TASK_H
#define FA_TASK_H

#include "../stage.h"
#include "direction.h"

typedef enum { LIKE_Q, LIKE_K, LIKE_LSE } TensorShape;

/* A tensor that variants write. */
typedef struct {
    const char *name; /* "dQ" */
    const char *file; /* of --save */
    TensorShape shape;
    size_t place; /* offsetof its pointer in Tensors */
} OutputKind;

#define MAX_OUTPUTS 3
#define FORWARD_OUTPUTS                                                                                                     \
    {"O", "o.npy", LIKE_Q, offsetof(Tensors, o)}, { "LSE", "lse.npy", LIKE_LSE, offsetof(Tensors, lse) }

/* One of them during a run. */
typedef struct {
    const OutputKind *kind;
    size_t bytes;
    void **device;   /* its place in Run.device */
    void *host;      /* what the variant that ran last wrote; NULL: not read back yet */
    void *reference; /* what 00_naive wrote; NULL: it did not run */
} Output;

typedef struct Run Run;
typedef struct Launch Launch;
typedef struct Row Row;

/* The columns of the table that not every kind has. */
enum { SHOW_DIRECTION = 1, SHOW_TFLOPS = 2, SHOW_GBPS = 4 };

typedef struct Task {
    const char *title;   /* in the table's head */
    Direction direction; /* of the variants' own rows */
    unsigned columns;    /* SHOW_... */
    int with_d_o;        /* dO is an input */
    OutputKind outputs[MAX_OUTPUTS];
    int output_count;

    /* The steps of a run. The first three may be NULL: nothing to do. */
    void (*load)(Run *run);          /* inputs beyond Q, K and V to the device; ends the program if the problem cannot run */
    void (*start)(Run *run);         /* before the first variant: computes what they start from, with a row of its own */
    void (*start_untimed)(Run *run); /* the same without a row, for the trace */
    void (*judge)(Run *run, Launch *launch, Row *row);             /* fills in the row's comparisons */
    void (*time)(Launch *launch, Row *row);                        /* fills in the row's latency */
    void (*parts)(Run *run, const Launch *launch, const Row *row); /* more rows of a variant */
} Task;

extern const Task forward_task, backward_task, decoding_task;

/* By the stage's kind. */
const Task *task_of(const Stage *stage);

#endif
