/* stage.h - the seam between a stage and the harness.
 *
 * A stage is a table of variants; a variant is one launcher in one .cu file. The stage's main.c declares the table and
 * hands it to harness_main, which does everything the stages share: options, inputs, allocation, validation against
 * 00_naive, timing, the table. notes/adding_a_stage.md writes one.
 */
#ifndef FA_STAGE_H
#define FA_STAGE_H

#include "problem.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Computes O and LSE of `p`; in a backward stage, dQ, dK and dV from O, LSE and dO. Enqueues kernels and returns; `workspace`
 * is what plan asked for, in that order. */
typedef void Launcher(const Problem *p, const Tensors *t, const Buffer *workspace);

/* Fills in purpose and bytes of each workspace buffer the launcher needs for `p`; returns how many (at most
 * MAX_WORKSPACE_BUFFERS). */
typedef int Planner(const Problem *p, Buffer *workspace);

/* Bytes of device memory that the launches of one kernel ask for, whether caches answer or not, by the formula of the
 * stage's note; the trace counts the same for comparison. Names as in LAUNCH and device_alloc. */
typedef struct {
    const char *kernel, *tensor;
    double read, written;
} Traffic;

#define MAX_TRAFFIC 40

/* Fills in the traffic of the variant's kernels for `p` (key_lengths on the host, or NULL); returns how many entries,
 * at most MAX_TRAFFIC. */
typedef int Predictor(const Problem *p, const int *key_lengths, Traffic *traffic);

/* ---- for variants that prepare something before they start: their inputs (06_fp8, the 8-bit cache of 07_flash_decoding) or the
 * work itself (10_block_sparse) ---- */

/* How exactly such a variant computes: what the bounds on its inputs and its result are derived from (judge/prepared.c). u of a
 * format is its unit roundoff, half the distance from 1 to the next number. */
typedef struct {
    double input_roundoff;    /* u of the format Q, K and V were rounded to; 0: they were not */
    double input_half_step;   /* half that format's smallest step */
    double input_largest;     /* a scale maps the largest of the numbers that share it to this; 0: there are no scales */
    double least_scale;       /* no scale is smaller */
    int q_block, k_block;     /* rows of a head of Q, of K and V, that share a scale; 0: all of them */
    int is_rotated, has_mean; /* 1: Q and K were rotated first; the mean of each head's keys was subtracted from K first */
    double p_roundoff;        /* u of the format P has when it meets V, */
    double p_step;            /* half that format's smallest step, over the least that a row's largest P was scaled to */
    double sum_roundoff;      /* u of the accumulators of Q K^T and P V: 2^-24 for fp32 */
} PreparedRounding;

/* What the prepared inputs in `workspace` stand for: fills in q, k and v, host arrays in the shapes of Q, K and V, scales and
 * rotations undone; q comes in as the input, for variants that leave it as it is. They are what the variant's result is
 * validated against; how far they are from the inputs is checked too. */
typedef PreparedRounding PreparedValues(const Problem *p, const Buffer *workspace, float *q, float *k, float *v);

typedef struct {
    const char *name;                /* of the table's row with its time: "quantise" */
    int (*wanted)(const Problem *p); /* whether these settings ask for it; NULL: always */
    Launcher *launch;                /* to workspace: Q, K and V, which the variant's launch then reads there only, or other */
    Predictor *predict;              /* the traffic of its kernels; the variant's `predict` has that of launch's */
    PreparedValues *values;          /* NULL: the inputs stay as they are, and the variant is validated like any other */
    int (*changes)(const Problem *p); /* whether these settings change the inputs; NULL: whenever there are `values` */
    size_t key_bytes;                /* of an element of K and V in a cache that is filled once; 0: done for each launch */
} Preparation;

/* The block mask that a text stands for, if the problem is `p`; free() frees it. NULL: every pair is kept. A text that cannot be read or does not fit ends
 * the program with one line, which names `option`, and exit code 2. */
typedef const Blocks *MaskReader(const char *option, const char *text, const Problem *p);

/* The score mod that a text stands for, likewise: names with their values, and a plus sign between any two. */
typedef const ScoreMod *ScoreReader(const char *option, const char *text, const Problem *p);

/* An option that one stage alone has, --name. Its value lands in Problem.settings, in the order of the stage's table.
 *     .choices = "tensor|block"                a name; the value is its number, from 0, which is the default
 *     .choices = "auto", .max = 256            a name for 0, the default, or a whole number from 1 to max
 *     .max = TEXT                              a text, one for all problems of a run: the stage makes Problem.blocks or .score of it.
 *                                              Given several times, the texts have a plus sign between them
 *     none of these                            a flag: 0, or 1 if it is there */
enum { TEXT = -1 };
typedef struct {
    const char *name;
    const char *choices;
    int max;
    const char *help; /* one line */
} Setting;

/* NULL, or one line that says why the settings of `p` do not go together, to follow the variant's name. */
typedef const char *Refusal(const Problem *p);

/* Bytes that device `to` needs of device `from`. */
typedef double LinkBytes(const Problem *p, const int *key_lengths, int from, int to);

/* What a .cu file defines for the stage's table: LAUNCHER(name) { ... }, with the arguments named as above. */
#ifdef __cplusplus
#define LAUNCHER(name) extern "C" void name(const Problem *p, const Tensors *t, [[maybe_unused]] const Buffer *workspace)
#define PLANNER(name) extern "C" int name([[maybe_unused]] const Problem *p, Buffer *workspace)
#define PREDICTOR(name) extern "C" int name(const Problem *p, const int *key_lengths, Traffic *traffic)
#endif

enum { FP16 = 1 << DTYPE_FP16, BF16 = 1 << DTYPE_BF16, FP32 = 1 << DTYPE_FP32 };

/* What a variant uses of a chip. Tensor cores take bf16 from sm_80 on; for 8-bit factors a chip has another peak; wgmma and TMA
 * are in code for sm_90a only. */
enum { TENSOR_CORES = 1, EIGHT_BITS = 2, WGMMA = 4 };

typedef struct {
    const char *name; /* as in --variant */
    const char *idea; /* one line, for --help */
    Launcher *launch;
    Planner *plan;      /* NULL: no workspace */
    Predictor *predict; /* NULL: nobody has worked it out */
    unsigned dtypes;    /* FP16 | BF16 | FP32 */
    int head_dims[9];   /* those it takes, ends at the first 0; all 0: any multiple of 8 up to 256 */
    unsigned uses;      /* TENSOR_CORES | EIGHT_BITS | WGMMA */
    int max_seqlen_q;   /* 0: any */
    int unordered;      /* 1: sums by atomic additions, in another order in every run. Others give the same bits */
    Refusal *refuses;   /* NULL: any settings go together */
    const Preparation *preparation; /* NULL: it takes its inputs as they are */

    /* A variant that runs on several devices (12_context_parallel). Its plan lists the buffers of device 0, then as many for each
     * of the others. */
    int (*devices)(const Problem *p); /* how many; NULL: one */
    Launcher *scatter, *collect;      /* before the launches that are timed and after them: inputs to all devices, outputs from them */
    LinkBytes *link_bytes;            /* what one device copies from another */
    double (*pairs)(const Problem *p, const int *key_lengths, int device); /* of a query and a key, that a device computes */
} Variant;

#define MAX_VARIANTS 16 /* and tests/figures.c has so many launchers */

/* What a stage computes. The grid, the trace and `make compare` find the word in main.c. */
typedef enum {
    FORWARD,  /* O and LSE */
    BACKWARD, /* after a forward pass dQ, dK and dV */
    DECODING, /* O and LSE by short kernels that memory limits: timed as CUDA graphs over rotating copies of K and V, in GB/s */
} Kind;

typedef struct {
    const char *name;               /* "01_tiled", also the program's name */
    const char *idea;               /* one line */
    Kind kind;
    Variant variants[MAX_VARIANTS + 1]; /* in teaching order; the one behind the last has no name */
    Setting settings[MAX_SETTINGS + 1]; /* the stage's own options, likewise */
    MaskReader *read_mask;          /* what the setting that is a text says; NULL: none is, */
    ScoreReader *read_score;        /* or it is read by this */
    const char *default_mask;       /* what that text is unless it is given; NULL: every pair is kept */
    const char *cuts;               /* what else than --causal and --lengths leaves out pairs, for the help: "--blocks"; NULL: nothing */
    Problem defaults[2];            /* without options: on a GPU, on the CPU device; .batch 0: as in all stages */

    /* A backward stage has more; in others they are NULL. */
    const Variant *forward;           /* writes the O and LSE the variants start from */
    const Variant *forward_otherwise; /* or this one, where `forward` cannot run: in fp32, say. NULL: none */
    const Variant *reference;         /* the gradients they are validated against, known to the user as 00_naive */
} Stage;

/* The whole program. Returns the exit code: 0 all variants agree with 00_naive, 1 one does not, 2 cannot run here,
 * or the bounds are too wide to check anything. */
int harness_main(const Stage *stage, int argc, char **argv);

/* The stage everything is validated against; linked into every program. */
extern const Variant naive_variant;

#ifdef __cplusplus
}
#endif
#endif
