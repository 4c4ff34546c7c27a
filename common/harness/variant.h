/* variant.h - a stage's variants: which the options name, what they can do, and why one cannot run a problem. */
#ifndef FA_VARIANT_H
#define FA_VARIANT_H

#include "options.h"

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

#endif
