/* stage.h - the seam between a stage and the harness.
 *
 * A stage is a table of variants; a variant is one launcher in one .cu file. The stage's main.c declares the table and
 * hands it to harness_main, which does everything the stages share: options, inputs, allocation, validation against
 * 00_naive, timing, the table.
 *
 *     const Stage stage = {
 *         .name = "01_tiled", .idea = "tiles through shared memory",
 *         .variants = {
 *             {.name = "fma", .idea = "...", .launch = tiled_fma, .plan = tiled_plan, .dtypes = FP16 | BF16, .head_dims = {64, 128}},
 *         },
 *     };
 *     int main(int argc, char **argv) { return harness_main(&stage, argc, argv); }
 */
#ifndef FA_STAGE_H
#define FA_STAGE_H

#include "problem.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Computes O and LSE of `p`; in a backward stage, dQ, dK and dV from O, LSE and dO. Enqueues kernels and returns; `workspace` is
 * what plan asked for, in that order. */
typedef void Launcher(const Problem *p, const Tensors *t, const Buffer *workspace);

/* Fills in purpose and bytes of each workspace buffer the launcher needs for `p`; returns how many (at most
 * MAX_WORKSPACE_BUFFERS). */
typedef int Planner(const Problem *p, Buffer *workspace);

/* Device memory that the launches of one kernel move, in bytes, by the formula of the stage's note; the trace counts the same
 * for comparison. Names as in LAUNCH and device_alloc. */
typedef struct {
    const char *kernel, *tensor;
    double read, written;
} Traffic;

#define MAX_TRAFFIC 32

/* Fills in what the variant's kernels move for `p` (key_lengths on the host, or NULL); returns how many, at most MAX_TRAFFIC. */
typedef int Predictor(const Problem *p, const int *key_lengths, Traffic *traffic);

enum { FP16 = 1 << DTYPE_FP16, BF16 = 1 << DTYPE_BF16, FP32 = 1 << DTYPE_FP32 };

typedef struct {
    const char *name; /* as in --variant */
    const char *idea; /* one line, for --help */
    Launcher *launch;
    Planner *plan;            /* NULL: no workspace */
    Predictor *predict;       /* NULL: nobody has worked it out */
    unsigned dtypes;          /* FP16 | BF16 | FP32 */
    int head_dims[8];         /* those it takes, 0-terminated; all 0: any multiple of 8 up to 256 */
    int min_capability;       /* lowest compute capability x 10 (80 = sm_80); 0: any */
    int min_bf16_capability;  /* the same, for bf16: tensor cores take it from sm_80 on */
} Variant;

#define MAX_VARIANTS 8

typedef struct {
    const char *name; /* "01_tiled", also the program's name */
    const char *idea; /* one line */
    Variant variants[MAX_VARIANTS]; /* in teaching order, ends at the first without a name */

    /* A backward stage has two more; in a forward stage they are NULL. */
    const Variant *forward;   /* writes the O and LSE the variants start from; takes no workspace */
    const Variant *reference; /* the gradients they are validated against, known to the user as 00_naive */
} Stage;

/* The whole program. Returns the exit code: 0 all variants agree with 00_naive, 1 one does not, 2 cannot run here. */
int harness_main(const Stage *stage, int argc, char **argv);

/* Why `variant` cannot run `p` on this device: one sentence without a full stop, or NULL if it can. The text lives until the next call. */
const char *variant_refuses(const Variant *variant, const Problem *p);

/* The stage everything is validated against; linked into every program. */
extern const Variant naive_variant;

#ifdef __cplusplus
}
#endif
#endif
