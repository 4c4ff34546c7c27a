/* maximum.cu - the lazy update of the maximum (update_maximum of warp.cuh) against its definition, on both devices: m is updated where a
 * row's maximum exceeds it by more than SLACK, and where no row of the warp needs that, nothing happens. Neither depends on the sign of
 * the scores. */
#include "../common/gpu/warp.cuh"
#include "device_array.cuh"
#include "tap.h"

#include <cmath>

enum { ROWS = 16, KEYS = 64, TILES = 2000 };

/* A warp takes tiles of scores, one after the other. m: before and after; rescaled: whether O was. */
__global__ void update_kernel(const float *scores, float *m, int *rescaled, float scale_log2) {
    for (int tile = 0; tile < TILES; tile++, scores += ROWS * KEYS, m += ROWS) {
        float s[1][KEYS / 8][4], own_m[2], l[2] = {};
        for (int r = 0; r < 2; r++) {
            own_m[r] = m[row_of(r)];
            for (int i = 0; i < KEYS / 4; i++)
                s[0][i / 2][2 * r + i % 2] = scores[row_of(r) * KEYS + i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2];
        }
        Limits limits = limits_of(own_m);
        bool is_rescaled = false;
        update_maximum(s, own_m, limits, l, scale_log2, [&](int, float) { is_rescaled = true; });
        if (threadIdx.x == 0)
            rescaled[tile] = is_rescaled;
        __syncwarp();
        for (int r = 0; r < 2; r++)
            m[row_of(r)] = own_m[r];
    }
}

static float uniform() { return (float)(random_bits() % 65536) / 32768 - 1; }

/* Scores of a row lie within 1 of its own centre, which lies within `spread` of `centre`; m is 0 to 12 below the centre. `masked`: a row's
 * first keys are not seen. */
static void test_scores(const char *what, float centre, float spread, bool masked) {
    const float scale_log2 = 1.25f;
    std::vector<float> s(TILES * ROWS * KEYS), m(TILES * ROWS);
    for (int row = 0; row < TILES * ROWS; row++) {
        const float own = centre + spread * uniform();
        m[row] = scale_log2 * own - 4 * uniform() - (row / ROWS % 2 ? 8 : 4);
        const int first = masked ? random_bits() % (KEYS + 1) : 0;
        for (int key = 0; key < KEYS; key++)
            s[row * KEYS + key] = key < first ? -INFINITY : own + uniform();
    }
    const DeviceArray<float> scores(s), maxima(m);
    const DeviceArray<int> rescaled(TILES);
    LAUNCH(update_kernel, 1, 32, 0, scores.pointer, maxima.pointer, rescaled.pointer, scale_log2);
    const std::vector<float> got = maxima.read();
    const std::vector<int> got_rescaled = rescaled.read();
    int wrong = 0, needed = 0, unneeded = 0;
    for (int tile = 0; tile < TILES; tile++) {
        bool needs = false;
        for (int row = tile * ROWS; row < (tile + 1) * ROWS; row++) {
            float largest = -INFINITY;
            for (int key = 0; key < KEYS; key++)
                largest = fmaxf(largest, scale_log2 * s[row * KEYS + key]);
            needs |= largest - m[row] > SLACK;
            wrong += got[row] != (largest - m[row] > SLACK ? largest : m[row]);
        }
        needed += needs;
        unneeded += !needs;
        wrong += needs != (got_rescaled[tile] != 0);
    }
    ok(wrong == 0 && needed > 0 && unneeded > 0, "%s: m is updated in %d tiles and left alone in %d, %d wrong", what, needed,
       unneeded, wrong);
}

int main(void) {
    test_scores("scores near 20", 20, 2, false);
    test_scores("scores near -20", -20, 2, false);
    test_scores("scores near -20, some masked", -20, 2, true);
    test_scores("limits of both signs", -6, 6, false);
    test_scores("scores of both signs, some masked", 0, 8, true);
    return tap_done();
}
