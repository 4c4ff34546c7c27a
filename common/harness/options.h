/* options.h - the command line every stage shares.
 *
 * A mistake ends the program with one line on stderr, which names the option and what it takes, and exit code 2.
 */
#ifndef FA_OPTIONS_H
#define FA_OPTIONS_H

#include "../problem.h"
#include "../stage.h"

#define NAIVE "00_naive" /* the name under which every stage knows the reference */

typedef enum { FORMAT_TABLE, FORMAT_CSV, FORMAT_JSON } Format;

typedef struct {
    int *values;
    int count; /* 0: not given */
} List;

/* Each int of Problem may be given several values: so many lists, in the order of its fields. */
enum { AXES = 9 + MAX_SETTINGS };
_Static_assert(offsetof(Problem, settings) == 9 * sizeof(int) && sizeof(Dtype) == sizeof(int), "all are ints, or as large");

typedef struct {
    const Stage *stage;
    List axes[AXES];
    char *texts[MAX_SETTINGS]; /* of the stage's settings that are texts; NULL: not given */
    List lengths;              /* of --lengths: one for all batch entries, or one for each */
    float scale;               /* 0: 1/sqrt(head dim) */
    int problem_count;         /* combinations of what the axes hold */
    const char *variant;       /* a name from the stage's table, or NAIVE; NULL: all */
    int iters;                 /* timed runs; 0: the harness chooses */
    uint64_t seed;
    int device;                            /* which GPU, from 0 on; -1: not given */
    const char *rendezvous;                /* the file in which the processes of one run meet, or NULL */
    int rank;                              /* which of them this is; 0 has the results */
    int outliers;                          /* random inputs N(0,1), a thousandth of them plus N(0,100) */
    int warm;                              /* L2 is left as the run before left it */
    const char *load, *save, *save_inputs; /* folders, or NULL */
    Problem loaded;                        /* of --load: the shape that its files have, */
    size_t largest_file;                   /* and the bytes of the largest; tensors_read_headers fills them in */
    Format format;
    int validate;
    int trace;            /* instead of a run: count memory traffic (trace.h) */
    const char *watch;    /* with it: the file to write what happened step by step to, or NULL */
    const char *roofline; /* with it: a chip's name */

    /* filled in by options_select (problems.h) */
    int selected; /* which problem, from 0 */
    Problem problem;
    int *key_lengths; /* [batch]; NULL: every entry has all seqlen_k keys */
} Options;

/* Reads the command line. --help prints to stdout and exits with code 0. */
Options options_parse(const Stage *stage, int argc, char **argv);

void options_free(Options *options);

#endif
