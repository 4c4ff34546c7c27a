/* options.h - the command line every stage shares.
 *
 *     Options options = options_parse(&stage, argc, argv);
 *     options_complete(&options, &stage, is_cpu);
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
    Problem problem;         /* what was not given is 0 (fp16 is, too) until options_complete fills it in */
    const char *shape_given; /* a shape option from the command line, as text for a message; NULL if there was none */
    int *key_lengths;        /* [batch]; NULL: every entry has all seqlen_k keys */
    int key_length_count;    /* as given: one for all entries, or one for each */
    const char *variant;     /* a name from the stage's table, or NAIVE; NULL: all */
    int iters;               /* timed runs; 0: the harness chooses */
    uint64_t seed;
    int outliers;            /* random inputs N(0,1), a thousandth of them plus N(0,100) */
    int warm;                /* L2 is left as the run before left it */
    const char *load, *save; /* folders, or NULL */
    Format format;
    int validate;
    int trace;            /* instead of a run: count memory traffic (trace.h) */
    const char *roofline; /* for the trace: a chip's name */
} Options;

/* Reads the command line. --help prints to stdout and exits with code 0. */
Options options_parse(const Stage *stage, int argc, char **argv);

/* Fills in what neither the command line nor --load gave, smaller on the CPU device, and checks what the options say
 * together: heads against kv_heads, lengths against batch, sizes against 64 bits. */
void options_complete(Options *options, const Stage *stage, int is_cpu);

#endif
