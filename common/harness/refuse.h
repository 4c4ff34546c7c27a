/* refuse.h - can a variant run a problem on this device? */
#ifndef FA_REFUSE_H
#define FA_REFUSE_H

#include "../stage.h"

/* Why `variant` cannot run `p` on this device: one sentence without a full stop, or NULL if it can. The text lives until the next call. */
const char *variant_refuses(const Variant *variant, const Problem *p);

/* The forward pass that a backward stage starts from here, whether it can run or not; NULL in a forward stage. */
const Variant *forward_of(const Stage *stage, const Problem *p);

#endif
