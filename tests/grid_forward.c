/* grid_forward.c - what is right of a forward stage: O and LSE, by the fp64 oracle.
 *
 * An output passes if each row is within output_allowance of the oracle (allowance.h) and the worst error is at most twice
 * 00_naive's in the same dtype, and if LSE agrees on its own. A variant that prepares its inputs is held against the oracle of
 * those (prepared.h).
 */
#include "../common/judge/prepared.h"
#include "../common/judge/compare.h"
#include "../common/numeric.h"
#include "grid.h"

#include <stdlib.h>

static const Inputs INPUTS[] = {NORMAL, PEAKED, OUTLIER, EQUAL, VERY_NEGATIVE, ONE_HOT, V_GROWS};

static void solve(Case *c) {
    const Problem *p = &c->p;
    Samples exact = samples_compute(p, c->key_lengths, &c->host, row_count(p));
    c->want[0] = exact.o, c->want[1] = exact.lse;
    c->size[0] = exact.score_size, c->size[1] = exact.underflow;
}

static int outputs(const Case *c, Buffer *o) {
    o[0] = (Buffer){.purpose = "O", .bytes = query_elements(&c->p) * dtype_bytes(c->p.dtype)};
    o[1] = (Buffer){.purpose = "LSE", .bytes = row_count(&c->p) * sizeof(float)};
    return 2;
}

/* The calls of compare.h: O and LSE. */
static void compare(const Case *c, Comparison *comparisons) {
    const Samples exact = {&c->p, row_count(&c->p), c->want[0], c->want[1], c->size[0], c->size[1]};
    comparisons[0] = compare_output(&exact, c->got[0], NULL, NULL);
    comparisons[1] = compare_lse(&exact, c->got[1], NULL);
}

static int judge(Case *c, const Variant *variant, const Buffer *workspace, void (*about)(const Case *, const Variant *)) {
    Comparison comparisons[PREPARED_COMPARISONS];
    int rounds = variant_rounds(variant, &c->p), count = rounds ? PREPARED_COMPARISONS : 2, good = 1;
    double allowed = INFINITY;
    if (rounds)
        compare_prepared(&c->p, variant, c->key_lengths, &c->host, workspace, c->got[0], c->got[1], samples_compute,
                         row_count(&c->p), comparisons);
    else
        compare(c, comparisons);
    if (variant == reference())
        c->naive_error[0] = comparisons[0].max_error;
    else if (!rounds) {
        double largest = 0;
        for (size_t i = 0; i < query_elements(&c->p); i++)
            largest = fmax(largest, fabs(c->want[0][i]));
        /* The floor: one rounding; and what shows in fp32 alone, where others compute 2^x and 00_naive e^x: 2^-20 for the
         * instruction, as in allowance.c, and a rounding of x, which is as large as the scores are. */
        allowed = 2 * c->naive_error[0] + (dtype_epsilon(c->p.dtype) + 0x1p-20 + 0x1p-24 * c->size[0]) * largest;
    }
    for (int i = 0; i < count; i++)
        good = good && comparisons[i].ok;
    int as_good_as_naive = comparisons[0].max_error <= allowed;
    if (good && as_good_as_naive)
        return 1;
    about(c, variant);
    for (int i = 0; i < count; i++)
        if (!comparisons[i].ok)
            comparison_print(stderr, &comparisons[i]);
    if (good)
        diag("worst error %g, but 00_naive's is %g", comparisons[0].max_error, c->naive_error[0]);
    return 0;
}

const GridKind grid_kind = {
    .inputs = INPUTS,
    .input_count = sizeof INPUTS / sizeof *INPUTS,
    .peak = 6,
    .solve = solve,
    .outputs = outputs,
    .judge = judge,
};
