/* grid.h - what a grid program is made of.
 *
 *     grid.c             chooses the cases, runs every variant of the stage on each, counts
 *     grid_case.c        draws the inputs of a case, runs one variant on it
 *     grid_forward.c     or
 *     grid_backward.c    knows what is right, and judges
 *
 * They know nothing of a stage but its table.
 */
#ifndef FA_GRID_H
#define FA_GRID_H

#include "../common/device/device.h"
#include "../common/judge/prepared.h"
#include "../common/harness/variant.h"
#include "../common/stage.h"
#include "../common/harness/run.h"
#include "tap.h"

extern const Stage stage;

/* Inputs that break something plain N(0,1) leaves whole. */
typedef enum { NORMAL, PEAKED, OUTLIER, EQUAL, VERY_NEGATIVE, ONE_HOT, V_GROWS, V_MEAN, K_MEAN, FAR_BELOW, RISING, SINKING } Inputs;

/* A problem, its inputs on host and device, and what is right. */
typedef struct {
    Problem p;
    Inputs inputs;
    uint64_t seed;
    int qk_shift, v_shift; /* Q is multiplied by 2^qk_shift and K divided by it; V is multiplied by 2^v_shift */
    int *key_lengths;      /* host; NULL: all keys exist */

    /* by grid_kind.solve, on the host */
    HostTensors host; /* what the variants are given, but for keys that do not exist: these are NaN on the device */
    void *o;          /* backward only: the forward pass's O and LSE, */
    float *lse;       /* the oracle's, so that no other kernel has a part in the result */
    double *want[MAX_OUTPUTS];
    double size[MAX_OUTPUTS]; /* what rounding errors are measured by: see there */

    /* on the device */
    Tensors t;
    Buffer outputs[MAX_OUTPUTS];
    void *got[MAX_OUTPUTS];          /* the outputs, read back */
    double naive_error[MAX_OUTPUTS]; /* of the reference on this case */
} Case;

/* A forward or a backward stage. */
typedef struct {
    const Inputs *inputs; /* NORMAL first; those it can judge */
    int input_count;
    float peak; /* PEAKED: the scale is this much larger */

    /* From c->host to c->want and c->size. Called for several cases at a time. */
    void (*solve)(Case *c);
    /* Fills in c->outputs (not the pointers) and returns how many there are. */
    int (*outputs)(const Case *c, Buffer *outputs);
    /* Whether c->got is right; says on stderr what is not, after `about`. */
    int (*judge)(Case *c, const Variant *variant, const Buffer *workspace, void (*about)(const Case *, const Variant *));
} GridKind;
extern const GridKind grid_kind;

/* What the variants are measured by; it runs first. */
static inline const Variant *reference(void) { return stage.reference ? stage.reference : &naive_variant; }

/* ---- grid_case.c ---- */

/* Inputs and what is right for [begin, end) of an array of cases: the host's part, for parallel_for. */
void prepare_cases(size_t begin, size_t end, void *cases);
/* Puts a case on the device; frees all of it. */
void open_case(Case *c);
void close_case(Case *c);

/* Runs one variant on poisoned outputs and workspace, and reads the outputs back. Returns whether all is right; if not, it says
 * on stderr what is not, and the command that repeats it. */
int try_variant(const Variant *variant, Case *c);

/* This program, if it is the fuzz that can repeat a case; else NULL. */
extern const char *fuzz_program;

#endif
