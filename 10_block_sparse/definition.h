/* definition.h - the block mask as its text defines it, for the judge (problem.h: Blocks). */
#ifndef DEFINITION_H
#define DEFINITION_H

#include "../common/problem.h"

typedef struct {
    Blocks blocks;
    char kind;    /* w, s, d, t (strided), r, f */
    double first; /* the numbers behind it; of window there is one */
    uint64_t last;
    int *document; /* [seqlen_k]: the number of each key's document */
    int key_blocks;
} DefinedMask;

/* Reads blocks.text, in which there is no mistake. `document`: room for these numbers. */
void define_mask(DefinedMask *mask, int *document, const Problem *p);

#endif
