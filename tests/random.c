/* random.c - tests of common/host/random.h and of the loop splitter common/host/parallel.h beneath it: the numbers are normal,
 * independent, and the same for any number of threads.
 *
 * Each statistical bound is five standard deviations of the statistic, and the seeds are fixed: a pass stays a pass.
 */
#define _POSIX_C_SOURCE 200809L

#include "../common/host/random.h"
#include "../common/numeric.h"
#include "../common/host/memory.h"
#include "../common/host/parallel.h"
#include "tap.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { COUNT = 1 << 20 };

static int within(double value, double expected, double allowed, const char *name) {
    int pass = ok(fabs(value - expected) <= allowed, "%s", name);
    if (!pass)
        diag("%s is %g, expected %g +- %g", name, value, expected, allowed);
    return pass;
}

static float *normal(uint64_t seed, uint32_t stream) {
    float *x = host_alloc(COUNT, sizeof *x);
    random_normal(DTYPE_FP32, x, COUNT, seed, stream, 0, 1);
    return x;
}

static void test_moments(const float *x) {
    double m1 = 0, m2 = 0, m3 = 0, m4 = 0, largest = 0, sigma = 1 / sqrt(COUNT);
    int beyond[5] = {0};
    for (int i = 0; i < COUNT; i++) {
        double a = x[i];
        m1 += a / COUNT, m2 += a * a / COUNT, m3 += a * a * a / COUNT, m4 += a * a * a * a / COUNT;
        largest = fmax(largest, fabs(a));
        for (int t = 1; t < 5; t++)
            beyond[t] += fabs(a) > t;
    }
    within(m1, 0, 5 * sigma, "mean");
    within(m2, 1, 5 * sqrt(2) * sigma, "variance");
    within(m3, 0, 5 * sqrt(15) * sigma, "third moment");
    within(m4, 3, 5 * sqrt(96) * sigma, "fourth moment (kurtosis)");
    for (int t = 1; t < 5; t++) {
        double expected = COUNT * erfc(t / sqrt(2));
        char name[64];
        snprintf(name, sizeof name, "numbers beyond %d standard deviations", t);
        within(beyond[t], expected, 5 * sqrt(expected), name);
    }
    ok(largest > 4.2 && largest < 6.8, "the largest of a million is where it should be (%.2f)", largest);
}

static double correlation(const float *a, const float *b, int count) {
    double sum = 0;
    for (int i = 0; i < count; i++)
        sum += (double)a[i] * b[i];
    return sum / count;
}

static void test_independence(const float *x) {
    double bound = 5 / sqrt(COUNT);
    const int lags[] = {1, 2, 3, 64, 128, 4096};
    for (size_t i = 0; i < sizeof lags / sizeof *lags; i++) {
        char name[64];
        snprintf(name, sizeof name, "no correlation with the neighbor %d further", lags[i]);
        within(correlation(x, x + lags[i], COUNT - 4096), 0, 5 / sqrt(COUNT - 4096), name);
    }
    float *stream = normal(1, 1), *seed = normal(2, 0), *next = normal(2, 1);
    within(correlation(x, stream, COUNT), 0, bound, "no correlation with another stream");
    within(correlation(x, seed, COUNT), 0, bound, "no correlation with another seed");
    within(correlation(stream, seed, COUNT), 0, bound, "seed and stream do not stand for each other");
    within(correlation(x, next, COUNT), 0, bound, "nor do they move together");

    /* Both numbers of a pair share a radius; their squares must still be uncorrelated. */
    double sum = 0;
    for (int i = 0; i < COUNT; i += 2)
        sum += ((double)x[i] * x[i] - 1) * ((double)x[i + 1] * x[i + 1] - 1) / 2;
    within(sum / (COUNT / 2), 0, 5 / sqrt(COUNT / 2), "the two numbers of a pair are independent");
    free(stream), free(seed), free(next);
}

static void test_reproducible(void) {
    /* Odd, so that the last pair is cut in half; one element more to see that nothing is written past the end. */
    enum { ODD = 10007 };
    uint16_t one[ODD + 1], five[ODD + 1], prefix[101];
    memset(one, 0xff, sizeof one);
    memset(five, 0xff, sizeof five);
    setenv("HOST_THREADS", "1", 1);
    random_normal(DTYPE_FP16, one, ODD, 7, 3, 0, 1);
    setenv("HOST_THREADS", "5", 1);
    random_normal(DTYPE_FP16, five, ODD, 7, 3, 0, 1);
    ok(memcmp(one, five, sizeof one) == 0, "the same bits from one thread and from five");
    ok(one[ODD] == 0xffff && one[ODD - 1] != 0xffff, "the last element is written, the one after it is not");
    random_normal(DTYPE_FP16, prefix, 101, 7, 3, 0, 1);
    ok(memcmp(one, prefix, sizeof prefix) == 0, "an element does not depend on how many there are");
    unsetenv("HOST_THREADS");

    float wide[101], moved[101];
    random_normal(DTYPE_FP32, wide, 101, 7, 3, 0, 1);
    random_normal(DTYPE_FP32, moved, 101, 7, 3, 0.5, 8);
    int rounded = 1, shifted = 1;
    for (int i = 0; i < 101; i++) {
        rounded &= fabs(fp16_to_float(one[i]) - wide[i]) <= 0x1p-11 * fabs(wide[i]) + 0x1p-25;
        shifted &= fabs(moved[i] - (0.5 + 8 * (double)wide[i])) <= 1e-5;
    }
    ok(rounded, "every dtype holds the same numbers, rounded");
    ok(shifted, "mean and standard deviation");

    /* Recorded once. A change here changes every input of the project. */
    const float known[] = {0.847342491f, 0.182454392f, 0.231448263f, -1.5629822f, -3.21990347f, -1.35545123f};
    random_normal(DTYPE_FP32, wide, 6, 42, 1, 0, 1);
    int same = 1;
    for (int i = 0; i < 6; i++)
        same &= fabsf(wide[i] - known[i]) <= 1e-6f;
    if (!ok(same, "the known numbers of seed 42, stream 1"))
        diag("%.7g %.7g %.7g %.7g %.7g %.7g", wide[0], wide[1], wide[2], wide[3], wide[4], wide[5]);
    /* the seed of which the first hash is 0: sqrt(-2 ln 2^-33) */
    random_normal(DTYPE_FP32, wide, 1, 8741965014242643702, 0, 0, 1);
    ok(fabsf(wide[0] - 6.763706f) <= 1e-6f, "the largest number there can be");
}

/* Worked out by hand from the hash that random.c describes. */
static void test_outliers(void) {
    static const struct {
        int at;
        float by;
    } known[] = {{1194, -8.66558f}, {1265, -4.89106f}, {1331, -17.87123f}, {1439, 6.94869f}};
    float x[4000];
    int next = 0, same = 1;
    for (int i = 0; i < 4000; i++)
        x[i] = 1;
    random_outliers(DTYPE_FP32, x, 4000, 42, 3, 0.001, 10);
    for (int i = 0; i < 4000; i++) {
        float by = next < 4 && known[next].at == i ? known[next++].by : 0;
        same &= fabsf(x[i] - 1 - by) <= 1e-5f;
    }
    ok(same, "the known outliers of seed 42, stream 3, and nothing added to the others");
    for (int i = 0; i < 4000; i++)
        x[i] = 1;
    random_outliers(DTYPE_FP32, x, 3999, 42, 3, 1, 10);
    ok(x[3998] != 1 && x[3999] == 1, "an outlier everywhere, and none behind the end");
}

static void count_visits(size_t begin, size_t end, void *context) {
    unsigned char *visits = context;
    for (size_t i = begin; i < end; i++)
        visits[i]++;
}

static void count_calls(size_t begin, size_t end, void *context) {
    (void)begin, (void)end;
    atomic_fetch_add((atomic_int *)context, 1);
}

/* Twice: the first loop must not forget that it is inside of another. */
static pthread_t outer;
static void count_strangers(size_t begin, size_t end, void *context) {
    (void)begin, (void)end;
    nanosleep(&(struct timespec){0, 100000}, NULL);
    atomic_fetch_add((atomic_int *)context, !pthread_equal(outer, pthread_self()));
}
static void nest(size_t begin, size_t end, void *context) {
    (void)begin, (void)end;
    outer = pthread_self();
    parallel_for(1000, count_strangers, context);
    parallel_for(1000, count_strangers, context);
}

static void test_parallel(void) {
    static unsigned char visits[1001];
    const char *threads[] = {"1", "2", "7", "64"};
    int once = 1;
    for (size_t count = 0; count <= 1000; count += count < 20 ? 1 : 49) {
        setenv("HOST_THREADS", threads[count % 4], 1);
        memset(visits, 0, sizeof visits);
        parallel_for(count, count_visits, visits);
        for (size_t i = 0; i <= 1000; i++)
            once &= visits[i] == (i < count);
    }
    ok(once, "parallel_for visits every index once and none beyond");

    setenv("HOST_THREADS", "2", 1);
    atomic_int first = 0, second = 0, strangers = 0;
    parallel_for(1000, count_calls, &first);
    parallel_for(1000, count_calls, &second);
    parallel_for(1, nest, &strangers);
    ok(first == 32 && second == first && strangers == 0,
       "a loop is cut in pieces, the one after it likewise, those inside of it stay on their thread");
    setenv("HOST_THREADS", "1024", 1);
    ok(host_threads() == 1024, "HOST_THREADS=1024");
    unsetenv("HOST_THREADS");
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    ok(host_threads() == (cores < 1024 ? cores : 1024), "as many host threads as cores");
}

int main(void) {
    float *x = normal(1, 0);
    test_moments(x);
    test_independence(x);
    free(x);
    test_reproducible();
    test_outliers();
    test_parallel();
    ok(random_uniform(1, 2, 3) == 0x1.cfc035e8p-4 && random_uniform(0, 0, 0) == 0x1.3465f9bep-2,
       "a block's number is the same on every machine");
    return tap_done();
}
