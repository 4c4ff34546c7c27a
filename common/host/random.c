/* random.c - see random.h.
 *
 * Counter-based: there is no state to carry from one number to the next. A hash turns (key, counter) into 64 bits that look
 * random, and Box and Muller's formula turns two uniform numbers into two independent normal ones:
 *
 *     r = sqrt(-2 ln u1),  a = 2 pi u2  =>  r cos a  and  r sin a
 *
 * So elements 2i and 2i + 1 come from one hash. u1 has 32 bits and is never 0, so |value| stays below 6.8 standard
 * deviations; a true normal variable passes that once in 10^11 draws.
 */
#include "random.h"

#include "../numeric.h"
#include "parallel.h"

/* Mixes 64 bits: each input bit flips each output bit about half of the time. Shifts bring high bits down, multiplications
 * by odd numbers carry low bits up; both can be undone, so different inputs stay different. The constants are the
 * finaliser of SplitMix64 (Steele, Lea and Flood 2014). */
static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

/* 2^64 / golden ratio: multiples of it spread evenly over the 64-bit numbers. */
static const uint64_t step = 0x9e3779b97f4a7c15;

static double uniform(uint64_t bits) { return ((double)(uint32_t)bits + 0.5) * 0x1p-32; }

double random_uniform(uint64_t seed, uint32_t a, uint32_t b) {
    return uniform(mix(mix(seed + step) + (((uint64_t)a << 32 | b) + 1) * step));
}

static double normal(uint64_t hash, int is_second, double std) {
    double radius = std * sqrt(-2 * log(uniform(hash))), angle = 6.283185307179586476925 * uniform(hash >> 32);
    return radius * (is_second ? sin(angle) : cos(angle));
}

typedef struct {
    Dtype dtype;
    void *out;
    uint64_t key;
    double mean, std, probability;
} Fill;

static void fill(size_t begin, size_t end, void *context) {
    const Fill *f = context;
    for (size_t i = begin; i < end; i++)
        dtype_store(f->dtype, f->out, i, f->mean + normal(mix(f->key + (i / 2 + 1) * step), i % 2, f->std));
}

void random_normal(Dtype dtype, void *out, size_t count, uint64_t seed, uint32_t stream, double mean, double std) {
    Fill f = {dtype, out, mix(mix(seed + step) + (stream + 1) * step), mean, std, 0};
    parallel_for(count, fill, &f);
}

/* Each element draws its own lot and, if it is chosen, its own normal number: from 2 hashes. */
static void scatter(size_t begin, size_t end, void *context) {
    const Fill *f = context;
    for (size_t i = begin; i < end; i++)
        if (uniform(mix(f->key + (2 * i + 1) * step) >> 32) < f->probability) {
            double outlier = normal(mix(f->key + (2 * i + 2) * step), 0, f->std);
            dtype_store(f->dtype, f->out, i, dtype_to_double(f->dtype, f->out, i) + outlier);
        }
}

void random_outliers(Dtype dtype, void *out, size_t count, uint64_t seed, uint32_t stream, double probability, double std) {
    Fill f = {dtype, out, mix(mix(seed + step) + (stream + 1) * step), 0, std, probability};
    parallel_for(count, scatter, &f);
}
