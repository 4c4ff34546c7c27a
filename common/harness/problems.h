/* problems.h - the problems that the options ask for, one after the other: what each is, and whether it can run here, which is known
 * before anything large is allocated or loaded. */
#ifndef FA_PROBLEMS_H
#define FA_PROBLEMS_H

#include "options.h"

/* The shape where nothing is given. seqlen_k 0: as seqlen_q. On the CPU device few queries suffice, but several key tiles do not
 * hide what every one of them costs. */
Problem default_shape(const Stage *stage, int is_cpu);

/* Makes `problem` and `key_lengths` those of combination `index`; the axis that stands last in Problem changes fastest.
 * Fills in what neither the command line nor --load gave, smaller on the CPU device, and checks what the options say
 * together: heads against kv_heads, lengths against batch, sizes against 64 bits. */
void options_select(Options *options, int index, int is_cpu);

/* Each ends the program with one line and exit code 2 if something that the options ask for cannot be done here. */
void check_options(Options *options);             /* all of it; reads the shapes of --load */
void select_problem(Options *options, int index); /* what the index-th takes, which is the options' problem from here on */

#endif
