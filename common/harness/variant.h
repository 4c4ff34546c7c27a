/* variant.h - what a program is asked for and cannot do, known before anything large is allocated or loaded. */
#ifndef FA_VARIANT_H
#define FA_VARIANT_H

#include "options.h"

/* Each ends the program with one line and exit code 2 if something that the options ask for cannot be done here. */
void check_options(Options *options); /* all of it; reads the shapes of --load */
void select_problem(Options *options, int index); /* what the index-th takes, which is the options' problem from here on */

/* ---- tensors.c: of the files ---- */

/* The headers of q.npy, k.npy and v.npy (and do.npy) in the folder options->load: fills in `loaded` and `largest_file`. */
void tensors_read_headers(Options *options);

/* Ends the program unless a file can be created in `folder`, which --`option` names: better before the work than after it. Nor
 * may it be the folder `load`, unless that is NULL. */
void save_check(const char *option, const char *folder, const char *load);

/* ---- variants ---- */

/* 00_naive, of the stage's kind; the variant that --variant names, or NULL for all. */
const Variant *reference_of(const Stage *stage);
const Variant *named_variant(const Options *options);

/* Why `variant` cannot run `p` on this device: one sentence without a full stop, or NULL if it can. The text lives until the
 * next call. */
const char *variant_refuses(const Variant *variant, const Problem *p);

/* Whether the variant prepares something for this problem; and whether that is its inputs, which it then rounds. */
int variant_prepares(const Variant *variant, const Problem *p);
int variant_rounds(const Variant *variant, const Problem *p);

/* The forward pass that a backward stage starts from here, whether it can run or not; NULL in others. */
const Variant *forward_of(const Stage *stage, const Problem *p);

/* Bytes that the selected problem's run holds at a time: inputs, outputs and what judges them. Not the workspace: a
 * variant whose workspace does not fit is a row that says so. */
typedef struct {
    double host, device;
} MemoryNeed;
MemoryNeed memory_need(const Options *options);

#endif
