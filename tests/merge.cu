/* merge.cu - the merge of partial results at the end of 07_flash_decoding/equal_shares, with more of them than a thread loads at
 * once: as many only a chip with many multiprocessors makes. Held against fp64, on both devices. */
#include "../07_flash_decoding/cache.cu" /* its planner, which the next file's calls */
#include "../07_flash_decoding/equal_shares.cu"
#include "device_array.cuh"
#include "tap.h"

#include <cmath>

enum { D = 64, ROWS = 3, FIRST = 2 }; /* the head's first slot is number 2; what lies before and behind is NaN */

__global__ void merge_kernel(SharePartials partials, int count, float *o, float *lse) {
    merge_slots<D>(partials, FIRST, count, ROWS, o, lse);
}

/* Places whose LSE grow, so that each SLOTS_AT_ONCE of them move the maximum; in row 1 all but the first see no key, as under a mask. */
static void test_merge(int count) {
    std::vector<float> o((FIRST + count + 1) * ROWS * D, NAN), lse((FIRST + count + 1) * ROWS, NAN);
    for (int i = FIRST * ROWS; i < (FIRST + count) * ROWS; i++) {
        const int slot = i / ROWS - FIRST;
        const bool empty = i % ROWS == 1 && slot > 0;
        lse[i] = empty ? -INFINITY : 0.5f * slot + (float)(random_bits() % 1000) / 1000;
        for (int d = 0; d < D; d++)
            o[i * D + d] = empty ? 0 : (float)(random_bits() % 2000) / 1000 - 1;
    }
    const DeviceArray<float> partial_o(o), partial_lse(lse), merged_o(ROWS * D), merged_lse(ROWS);
    const SharePartials partials = {partial_o.pointer, partial_lse.pointer, ROWS, nullptr};
    LAUNCH(merge_kernel, 1, 64, 0, partials, count, merged_o.pointer, merged_lse.pointer);
    const std::vector<float> got = merged_o.read(), got_lse = merged_lse.read();
    double worst = 0; /* NaN, once it is in, stays */
    for (int row = 0; row < ROWS; row++) {
        double sum = 0, want[D] = {};
        for (int slot = FIRST; slot < FIRST + count; slot++) {
            const double weight = exp(lse[slot * ROWS + row]);
            sum += weight;
            for (int d = 0; d < D; d++)
                want[d] += weight * o[(slot * ROWS + row) * D + d];
        }
        for (int d = 0; d < D; d++)
            worst = fabs(got[row * D + d] - want[d] / sum) <= worst ? worst : fabs(got[row * D + d] - want[d] / sum);
        worst = fabs(got_lse[row] - log(sum)) <= worst ? worst : fabs(got_lse[row] - log(sum));
        if (std::isnan(worst))
            break;
    }
    ok(worst < 1e-5, "%d partial results are merged, off by at most %.1e", count, worst);
}

int main(void) {
    for (int count : {1, 2, (int)SLOTS_AT_ONCE, SLOTS_AT_ONCE + 1, 3 * SLOTS_AT_ONCE + 5})
        test_merge(count);
    return tap_done();
}
