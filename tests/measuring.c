/* measuring.c - what every stage measures and counts in the same way: the median, FLOPs and bytes, the random inputs, the CPU
 * device's clock.
 */
#define _POSIX_C_SOURCE 200809L
#include "../common/host/random.h"
#include "../common/host/memory.h"
#include "../common/numeric.h"
#include "../common/harness/row.h"
#include "../common/harness/run.h"
#include "../common/host/chips.h"
#include "../common/harness/tensors.h"
#include "../common/harness/timing.h"
#include "figures.h"
#include "tap.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A sampler that plays back what it is given, the last over and over. */
typedef struct {
    const double *times;
    int count, calls;
} Playback;
static double play(void *context) {
    Playback *p = context;
    int i = p->calls++;
    return p->times[i < p->count ? i : p->count - 1];
}

/* What take_median makes of these times. */
static Row sample_of(int iters, int is_cpu, const double *times, int count, int *calls) {
    DeviceProperties device = {.is_cpu = is_cpu};
    Options options = {.iters = iters};
    Run run = {.options = &options, .device = &device};
    Playback playback = {times, count, 0};
    Row row = {.run = &run, .latency_ms = -1};
    take_median(&row, play, &playback);
    *calls = playback.calls;
    return row;
}

static void test_median(void) {
    static const struct {
        int iters, is_cpu, calls, runs;
        double median, least, iqr;
        const char *name;
        double times[9];
    } cases[] = {
        {1, 1, 1, 1, 7, 7, 0, "one run", {7}},
        {2, 1, 2, 2, 5, 3, 2, "two: the mean of both", {7, 3}},
        {3, 1, 3, 3, 5, 2, 449, "three, the first the slowest", {900, 2, 5}},
        {4, 1, 4, 4, 4, 1, 2.75, "four: quartiles between the samples", {6, 3, 1, 5}},
        {5, 1, 5, 5, 4, 1, 997, "five, two of them far off", {4, 1000, 1, 3, 2000}},
        {6, 1, 6, 6, 3.5, 1, 2.5, "six", {4, 6, 1, 3, 2, 5}},
        {4, 1, 4, 4, 2, 2, 0, "all equal", {2}},
        {4, 0, 6, 4, 3.5, 1, 1.75, "a GPU, --iters: runs of the first 15 ms do not count", {10, 6, 5, 4, 3, 1}},
        {3, 0, 4, 3, 2, 1, 1, "a GPU, --iters: one run may be all of these 15 ms", {15, 3, 1, 2}},
        {0, 0, 100 + 100, 100, 1, 1, 0, "a GPU, 1 ms: 100 ms do not count; a hundred runs", {1}},
        {0, 0, 34 + 34, 34, 3, 3, 0, "a GPU, 3 ms: 34 runs are 100 ms", {3}},
        {0, 0, 2 + 5, 5, 70, 70, 0, "a GPU, 70 ms: five runs at least", {70}},
        {0, 0, 1 + 8, 8, 100, 90, 1, "a GPU: of five runs of 100 ms the quartiles are 4% apart, of eight 1%",
         {100, 90, 98, 100, 102, 110, 100, 100, 100}},
        {0, 0, 1 + 10, 10, 104, 100, 4, "a GPU: quartiles 4% apart, for a second and no longer",
         {100, 100, 104, 100, 104, 100, 104, 100, 104}},
        {0, 0, 1000 + 100, 100, 0, 0, 0, "a clock that stands still: no more than a thousand", {0}},
        {0, 1, 100, 100, 3, 3, 0, "the CPU device, 3 ms: a hundred runs", {3}},
        {0, 1, 17, 17, 30, 30, 0, "the CPU device, 30 ms: 17 runs are 500 ms", {30}},
        {0, 1, 1, 1, 600, 600, 0, "the CPU device, 600 ms: one run", {600}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int count = 9, calls;
        while (count > 1 && !cases[i].times[count - 1])
            count--;
        Row row = sample_of(cases[i].iters, cases[i].is_cpu, cases[i].times, count, &calls);
        if (!ok(calls == cases[i].calls && row.runs == cases[i].runs &&
                    fabs(row.latency_ms - cases[i].median) < 1e-12 && fabs(row.min_ms - cases[i].least) < 1e-12 &&
                    fabs(row.iqr_ms - cases[i].iqr) < 1e-12,
                "median: %s", cases[i].name))
            diag("%d calls, %d runs, median %g, least %g, iqr %g", calls, row.runs, row.latency_ms, row.min_ms, row.iqr_ms);
    }
    static const int counts[] = {99, 101, 199, 301}; /* few, and more than are kept without asking for memory */
    for (size_t i = 0; i < 4; i++) {
        double many[301];
        int calls;
        for (int k = 0; k < counts[i]; k++)
            many[k] = 1 + k * 53 % counts[i];
        Row row = sample_of(counts[i], 1, many, counts[i], &calls);
        ok(calls == counts[i] && row.latency_ms == (counts[i] + 1) / 2 && row.min_ms == 1 &&
               fabs(row.iqr_ms - (counts[i] - 1) / 2.0) < 1e-9,
           "median: of %d runs", counts[i]);
    }
    double two[1200]; /* a GPU, in turns 0.5 and 0.625 ms */
    int calls;
    for (int k = 0; k < 1200; k++)
        two[k] = k % 2 ? 0.625 : 0.5;
    Row settled = sample_of(0, 0, two, 1200, &calls);
    ok(calls == 178 + 1000 && settled.runs == 1000 && settled.iqr_ms == 0.125, "quartiles 22%% apart: a thousand runs, and no more");

    Row row = {.runs = 4, .latency_ms = 200, .iqr_ms = 2};
    ok(row_noise(&row) == NOISY, "noise: the interquartile range over the median");
    row.runs = 3;
    ok(isnan(row_noise(&row)), "noise: unknown of three runs");
}

/* Peaks against the vendors' data sheets (common/host/chips.h), at the clock that these were computed with. */
static void test_peak(void) {
    static const struct {
        const char *name, *sheet;
        int chip, sms, clock_mhz;
        double fp32;
    } chips[] = {
        {"Tesla T4", "t4", 75, 40, 1590, 8.1},
        {"NVIDIA A100-SXM4-80GB", "a100", 80, 108, 1410, 19.5},
        {"NVIDIA A10", "a10", 86, 72, 1695, 31.2},
        {"NVIDIA GeForce RTX 3090", "rtx3090", 86, 82, 1695, 35.6},
        {"NVIDIA GeForce RTX 4090", "rtx4090", 89, 128, 2520, 82.6},
        {"NVIDIA L4", "l4", 89, 58, 2040, 30.3},
        {"NVIDIA L40S", "l40s", 89, 142, 2520, 91.6},
        {"NVIDIA H100 80GB HBM3", "h100", 90, 132, 1830, 62},
    };
    for (size_t i = 0; i < sizeof chips / sizeof *chips; i++) {
        DeviceProperties d = {.chip = chips[i].chip, .sm_count = chips[i].sms, .clock_mhz = chips[i].clock_mhz};
        snprintf(d.name, sizeof d.name, "%s", chips[i].name);
        const Chip *sheet = find_chip(chips[i].sheet);
        double fp16 = peak_tflops(&d, DTYPE_FP16, 0) / sheet->tflops[0],
               e4m3 = peak_tflops(&d, DTYPE_BF16, 1) / sheet->tflops[1],
               fp32 = peak_tflops(&d, DTYPE_FP32, 0) / chips[i].fp32;
        if (!ok(fabs(fp16 - 1) < 0.02 && fabs(e4m3 - 1) < 0.02 && fabs(fp32 - 1) < 0.02, "peak: %s", chips[i].name))
            diag("fp16 %g, 8 bits %g, fp32 %g times the data sheet's", fp16, e4m3, fp32);
    }
    DeviceProperties unknown = {.chip = 91, .sm_count = 99, .clock_mhz = 1000}, none = {.is_cpu = 1, .capability = 80};
    ok(isnan(peak_tflops(&unknown, DTYPE_FP16, 0)) && isnan(peak_tflops(&none, DTYPE_FP16, 0)),
       "peak: unknown chips have none");
}

/* FLOPs and bytes as they are counted by convention, against sums over every element. */
static void test_counts(void) {
    static const Problem shapes[] = {
        {.batch = 1, .heads = 1, .kv_heads = 1, .seqlen_q = 6, .seqlen_k = 6, .head_dim = 8},
        {.batch = 2, .heads = 6, .kv_heads = 2, .seqlen_q = 3, .seqlen_k = 11, .head_dim = 24, .dtype = DTYPE_FP32},
        {.batch = 3, .heads = 4, .kv_heads = 1, .seqlen_q = 13, .seqlen_k = 5, .head_dim = 16, .dtype = DTYPE_BF16}};
    for (size_t i = 0; i < 6; i++) {
        Problem p = shapes[i / 2];
        p.causal = i % 2;
        double forward = tensor_sizes(&p, 2, 2, 1), backward = tensor_sizes(&p, 4, 4, 1);
        int good = counted_flops(&p, NULL, PREPARE) == 0;
        static const Passes passes[] = {FORWARD_PASS, BACKWARD_PASS, BOTH, WITH_PREPARE};
        for (int k = 0; k < 4; k++)
            good = good && counted_flops(&p, NULL, passes[k]) == flops_of(&p, NULL, passes[k]);
        ok(good, "FLOPs: forward, backward, both, %d queries, %d keys, %s", p.seqlen_q, p.seqlen_k,
           p.causal ? "causal" : "full");
        static const int lengths[][3] = {{6, 0, 1}, {3, 11, 0}, {1, 5, 2}, {0, 0, 0}};
        for (int l = 0; l < 4; l++) {
            int mine[3]; /* no more than there are keys */
            for (int b = 0; b < 3; b++)
                mine[b] = lengths[l][b] < p.seqlen_k ? lengths[l][b] : p.seqlen_k;
            double got = counted_flops(&p, mine, BACKWARD_PASS), want = flops_of(&p, mine, BACKWARD_PASS);
            ok(got == want, "FLOPs of the pairs that lengths %d,%d,%d leave of %d×%d, %s", mine[0], mine[1], mine[2],
               p.seqlen_q, p.seqlen_k, p.causal ? "causal" : "full");
        }
        ok(compulsory_bytes(&p, NULL, FORWARD_PASS, dtype_bytes(p.dtype)) == forward &&
               compulsory_bytes(&p, NULL, BACKWARD_PASS, dtype_bytes(p.dtype)) == backward &&
               compulsory_bytes(&p, NULL, BOTH, dtype_bytes(p.dtype)) == forward + backward &&
               compulsory_bytes(&p, NULL, WITH_PREPARE, dtype_bytes(p.dtype)) == forward,
           "bytes: forward, backward, both");
        static const int none[] = {0, 0, 0};
        ok(compulsory_bytes(&p, none, FORWARD_PASS, dtype_bytes(p.dtype)) == tensor_sizes(&p, 2, 0, 1) &&
               compulsory_bytes(&p, none, BACKWARD_PASS, dtype_bytes(p.dtype)) == tensor_sizes(&p, 4, 2, 1),
           "bytes: without keys no K and V are read, and zeros are written");
    }
}

/* Each tensor has a stream of its own, and all but dO one for its outliers: random.c holds that streams are normal and independent. */
static void test_inputs(void) {
    static const char *const names[] = {"Q", "K", "V", "dO"};
    Problem p = {.batch = 1, .heads = 2, .kv_heads = 1, .seqlen_q = 64, .seqlen_k = 99, .head_dim = 64};
    for (int outliers = 0; outliers < 2; outliers++)
        for (uint32_t t = 0; t < 4; t++) {
            void *got = random_input(&p, (int)t, 5, outliers);
            size_t count = t == 1 || t == 2 ? key_elements(&p) : query_elements(&p);
            uint16_t *want = host_alloc(count, sizeof *want);
            random_normal(p.dtype, want, count, 5, t, 0, 1);
            if (outliers && t < 3)
                random_outliers(p.dtype, want, count, 5, t + 4, 0.001, 10);
            ok(memcmp(got, want, count * sizeof *want) == 0, "inputs: %s is stream %u of its seed%s", names[t], t,
               outliers && t < 3 ? ", with outliers" : "");
            free(want), free(got);
        }
}

/* The device's own clock, between two looks at another one. */
static double look(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

typedef struct {
    double ms, took;
    int calls;
} Wait;
static void wait_a_while(void *context) {
    Wait *w = context;
    double begin = look();
    w->calls++;
    while ((w->took = look() - begin) < w->ms)
        ;
}

static void test_clock(void) {
    if (!device_properties()->is_cpu)
        return; /* events do not see what the host does */
    Wait first = {5, 0, 0}, second = {11, 0, 0};
    struct timespec rest = {
        0, (long)(1e6 * (fmod(1997 - fmod(look(), 1000), 1000)))}; /* so that a second ends while the clock is on */
    nanosleep(&rest, NULL);
    void *contexts[] = {&first, &second};
    double begin = look(), once = device_time_ms(wait_a_while, &first, 0), end = look();
    ok(once >= first.took && once <= end - begin && first.calls == 1, "the clock: a run, in ms");
    begin = look();
    double replay = device_time_replay_ms(wait_a_while, contexts, 2);
    end = look();
    ok(2 * replay >= first.took + second.took && 2 * replay <= end - begin && first.calls == 2 && second.calls == 1,
       "the clock: a replay, the mean of its launches");
}

int main(void) {
    test_median();
    test_peak();
    test_counts();
    test_inputs();
    test_clock();
    return tap_done();
}
